"""The kernel of a step on a CPU: the same text, by a C++ compiler, one network after the other, and watched.

On a GPU the threads of a network go on side by side until they wait for one another. Here one goes after the other, and
what would go well in this order alone is found by noting who has read and written what since they last waited.
"""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

from pstn.train.fleet.resident.kernel import source
from pstn.train.fleet.resident.writer import Writer

OPTIONS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused")
#: For every byte who wrote it last and who has read it, counted in items; and how many waits ago that was.
WATCH = """
#include <cstdint>
#include <unordered_map>
struct Touch { long wait, item; };
static std::unordered_map<uintptr_t, Touch> written, seen;
static long waits = 1, item = 0, meetings = 0;
static bool met(const Touch& t) { return t.wait == waits && t.item != item; }
template <class T> static T& reading(T& x) {
  for (unsigned n = 0; n < sizeof(T); ++n) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(&x) + n;
    meetings += met(written[at]);
    seen[at] = {waits, met(seen[at]) ? -1 : item};
  }
  return x;
}
template <class T> static T& writing(T& x) {
  for (unsigned n = 0; n < sizeof(T); ++n) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(&x) + n;
    meetings += met(written[at]) || met(seen[at]);
    written[at] = {waits, item};
  }
  return x;
}
#define SYNC() ++waits
#define ITEM() ++item
#define WRITES(first, count) for (int n = 0; n < (count); ++n) writing((first)[n])
#define READS(first, count) for (int n = 0; n < (count); ++n) reading((first)[n])
extern "C" long met_others() { ++waits; const long found = meetings; meetings = 0; return found; }
"""


def watch(monkeypatch):
    """From now on, kernels are written so that whatever they read and write is noted."""

    def load(writer, pointer, index):
        place = f"reading({pointer}[{writer.text(index)}])"
        mask = " && ".join(dict.fromkeys(writer.masks))
        return writer.let(f"{mask} ? {place} : 0" if mask else place, writer.argument_of(index))

    def store(writer, pointer, index, value):
        writer.line(f"writing({pointer}[{writer.text(index)}]) = {value};")

    monkeypatch.setattr(Writer, "load", load)
    monkeypatch.setattr(Writer, "store", store)


@cache
def _library(text):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler: steps are not tried as kernels")
    words = WATCH + source(text)
    folder = Path(tempfile.gettempdir()) / f"pstn-host-{hashlib.sha256(words.encode()).hexdigest()[:16]}"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        file, made = Path(place) / "step.cpp", Path(place) / "step.so"
        file.write_text(words)
        done = subprocess.run([compiler, *OPTIONS, "-o", str(made), str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
        return ctypes.CDLL(str(made))


def compiled(text, shared):
    """What stands in for the compiler of a GPU."""
    library = _library(text)

    def run(grid, block, arguments, shared):
        given = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int(a) for a in arguments]
        for network in range(grid[0]):
            library.network(network)
            library.step(*given)
            assert library.met_others() == 0, "threads would get in each other's way"

    return run
