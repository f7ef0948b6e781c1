"""The idx reader: every dtype there and back, and every way to be damaged."""

import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pstn.data import read_idx

CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def as_idx(array):
    header = bytes([0, 0, CODES[array.dtype.name], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@settings(max_examples=40)
@given(st.sampled_from(sorted(CODES)), st.lists(st.integers(1, 4), max_size=4), st.booleans())
def test_there_and_back(tmp_path_factory, dtype, shape, packed):
    array = np.random.default_rng(0).normal(0, 50, shape).astype(dtype)
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(gzip.compress(as_idx(array)) if packed else as_idx(array))
    found = read_idx(path)
    assert found.dtype == getattr(torch, dtype)
    assert tuple(found.shape) == tuple(shape)
    assert np.array_equal(found.numpy(), array)


GOOD = as_idx(np.arange(12, dtype=np.int16).reshape(3, 4))
#: No time of day in it: the cases are named after their bytes, and every worker must give them the same names.
PACKED = gzip.compress(GOOD, mtime=0)


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (GOOD[:-1], "is truncated: 35 bytes, 36 expected"),
        (GOOD + b"x", "has trailing bytes: 37 bytes, 36 expected"),
        (GOOD[:9], "ends within the 2 sizes of its header"),
        (b"", "starts with nothing"),
        (b"\0\0\x08", "an idx file starts with"),
        (b"\x89PNG" + GOOD, "starts with 89 50 4e 47"),
        (b"\0\0\x0a\x01" + GOOD[4:], "an idx file starts with"),
        (PACKED[:-9], "is truncated or damaged"),
        (PACKED[:-6] + b"123456", "is truncated or damaged"),
        (PACKED[:12] + b"\xff" * 20, "is truncated or damaged"),
    ],
)
def test_damaged(tmp_path, raw, match):
    path = tmp_path / "file.gz"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=match) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.idx does not exist"):
        read_idx(tmp_path / "nowhere.idx")
