"""A step of all networks as one kernel, in which each network has multiprocessors to itself: one, or a few.

A step of a small network is some hundred operations of a microsecond each, if that: as kernels of their own, most of
their time is beginning and ending. Here they are parts of one kernel, from picking the batch to the optimizer, behind
one another in one program a network. A program fills one of a GPU's multiprocessors, of which there are more than a
hundred, and as many networks train side by side. Where a batch has pictures enough, several programs share them and
meet where their means are taken (:mod:`.team`): what each works on then fits its multiprocessor's own memory.

A step is recorded as the operations it comes to (:mod:`.step`), and these are written as a kernel in CUDA C++
(:mod:`.translate`, in the words of ``device.cuh``), which torch has compiled: what is computed entry by entry goes
where it is needed (:mod:`.entries`), sums and products are stages of their own (:mod:`.totals`, :mod:`.products`), with
scratch memory between them that is used again as soon as it can be, and barriers only where one stage reads what
another has just written (:mod:`.writer`). The same text is C++ for a CPU, by which it is tested. On a GPU, one step of
it is compared with torch's before it is used (:func:`unlike`). What has no translation trains as other fleets do.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.fx import GraphModule

from pstn import kernels
from pstn.train.fleet.optimizer import State
from pstn.train.fleet.resident import team
from pstn.train.fleet.resident.kernel import Kernel, most_blocks, shared_memory
from pstn.train.fleet.resident.step import Array, recorded, written
from pstn.train.fleet.resident.values import Unsupported

if TYPE_CHECKING:
    from pstn.train.fleet.fleet import Fleet
    from pstn.train.fleet.lane import Lane

Recorded = tuple[GraphModule, list[Array]]
__all__ = ["resident", "small", "unlike"]

#: The most products of a step that a multiprocessor is to do, some 15 microseconds a million; and the most numbers that
#: go in times weights for a step to be tried at all, which takes it twice on a CPU.
PRODUCTS, TRIED = 30_000_000, 4_000_000_000
#: How far losses and gradients of a step may be from torch's, as a part of them: rounded factors are nearer than that.
LOSSES, GRADIENTS = 0.02, 0.1
#: How far a step by parts of a batch may be from the step: as a part of each array, and of all gradients.
ADDED, ADDED_OF_ALL = 1e-3, 2e-5


def small(fleet: Fleet, size: int) -> bool:
    """Whether the networks of a fleet are small enough to try, with batches of so many examples."""
    numbers = size * fleet.config.samples * fleet.pool.x[0].numel()
    return numbers * fleet.stack.weights.shape[1] <= TRIED


def resident(fleet: Fleet, lane: Lane, *, together: bool = True) -> Kernel | None:
    """A step of a fleet as one kernel; None where it cannot be, or would better not.

    Arguments:
        fleet: The fleet.
        lane: Where the step finds its batch, settings and noise: those of the first step are there.
        together: Whether several multiprocessors may have a network in common.
    """
    pool = fleet.pool
    at_hand = fleet.device.type in kernels._DEVICES and hasattr(torch.cuda, "_compile_kernel")
    if not at_hand or fleet.mixed or pool.x.dtype != torch.float32 or pool.y.dtype != torch.int64:
        return None
    size, shared = lane.index.shape[2], shared_memory(fleet.device)
    blocks = team.team(size, fleet.config.samples, most_blocks(fleet.device))
    if not together or fleet.stack.unit.step.loss is not None:  # which may be of the examples together
        blocks = 1
    if not shared or not small(fleet, size):
        return None
    try:
        noise = [request.shape for request in lane.requests]
        step = recorded(fleet, size, noise)
        parts = _by_parts(fleet, lane, step, noise, blocks) if blocks > 1 else None
        text = written(*(parts or step), size, shared, blocks if parts else 1)
    except Unsupported:
        return None
    except Exception as error:  # of torch's recorders, by a network that they cannot follow
        warnings.warn(f"this fleet trains without a kernel of its own, which is not to be had: {error}", stacklevel=2)
        return None
    return Kernel(text, fleet, lane) if text.products <= PRODUCTS else None


def _by_parts(
    fleet: Fleet, lane: Lane, whole: Recorded, noise: Sequence[tuple[int, ...]], blocks: int
) -> Recorded | None:
    """A step by so many parts of its batch; None where it cannot be had, or examples have to do with one another."""
    try:
        parts = recorded(fleet, lane.index.shape[2], noise, blocks)
        return parts if _adds_up(fleet, lane, whole, parts, blocks) else None
    except (Unsupported, RuntimeError, ValueError):
        return None


def _adds_up(fleet: Fleet, lane: Lane, whole: Recorded, parts: Recorded, blocks: int) -> bool:
    """Whether the first network's first step by parts of its batch is its step, to rounding, by torch's operations."""
    state = fleet.state
    rows = lane.index[0, 0]
    given = [
        state.weights[:1],
        state.alive[:1],
        state.sums[:1],
        lane.knobs[0, :1],
        fleet.pool.x[rows],
        fleet.pool.y[rows],
    ]
    given += [value[:1] for value in (*state.slots.values(), *state.still.values())]
    given = [value.cpu() for value in (*given, *(noise[0, 0] for noise in lane.noise))]
    own = len(rows) // blocks

    def part(array: Array, value: Tensor, rank: int) -> Tensor:
        if array.name in "xy":
            return value[rank * own : (rank + 1) * own].clone()
        return (value if array.own is None else array.own[1].cut(value, rank)).clone()

    together = [value.clone() for value in given]
    apart = [[part(a, v, rank) for a, v in zip(parts[1], given, strict=True)] for rank in range(blocks)]
    team.lockstep(whole[0], [together])
    team.lockstep(parts[0], apart)
    body = ~fleet.stack.localizer.cpu()  # the others' gradients may hang on a rounding, as in `unlike`
    for array, wanted, found in zip(whole[1], together, apart[0], strict=True):
        if array.name.startswith(("still", "sums")):
            sizes = [wanted.numel()]
        elif array.name.startswith("slot"):  # a gradient of few numbers is not to be lost among the others
            sizes = [int(each.sum()) for each in body.split(fleet.stack.sizes)]
            wanted, found = wanted[:, body], found[:, body]
        else:
            continue
        apart_by, size = (found - wanted).double().flatten(), wanted.double().flatten()
        near = ADDED_OF_ALL * size.norm()
        for far, own in zip(apart_by.split(sizes), size.split(sizes), strict=True):
            if not bool(far.norm() <= ADDED * own.norm() + near):
                return False
    return True


def unlike(found: State, wanted: State, body: Tensor) -> str:
    """How what a step came to differs from what torch's step came to, in words; empty if it does not.

    Gradients are compared by what the optimizer remembers of them. Those of a localizer are not: where a picture is
    sampled at its pixels' middles, as at the start, it has two slopes, and a rounding decides between them.

    Arguments:
        found: What came of the step.
        wanted: What came of torch's.
        body: Which weights are not a localizer's, (P,).
    """
    if not torch.equal(found.alive, wanted.alive):
        return "which finds other networks to diverge than torch does"
    sums, right = found.sums[wanted.alive], wanted.sums[wanted.alive]
    if not torch.allclose(sums, right, rtol=LOSSES, atol=LOSSES):
        return f"whose losses are not torch's: {sums.tolist()} instead of {right.tolist()}"
    pairs = [(found.slots[name][:, body], slot[:, body]) for name, slot in wanted.slots.items()]
    pairs += [(found.still[name], value) for name, value in wanted.still.items()]
    for ours, theirs in pairs:
        apart, size = (each[wanted.alive].double().norm() for each in (ours - theirs, theirs))
        if not bool(apart <= GRADIENTS * size):
            return f"whose gradients or statistics are {float(apart / size):.2g} times themselves from torch's"
    return ""
