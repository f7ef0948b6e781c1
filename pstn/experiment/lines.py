"""Progress where there is no terminal: a line now and then for each thing under way."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

#: Seconds between two lines about the same thing.
EVERY = 60.0


@dataclass
class _Line:
    text: str
    total: float | None
    completed: float
    first: float  # how far it was when it was begun here
    begun: float
    due: float


class Lines(Progress):
    """A display that writes a line a minute for each of its tasks, for logs.

    Arguments:
        console: Where to.
        every: Seconds between two lines about a task.
    """

    def __init__(self, console: Console, every: float = EVERY) -> None:
        super().__init__(console=console, disable=True)
        self.every = every
        self.lines: dict[TaskID, _Line] = {}

    def add_task(  # type: ignore[override]
        self, description: str, total: float | None = None, completed: float = 0, **_: Any
    ) -> TaskID:
        """Begin with a task, about which nothing is said at first."""
        number, now = TaskID(max(self.lines, default=-1) + 1), time.monotonic()
        self.lines[number] = _Line(description, total, completed, completed, now, now + self.every)
        return number

    def update(self, task_id: TaskID, *, refresh: bool = False, **values: Any) -> None:
        """Say how far it is, if it is time to."""
        line, now = self.lines[task_id], time.monotonic()
        line.total = values.get("total", line.total)
        line.completed = values.get("completed", line.completed)
        if now < line.due or line.completed == line.first:
            return
        line.due = now + self.every
        each = (now - line.begun) / (line.completed - line.first)
        left = "" if not line.total else f" of {line.total:.0f}, {each * (line.total - line.completed):.0f} s left"
        words = f"; {status}" if (status := values.get("status")) else ""
        self.console.print(f"{line.text}: {line.completed:.0f}{left}{words}", markup=False, highlight=False)

    def remove_task(self, task_id: TaskID) -> None:
        """Be done with a task."""
        self.lines.pop(task_id, None)
