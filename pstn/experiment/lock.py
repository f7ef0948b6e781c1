"""Files that several runs may have to do with, one at a time."""

from __future__ import annotations

from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows has none: there, two runs of one table may do some work twice
    fcntl = None  # type: ignore[assignment]


def lock(file: IO[Any], wait: bool = True) -> None:
    """Have an open file to oneself until it is closed, or the process ends, however it does.

    Arguments:
        file: The file.
        wait: Whether to wait while another process has it, or else to raise ``BlockingIOError``.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
