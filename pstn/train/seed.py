"""Randomness that depends on a seed and nothing else, and leaves no trace outside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

#: Held by the one thread that may use torch's own generators, which are the whole process's.
ALONE = threading.RLock()


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Draw from a fresh stream inside the block; afterwards torch's own goes on as if nothing had happened.

    One thread at a time is inside such a block; others wait.

    Arguments:
        seed: The stream's seed, for the CPU and the device.
        device: The device whose stream is replaced as well.

    Example:
        >>> with seeded(0):
        ...     a = torch.rand(2)
        >>> with seeded(0):
        ...     b = torch.rand(2)
        >>> bool((a == b).all())
        True
    """
    device = torch.device(device)
    with ALONE:
        before = random_state(device)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            set_random_state(before, device)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's generators, of the CPU's and the device's."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """The inverse of :func:`random_state`; a device without a stored state is left alone."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    elif device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(state["mps"])
