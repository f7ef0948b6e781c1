"""What Triton's compiler makes of the kernels for tensor cores, which needs no GPU: the interpreter cannot tell."""

import itertools
import json
import os
import re
import subprocess
import sys

import pytest

#: Prints the PTX of a kernel, of 80 channels that become 80 and of 16 that become 16.
SCRIPT = """
import json
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pstn.kernels import halves


def build(name, channels, capability):
    kernel = getattr(halves, name)
    tile = halves._tile(channels, 128)
    high, warps, stages = halves.SHAPES[tile]
    common = dict(SOURCE=(26, 26, channels), KERNEL=(7, 7), STRIDE=(1, 1), PADDING=(0, 0), CHECK=(False, False))
    own = {
        "multiply_kernel": dict(
            common, TARGET=(channels, 20, 20), O_STRIDES=(400 * channels, 400, 20, 1), B_STRIDE=1, HIGH=high,
            BROAD=tile, DEEP=halves.DEEP,
        ),
        "to_weight_kernel": dict(
            common, TARGET=(channels, 20, 20, channels), TALL=tile, WIDE=halves.WIDE, DEEP=halves.W_DEEP
        ),
        "top_kernel": dict(BLOCK=halves.BLOCK, ROUNDS=halves.ROUNDS),
        "pack_kernel": dict(
            STRIDES=(676 * channels, 676, 26, 1), FIRST=0, SOURCE=(channels, 26, 26), ROOM=(26, 26, channels),
            COLUMNS=1, PADDING=0, PIXELS=halves.PIXELS, CHANNELS=halves.CHANNELS,
        ),
    }[name]
    if name == "to_weight_kernel":
        warps, stages = halves.W_WARPS, halves.W_STAGES
    pointers = {"out": "*fp32", "x": "*fp16", "weight": "*fp16", "grad": "*fp16"}
    if name == "top_kernel":
        pointers |= {"out": "*i32", "x": "*fp32"}
    if name == "pack_kernel":
        pointers |= {"out": "*fp16", "x": "*fp32"}
    signature, attributes = {}, {}
    for index, each in enumerate(kernel.arg_names):
        if each in own:
            signature[each] = "constexpr"
        elif each in ("count", "parts", "length") or each.endswith("_step"):
            signature[each] = "i32"
            if name == "top_kernel":  # of the others nothing is known, as where they are called
                attributes[index,] = [["tt.divisibility", 16]]
        else:
            signature[each] = pointers.get(each, "*fp32")
            attributes[index,] = [["tt.divisibility", 16]]
    values = {(kernel.arg_names.index(each),): value for each, value in own.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=attributes)
    options = {"num_warps": warps, "num_stages": stages}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return made.metadata.shared, made.asm["ptx"]


cases = json.loads(sys.argv[2])
print(json.dumps([build(sys.argv[1], *case) for case in cases]))
"""


def compiled(name, cases, cache):
    """The bytes of shared memory that a kernel needs, and its PTX, for each number of channels and kind of GPU."""
    settings = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    settings.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", SCRIPT, name, json.dumps(cases)]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_the_largest_number_is_read_four_at_a_time_and_written_once(tmp_path):
    ((_, ptx),) = compiled("top_kernel", [(16, 90)], tmp_path)
    assert len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)) >= 8
    assert len(re.findall(r"(?:atom|red)\.\S*global\S*\.max", ptx)) == 1


def test_copies_are_written_wide(tmp_path):
    ((_, ptx),) = compiled("pack_kernel", [(16, 90)], tmp_path)
    assert re.findall(r"st\.global\.v4\.b32", ptx)


@pytest.mark.parametrize("name", ["multiply_kernel", "to_weight_kernel"])
def test_tensor_cores_are_fed_by_wide_copies(name, tmp_path):
    cases = list(itertools.product([80, 16], [80, 90]))
    for (_, capability), (room, ptx) in zip(cases, compiled(name, cases, tmp_path), strict=True):
        assert room <= {80: 99, 90: 227}[capability] * 1024, "what small GPUs of a generation have"
        assert ("wgmma.mma_async" if capability == 90 else "mma.sync") in ptx
        copies = re.findall(r"cp\.async\.c[ga]\.shared\.global \[.*?\], \[.*?\], (0x\w+)", ptx)
        wide = copies.count("0x10")
        assert wide > 0
        assert len(copies) - wide <= len(copies) // 4, "sixteen bytes at a time, but for the smallest tiles"
        assert capability < 90 or len(re.findall(r"\bld\.global", ptx)) <= 8, "nothing else is read in the loop"
