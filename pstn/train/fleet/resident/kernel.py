"""A step's kernel, compiled and called."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pstn.train.fleet.resident.products import WARPS
from pstn.train.fleet.resident.step import Text
from pstn.train.fleet.resident.team import TEAMS

if TYPE_CHECKING:
    from pstn.train.fleet.fleet import Fleet
    from pstn.train.fleet.lane import Lane

#: Threads of a block, which is a network.
THREADS = 32 * WARPS
#: For the compiler: quotients and roots may be off by two units of the last digit, for which they take a third as long.
OPTIONS = ("--std=c++17", "--prec-div=false", "--prec-sqrt=false")
#: The most numbers that its threads share, and what the kernel keeps of them for itself.
SHARED, OWN = 56 * 1024, 256


def shared_memory(device: torch.device) -> int:
    """How many numbers the threads of a block can share; none on a GPU without such tensor cores as kernels need."""
    if device.type != "cuda":
        return SHARED
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip or properties.major < 8:
        return 0
    return min(SHARED, getattr(properties, "shared_memory_per_block_optin", 48 * 1024) // 4 - OWN)


def most_blocks(device: torch.device) -> int:
    """How many blocks of a network can run side by side and wait for one another: one, on a GPU without clusters."""
    if device.type != "cuda":
        return max(TEAMS)
    return max(TEAMS) if not torch.version.hip and torch.cuda.get_device_properties(device).major >= 9 else 1


@cache
def source(text: str, team: int) -> str:
    """A kernel with what it is written in, for so many blocks a network."""
    files = ("device.cuh", "cpab.cuh") if "cpab::" in text else ("device.cuh",)
    words = "\n".join(Path(__file__).with_name(file).read_text() for file in files)
    return f"#define THREADS {THREADS}\n#define TEAM {team}\n{words}\n{text}"


@cache
def compiled(text: str, shared: int, team: int) -> Any:
    """The kernel of a text, to be called with a grid, a block, arguments, and so many bytes of shared memory."""
    kernel = torch.cuda._compile_kernel(source(text, team), "step", nvcc_options=list(OPTIONS))
    kernel.set_shared_memory_config(shared)
    return kernel


class Kernel:
    """A step of all networks of a fleet, one block of threads a network.

    Arguments:
        text: The step.
        fleet: The fleet.
        lane: Where the step finds its batch, settings and noise.
    """

    def __init__(self, text: Text, fleet: Fleet, lane: Lane) -> None:
        self.text, self.count = text, fleet.stack.count
        self.blocks = self.count * text.team
        state = fleet.state
        given: dict[str, Tensor] = {"weights": state.weights, "alive": state.alive, "sums": state.sums}
        given |= {"knobs": lane.knobs}
        for stem, values in (("slot", state.slots.values()), ("still", state.still.values()), ("noise", lane.noise)):
            given |= {f"{stem}{n}": value for n, value in enumerate(values)}
        pool = (fleet.pool.x.contiguous(), fleet.pool.y.contiguous())
        self.arguments = [
            lane.cursor, self.count, lane.capacity, *pool, lane.index, *(given[name] for name in text.arrays),
            text.constants.to(fleet.device), torch.empty(max(1, self.blocks * text.memory), device=fleet.device),
        ]  # fmt: skip
        assert all(value.is_contiguous() for value in self.arguments if isinstance(value, Tensor))

    def __call__(self) -> None:
        """Take the step."""
        shared = 4 * self.text.shared
        compiled(self.text.source, shared, self.text.team)((self.blocks, 1, 1), (THREADS, 1, 1), self.arguments, shared)
