"""What is compiled by Numba, where that is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled by Numba; without it the function as it is, plain Python, and slow."""
    if find_spec("numba") is None:
        return function
    numba = import_module("numba")
    return numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(function)
