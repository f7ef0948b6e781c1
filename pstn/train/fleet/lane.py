"""Steps of one batch size, prepared many at a time, and on a GPU replayed as one recorded graph."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.fx import GraphModule

from pstn.kernels.exactness import as_convolved
from pstn.train.fleet.noise import Request
from pstn.train.fleet.optimizer import KNOBS, State
from pstn.train.fleet.resident import resident, small, unlike

if TYPE_CHECKING:
    from pstn.train.fleet.fleet import Fleet
    from pstn.train.fleet.resident.kernel import Kernel

#: Steps that are prepared at once, of large networks and of small ones, which a GPU takes faster than it can be asked
#: for random numbers for each of many networks; and the most random numbers a network may need for them.
STEPS, SHORT_STEPS, NUMBERS = 64, 512, 2**21
#: Steps on a CPU from which it pays to write one down, which takes as long as so many lose by not being written down.
PATIENCE = 300
#: Steps on a GPU from which it pays to have the operations of one compiled into fewer, which takes half a minute.
ENDURANCE = 10_000
#: How often an operation may be compiled for other shapes; by default it is eight times, and then never again.
FLEETS = 1_000_000


class Lane:
    """Steps of one batch size: where each finds its batch, its settings and its noise.

    Everything a step reads lies in tensors that stay where they are, and a cursor on the device says which row is next:
    a step is the same sequence of operations each time, which a GPU can record once and replay without being asked for
    each of them.

    Arguments:
        fleet: Whose steps.
        size: Examples a network and step.
        requests: What a network draws in such a step.
    """

    def __init__(self, fleet: Fleet, size: int, requests: Sequence[Request]) -> None:
        self.fleet, self.requests = fleet, requests
        device, count = fleet.device, fleet.stack.count
        # Not of the number of networks: noise is drawn for so many steps at once, and must not depend on the company.
        numbers = sum(torch.Size(request.shape).numel() for request in requests)
        self.recorded = device.type == "cuda"
        steps = SHORT_STEPS if self.recorded and small(fleet, size) else STEPS
        self.capacity = max(1, min(steps, NUMBERS // max(numbers, 1)))
        self.index = torch.zeros(self.capacity, count, size, dtype=torch.int64, device=device)
        self.knobs = torch.zeros(self.capacity, count, len(KNOBS), device=device)
        recorded = requests if self.recorded else ()
        # a network's numbers lie together, so that they are drawn where they belong
        self.noise = [torch.zeros(count, self.capacity, *r.shape, dtype=r.dtype, device=device) for r in recorded]
        # How often such a step is taken in the whole run, whatever was done of it before.
        uses = fleet.total if size == fleet.config.batch_size else fleet.total // fleet.per_epoch
        self.written = self.recorded or uses >= PATIENCE
        self.compiled = self.recorded and uses >= ENDURANCE
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.operations: GraphModule | None = None  # a step, written down
        self.kernel: Kernel | None = None  # a step as one kernel, in which each network has multiprocessors
        self.graph: torch.cuda.CUDAGraph | None = None

    def fill(self, index: Tensor, knobs: Tensor) -> None:
        """Lay out the next K steps: batches (K, M, size), settings (K, M, 6), and where they are recorded, noise."""
        steps = len(index)
        self.index[:steps] = index.to(self.index.device)
        self.knobs[:steps] = knobs.to(self.knobs.device)
        self.cursor.zero_()
        for buffer, request in zip(self.noise, self.requests, strict=False):
            for rows, source in zip(buffer.unbind(), self.fleet.sources, strict=True):
                request.fill(rows[:steps], source)

    def prepare(self) -> None:
        """Record a step, if steps are to be recorded and this is the first."""
        if not self.recorded or self.graph is not None:
            return
        self.kernel = self._one_kernel()
        if self.kernel is None:
            self._write_down(None)
        with self._exact():
            self._record()

    def step(self) -> None:
        """The next step."""
        if self.graph is not None:
            self.graph.replay()
        elif self.noise:
            self._try()
        else:
            # Number by number in the order in which each network alone would draw them.
            self._step([torch.stack([request.draw(s) for s in self.fleet.sources]) for request in self.requests])

    def _batch(self) -> tuple[Tensor, Tensor]:
        pool, index = self.fleet.pool, self._next(self.index)
        x, y = (values.index_select(0, index.flatten()).unflatten(0, index.shape) for values in (pool.x, pool.y))
        return x, y

    def _next(self, buffer: Tensor, axis: int = 0) -> Tensor:
        return buffer.index_select(axis, self.cursor).squeeze(axis)

    def _inputs(self, noise: Sequence[Tensor] | None) -> tuple[Tensor, Tensor, Tensor, Sequence[Tensor]]:
        """Batch, labels, settings and noise of the next step; without noise, that which lies ready."""
        return *self._batch(), self._next(self.knobs), self._drawn() if noise is None else noise

    def _write_down(self, noise: Sequence[Tensor] | None) -> None:
        x, y, knobs, drawn = self._inputs(noise)
        try:
            self.operations = self.fleet.stack.write_down(x, y, drawn, knobs[:, 2], self.fleet.mixed, self.compiled)
        except RuntimeError as error:
            if self.recorded:
                raise
            warnings.warn(f"this fleet's steps are not written down, which is slower: {error}", stacklevel=2)
            self.written = False

    def _step(self, noise: Sequence[Tensor] | None) -> None:
        if self.kernel is not None:
            self.kernel()
            self.cursor.add_(1)
            return
        if self.written and self.operations is None:
            self._write_down(noise)
        if not self.compiled:
            self._take(noise)
            return
        try:
            with _compiling():
                self._together(noise)
        except Exception as error:
            # What the compiler refuses, and what it compiles but the device cannot run, come in the first step, which
            # is taken for its sake and then undone. Waiting for the device is no failure.
            if "synchronizing" in str(error):
                raise
            self._without_compiler(f"which failed: {error}")
            self._step(noise)

    @cached_property
    def _together(self) -> Callable[[Sequence[Tensor] | None], None]:
        """A step compiled as one, so that whatever is between its larger operations becomes few kernels."""
        return torch.compile(self._take, fullgraph=True, dynamic=False)

    def _take(self, noise: Sequence[Tensor] | None) -> None:
        self.fleet.take(*self._inputs(noise), self.operations)
        self.cursor.add_(1)

    def _one_kernel(self) -> Kernel | None:
        """A step as one kernel, if it can be one, and if what it does is what torch does."""
        kernel = resident(self.fleet, self)
        why = "" if kernel is None else self._unlike(kernel)
        if why and kernel is not None and kernel.text.team > 1:
            kernel = resident(self.fleet, self, together=False)
            why = "" if kernel is None else self._unlike(kernel)
        if why:
            warnings.warn(f"this fleet trains without a kernel of its own, {why}", stacklevel=2)
        return None if why else kernel

    def _unlike(self, kernel: Kernel) -> str:
        """How a step by a kernel is not the step, in words; empty if it is."""
        try:
            found = self._outcome(kernel)
            wanted = self._outcome(lambda: self.fleet.take(*self._inputs(None), None))
            return unlike(found, wanted, ~self.fleet.stack.localizer)
        except Exception as error:
            return f"which failed: {error}"

    def _outcome(self, step: Callable[[], None]) -> State:
        """What would come of a step."""
        with self._exact(), self._undone():
            step()
            return self.fleet.state.clone()

    def _exact(self) -> AbstractContextManager[None]:
        """Inside, matrix products that stand in for convolutions are as exact as these."""
        return as_convolved() if self.fleet.stack.multiplies else nullcontext()

    @contextmanager
    def _undone(self) -> Iterator[None]:
        """Steps that are taken inside will not have been."""
        state = [*self.fleet.state.tensors(), self.cursor]
        before = [value.clone() for value in state]
        try:
            yield
        finally:
            for value, old in zip(state, before, strict=True):
                value.copy_(old)

    def _record(self) -> None:
        """Take a few steps for the allocator and the kernels' compilers, record one, and undo them all."""
        with self._undone():
            self._record_step()

    def _record_step(self) -> None:
        fleet = self.fleet
        # Where fleets share a GPU, the many kernels of a step go before another fleet's that is one long one.
        urgent = self.kernel is None
        here, stream = torch.cuda.current_stream(fleet.device), recording_stream(fleet.device, urgent=urgent)
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            # Tried out before, since a recording that fails leaves torch's generators in disorder.
            asks = self._asks()
            if asks and self.compiled:
                self._without_compiler(f"by which a step asks the device for a number: {asks}")
                asks = self._asks()
            if asks:
                warnings.warn(
                    "this fleet trains step by step, which is slower: a step asks the device for a number to decide "
                    f"how to go on, and cannot be recorded ({asks})",
                    stacklevel=2,
                )
                self.recorded = False
        here.wait_stream(stream)
        if self.recorded:
            self.cursor.zero_()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self._try()

    def _asks(self) -> str:
        """Where a step waits for the device; empty if nowhere."""
        try:
            for guard in (nullcontext, _unasked):
                self.cursor.zero_()  # the room may be that of a single step
                with guard():
                    self._try()
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            return f"{error}, at {traceback.extract_tb(error.__traceback__)[-1].line}"
        return ""

    def _without_compiler(self, why: str) -> None:
        warnings.warn(f"this fleet trains without torch.compile, {why}", stacklevel=2)
        self.compiled, self.operations = False, None  # it was written down for the compiler

    def _try(self) -> None:
        self._step(None)

    def _drawn(self) -> list[Tensor]:
        return [self._next(buffer, 1) for buffer in self.noise]


def recording_stream(device: torch.device, *, urgent: bool = False) -> torch.cuda.Stream:
    """The stream to record on: this thread's own, if it has one, or one kept for the purpose, which may be urgent.

    Not a new one each time, and not torch's own choice. It hands out 32 streams in turn, so that a later fleet's stream
    would be that which another is recorded on; its work would be recorded with the other's, and done at each replay.
    """
    here = torch.cuda.current_stream(device)
    return here if here != torch.cuda.default_stream(device) else _aside(device, urgent)


@cache
def _aside(device: torch.device, urgent: bool) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1 if urgent else 0)


@contextmanager
def _compiling() -> Iterator[None]:
    """Inside, what is compiled may be compiled again for as many fleets as a process trains, each of its own shapes."""
    import torch._dynamo
    import torch._inductor.config

    with (
        warnings.catch_warnings(),
        torch._dynamo.config.patch(recompile_limit=FLEETS, accumulated_recompile_limit=FLEETS),
        torch._inductor.config.patch(combo_kernels=True),  # what does not wait for one another is one kernel
    ):
        # That products of float32 could be of TF32: whether they are is for the user's settings to say.
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
        yield


@contextmanager
def _unasked() -> Iterator[None]:
    """Inside, it is an error to wait for the device, for every thread of the process."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
