"""Who may give a GPU work: fleets that train, by turns; fleets that get ready to; or one thread alone."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

#: Fleets whose steps are short, which wait for the device between two kernels, and fleets whose steps fill it.
Kind = Literal["light", "heavy"]


class Gate:
    """Lets threads through that do not disturb each other, and no others.

    A kernel's first use loads it, which waits until the device has nothing to do: while other fleets train, that may
    take a minute for each kernel. So those that train pause as long as others get ready.

    The many small kernels of a light step would each wait for the large ones of heavy steps, and take many times as
    long. So light fleets train together, or heavy ones do; where there are both, they take turns.

    Arguments:
        turn: How long one kind's turn is while the other waits, in seconds.

    Example:
        >>> gate = Gate()
        >>> with gate.training("light"), gate.step("light"), gate.step("light"):
        ...     gate.inside
        2
        >>> with gate.alone():
        ...     gate.inside
        0
    """

    def __init__(self, turn: float = 4.0) -> None:
        self.turn = turn
        self._steps: Counter[Kind] = Counter()
        self._closed = False
        self._preparing = 0  # those that get ready or wait to
        self._ready = 0  # those of them that are inside
        self._present: Counter[Kind] = Counter()
        self._whose: Kind = "light"
        self._since = 0.0
        self._news = threading.Condition()

    @property
    def inside(self) -> int:
        """How many are taking steps."""
        return self._steps.total()

    @contextmanager
    def training(self, kind: Kind) -> Iterator[None]:
        """Around all of a fleet's training: it counts when turns are taken."""
        with self._news:
            self._present[kind] += 1
        try:
            yield
        finally:
            with self._news:
                self._present[kind] -= 1
                self._news.notify_all()

    @contextmanager
    def step(self, kind: Kind) -> Iterator[None]:
        """Around some steps of a fleet that trains."""
        with self._news:
            while not self._may_step(kind):
                self._news.wait(self.turn / 10)  # a turn may end without news
            self._steps[kind] += 1
        try:
            yield
        finally:
            with self._news:
                self._steps[kind] -= 1
                self._news.notify_all()

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Around what loads kernels; several may at once."""
        with self._news:
            self._preparing += 1
            self._news.wait_for(lambda: not self._closed and not self.inside)
            self._ready += 1
        try:
            yield
        finally:
            with self._news:
                self._preparing -= 1
                self._ready -= 1
                self._news.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Around what nobody is to disturb. Not for one that is inside."""
        with self._news:
            self._news.wait_for(lambda: not self._closed)
            self._closed = True
            self._news.wait_for(lambda: not self.inside and not self._ready)
        try:
            yield
        finally:
            with self._news:
                self._closed = False
                self._news.notify_all()

    def _may_step(self, kind: Kind) -> bool:
        if self._closed or self._preparing:
            return False
        other: Kind = "heavy" if kind == "light" else "light"
        if not self._present[other]:
            return True
        now = time.monotonic()
        if now - self._since >= self.turn:
            self._whose, self._since = (other if self._whose == kind else kind), now
            self._news.notify_all()
        return self._whose == kind and not self._steps[other]


#: That of this process.
GATE = Gate()
