"""The progress of a run on a terminal; silent anywhere else."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Display:
    """One line: epoch, bar, loss, validation accuracy, time spent and left.

    Arguments:
        progress: Whether to show anything, or a display of several runs to add this one's line to.
        total: How many steps the run has.
        done: How many it has behind it.
        label: What the line is called.
    """

    def __init__(self, progress: bool | Progress, total: int, done: int = 0, label: str = "train") -> None:
        self.shared = isinstance(progress, Progress)
        self.progress: Progress | None = None
        if isinstance(progress, Progress):
            self.progress = progress
        elif progress:
            console = Console(stderr=True)
            if console.is_terminal or console.is_jupyter:
                # Refreshed by the loop, not by a thread: on a single core a thread costs training time.
                self.progress = Progress(
                    TextColumn("{task.description}"),
                    BarColumn(),
                    TextColumn("{task.fields[status]}"),
                    TimeElapsedColumn(),
                    TextColumn("left"),
                    TimeRemainingColumn(),
                    console=console,
                    auto_refresh=False,
                )
                self.progress.start()
        if self.progress is not None:
            self.task: TaskID = self.progress.add_task(label, total=total, completed=done, status="")

    def show(self, step: int, status: str, total: int | None = None) -> None:
        """Move the bar to a step, of so many if their number has changed, and set the words beside it."""
        changed: dict[str, Any] = {} if total is None else {"total": total}
        if self.progress is not None:
            self.progress.update(self.task, completed=step, status=status, refresh=not self.shared, **changed)

    def close(self) -> None:
        """Stop the display, or leave a shared one to its owner."""
        if self.progress is None:
            return
        if self.shared:
            self.progress.remove_task(self.task)
        else:
            self.progress.stop()
