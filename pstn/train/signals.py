"""Ctrl-C and SIGTERM, held back until the run is between two steps and its state can be written."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, ClassVar


class Signals:
    """Remembers a SIGINT or SIGTERM in ``received`` instead of raising it; a second one is raised at once.

    An interrupt in the middle of an optimizer step would leave half of the weights updated. Python delivers signals to
    the main thread: in another, this knows of those that the main thread's own remembers, if there is one.
    """

    _main: ClassVar[Signals | None] = None

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._outer: Signals | None = None

    @property
    def received(self) -> signal.Signals | None:
        """The signal that came; None as long as none did."""
        return self._received or (None if self._outer is None else self._outer.received)

    def __enter__(self) -> Signals:
        self._outer = Signals._main
        if threading.current_thread() is threading.main_thread():
            Signals._main = self
            for number in (signal.SIGINT, signal.SIGTERM):
                # None is a handler that was not set from Python: it is not ours to replace. Ignored stays ignored.
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        if Signals._main is self:
            Signals._main = self._outer

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self.throw("stopped at once; the last checkpoint stands")
        self._received = signal.Signals(number)

    def throw(self, message: str) -> None:
        """Raise what the signal stands for: KeyboardInterrupt, or SystemExit with the shell's status for SIGTERM."""
        if self.received == signal.SIGTERM:
            print(message, file=sys.stderr, flush=True)
            raise SystemExit(128 + signal.SIGTERM) from None
        raise KeyboardInterrupt(message) from None
