"""Kernels run in Triton's interpreter, on CPU tensors."""

import pytest
import triton.language as tl
from triton.runtime import interpreter

from pstn import kernels

assert isinstance(tl.cdiv, interpreter.InterpretedFunction), "Triton was imported before TRITON_INTERPRET was set"

_patch_tensor = interpreter._patch_lang_tensor


def _patch(tensor, scope):
    """Triton 3.6 makes whole numbers of arrays with one entry by int(), which numpy 2.4 forbids."""
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Send the tensors of the CPU to the kernels."""
    monkeypatch.setattr(kernels, "_DEVICES", frozenset({"cpu"}))
