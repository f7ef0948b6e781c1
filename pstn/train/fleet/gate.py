"""Who may give a GPU work: all fleets at once, or one that is being prepared and has it to itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Lets many threads through together, or one alone.

    A kernel's first use loads it, which waits until the device has nothing to do. As long as other fleets keep it busy,
    that may take a minute for each kernel; and whoever holds a lock meanwhile keeps all others waiting too.

    Example:
        >>> gate = Gate()
        >>> with gate.together(), gate.together():
        ...     gate.inside
        2
        >>> with gate.alone():
        ...     gate.inside
        0
    """

    def __init__(self) -> None:
        self.inside = 0
        self._closed = False
        self._news = threading.Condition()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Go through with others; wait for one that is alone."""
        with self._news:
            self._news.wait_for(lambda: not self._closed)
            self.inside += 1
        try:
            yield
        finally:
            with self._news:
                self.inside -= 1
                self._news.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Go through when all others have, and let none through meanwhile. Not for one that is inside."""
        with self._news:
            self._news.wait_for(lambda: not self._closed)
            self._closed = True
            self._news.wait_for(lambda: not self.inside)
        try:
            yield
        finally:
            with self._news:
                self._closed = False
                self._news.notify_all()


#: That of this process.
GATE = Gate()
