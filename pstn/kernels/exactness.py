"""How exact the products are that stand in for convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def as_convolved() -> Iterator[None]:
    """Inside, matrix products are as exact as convolutions: in TF32 where torch lets cuDNN use it, as it is by default.

    Products that stand in for convolutions are not to be slower than these, and need not be more exact. The setting is
    the whole process's, and what is recorded keeps it.
    """
    before = torch.get_float32_matmul_precision()
    if before == "highest" and torch.backends.cudnn.allow_tf32:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
