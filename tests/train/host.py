"""The kernel of a step on a CPU: the same text, by a C++ compiler, one network after the other, and watched.

A block of a network is either one thread, for which every loop is plain, or as many as it has on a GPU, with stand-ins
for what their hardware does (threads.h). On a GPU threads go on side by side until they wait for one another. Here one
goes after the other, and what would go well in this order alone is found by noting who has read and written what since
they last waited; and whether that was where there is something to read and write.
"""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from pstn.train.fleet.resident.kernel import THREADS, source
from pstn.train.fleet.resident.writer import Writer

OPTIONS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused", "-Wno-unknown-pragmas")
OPTIONS += ("-Wl,-Bsymbolic",)  # or the step would be that of an old function of the C library
#: For every byte who wrote it last and who has read it, counted in items; and how many waits ago that was.
WATCH = """
#include <cstdint>
#include <map>
#include <unordered_map>
struct Touch { long wait, item, epoch; int rank; };
static std::unordered_map<uintptr_t, Touch> written, seen;
static std::map<uintptr_t, uintptr_t> rooms;
static int own_rank = 0;
static long waits[TEAM], item = 0, epoch = 1, meetings = 0, strays = 0;
static struct { int x; } blockIdx;
static bool beside(const Touch& t) { return t.epoch == epoch && t.rank != own_rank; }  // by another block
static bool met(const Touch& t) {
  return beside(t) || (t.epoch == epoch && t.wait == waits[own_rank] && t.item != item);
}
static void inside(uintptr_t first, uintptr_t last) {
  auto room = rooms.upper_bound(first);
  strays += room == rooms.begin() || last > (--room)->second;
}
template <class T> static T& reading(T& x) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(&x);
  inside(first, first + sizeof(T));
  for (uintptr_t at = first; at < first + sizeof(T); ++at) {
    meetings += met(written[at]);
    const Touch& last = seen[at];
    seen[at] = {waits[own_rank], met(last) ? -1 : item, epoch, beside(last) ? -1 : own_rank};
  }
  return x;
}
template <class T> static T& writing(T& x) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(&x);
  inside(first, first + sizeof(T));
  for (uintptr_t at = first; at < first + sizeof(T); ++at) {
    meetings += met(written[at]) || met(seen[at]);
    written[at] = {waits[own_rank], item, epoch, own_rank};
  }
  return x;
}
extern "C" void has_room(void* first, long bytes) {
  rooms[reinterpret_cast<uintptr_t>(first)] = reinterpret_cast<uintptr_t>(first) + bytes;
}
extern "C" void no_room() { rooms.clear(); }
extern "C" long met_others() { ++epoch; const long found = meetings; meetings = 0; return found; }
extern "C" long strayed() { const long found = strays; strays = 0; return found; }
#define ITEM() ++item
#define ROOM(first, count) has_room(first, (count) * sizeof(*(first)))
#define WRITES(first, count) for (int n = 0; n < (count); ++n) writing((first)[n])
#define READS(first, count) for (int n = 0; n < (count); ++n) reading((first)[n])
// what several add to in any order is theirs together, and nobody else's until they have waited for one another
template <class T> static T& adding(T& x) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(&x);
  inside(first, first + sizeof(T));
  for (uintptr_t at = first; at < first + sizeof(T); ++at) {
    const Touch last = written[at];
    meetings += (met(last) && last.item != -2) || met(seen[at]);
    written[at] = {waits[own_rank], -2, epoch, own_rank};
  }
  return x;
}
#define ATOMIC_ADD(place, amount) adding(place) += amount
"""
#: How a network's kernel is begun, given where its arguments are.
ARGUMENTS = """
template <class... A, size_t... I>
static void call(void (*function)(A...), void** given, std::index_sequence<I...>) {
  function(*static_cast<A*>(given[I])...);
}
template <class... A>
static void call(void (*function)(A...), void** given) { call(function, given, std::index_sequence_for<A...>()); }
static void begin(void** given) { call(step, given); }
extern "C" bool run(void** given, int network) { return together(begin, given, network); }
"""


def watch(monkeypatch):
    """From now on, kernels are written so that whatever they read and write is noted."""

    def load(writer, pointer, index):
        writer.counts(pointer)
        place = f"reading({pointer}[{writer.text(index)}])"
        mask = " && ".join(dict.fromkeys(writer.masks))
        return writer.let(f"{mask} ? {place} : 0" if mask else place, writer.argument_of(index))

    def store(writer, pointer, index, value):
        writer.counts(pointer)
        writer.line(f"writing({pointer}[{writer.text(index)}]) = {value};")

    monkeypatch.setattr(Writer, "load", load)
    monkeypatch.setattr(Writer, "store", store)


@cache
def _library(text, team, people):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler: steps are not tried as kernels")
    sizes = "".join(f"#define {name} {n}\n" for name, n in (("THREADS", THREADS), ("TEAM", team), ("PEOPLE", people)))
    stand_in = Path(__file__).with_name("threads.h").read_text()
    words = f"{sizes}{WATCH}#include <utility>\n{stand_in}{source(text, team)}{ARGUMENTS}"
    folder = Path(tempfile.gettempdir()) / f"pstn-host-{hashlib.sha256(words.encode()).hexdigest()[:16]}"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        file, made = Path(place) / "step.cpp", Path(place) / "step.so"
        file.write_text(words)
        done = subprocess.run([compiler, *OPTIONS, "-o", str(made), str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
        library = ctypes.CDLL(str(made))
    library.run.restype = ctypes.c_bool
    library.has_room.argtypes = (ctypes.c_void_p, ctypes.c_long)
    return library


def _compiled(text, shared, team, people):
    library = _library(text, team, people)

    def run(grid, block, arguments, shared):
        library.no_room()
        given = []
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                library.has_room(argument.data_ptr(), argument.numel() * argument.element_size())
                given.append(ctypes.c_void_p(argument.data_ptr()))
            else:
                given.append(ctypes.c_int(argument))
        places = (ctypes.c_void_p * len(given))(*(ctypes.addressof(each) for each in given))
        for network in range(grid[0] // team):
            assert library.run(places, network), "threads wait for one another in vain"
            assert library.strayed() == 0, "memory is read or written that is not there"
            assert library.met_others() == 0, "threads would get in each other's way"

    return run


#: What stands in for the compiler of a GPU: a network by one thread, and by as many as it has there.
alone, together = partial(_compiled, people=1), partial(_compiled, people=THREADS)
