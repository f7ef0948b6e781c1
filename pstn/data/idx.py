"""The idx format of MNIST: a magic number, the sizes, the values; big-endian, often packed with gzip."""

from __future__ import annotations

import math
import struct

import numpy as np
import torch
from torch import Tensor

from pstn.data.files import StrPath, read_bytes

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: StrPath) -> Tensor:
    """The array in an idx or idx.gz file, in its own dtype and shape.

    Arguments:
        path: A file that starts with 0, 0, the code of a dtype, the number of axes, and one 32-bit size an axis.

    Returns:
        A tensor of uint8, int8, int16, int32, float32 or float64.

    References:
        Y. LeCun, C. Cortes and C. Burges, The MNIST database of handwritten digits, 1998.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "labels"
        >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
        >>> read_idx(file)
        tensor([7, 2, 1], dtype=torch.uint8)
    """
    raw = read_bytes(path)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _TYPES:
        raise ValueError(f"{path} starts with {raw[:4].hex(' ') or 'nothing'}; an idx file starts with 00 00 08 to 0e")
    dtype, axes = np.dtype(_TYPES[raw[2]]), raw[3]
    start = 4 + 4 * axes
    if len(raw) < start:
        raise ValueError(f"{path} is truncated: it ends within the {axes} sizes of its header; fetch it again")
    shape = struct.unpack(f">{axes}I", raw[4:start])
    expected = start + math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        what = "is truncated" if len(raw) < expected else "has trailing bytes"
        raise ValueError(f"{path} {what}: {len(raw)} bytes, {expected} expected for shape {shape}; fetch it again")
    values = np.frombuffer(raw, dtype, offset=start).reshape(shape)
    return torch.from_numpy(values.astype(dtype.newbyteorder("=")))
