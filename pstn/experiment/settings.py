"""What can be set in ``pstn reproduce``. Nothing heavy is imported here: ``pstn --help`` reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

#: The most fleets at a time: as many processes as can share a GPU, by NVIDIA's Multi-Process Service.
JOBS = 48


@dataclass(frozen=True)
class Reproduce:
    """Run the papers' tables and compare them with what the papers report.

    Trains what results/ lacks, chooses settings on validation data, measures the chosen networks on test data, records
    every network, and prints paper against ours. After Ctrl-C, the same command goes on.
    """

    tables: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ID")] = ()
    """Which tables, as paper/table (see --list), or a whole paper; all by default."""
    list: bool = False
    """Show every table with its state: full, stand-in (other data than the paper's) or needs data."""
    rows: tuple[str, ...] = ()
    """Only these rows, by name or pattern, such as 'cnn-*'; of one table alone, 'pstn22/table2:cnn-*'."""
    quick: bool = False
    """A slice, for a first look: a few rows, 2 folds, 200 steps, 500 test examples; recorded apart."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto is cuda where there is one."""
    jobs: int = 1
    """Fleets to train at a time on this machine, a process each; on a GPU, as many as there are cores."""
    ray: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[ADDRESS]")] = None
    """Hand fleets of networks to Ray: alone, to one of this machine's own; with an address, to a cluster."""
    render: bool = False
    """Write docs/results/ from what is recorded, and train nothing."""

    results: Path = Path("results")
    """Where to record what was measured."""
    runs: Path = Path("runs")
    """Where to keep trained networks and checkpoints; networks found there are not trained again."""
    docs: Path = Path("docs/results")
    """Where to write pages with --render."""
    experiments: Path | None = None
    """The folder of tables; that of the checkout by default."""

    def __post_init__(self) -> None:
        if not 1 <= self.jobs <= JOBS:
            raise ValueError(f"--jobs is {self.jobs}; expected 1 to {JOBS}")
        if self.ray is not None and len(self.ray) > 1:
            raise ValueError(f"--ray has {len(self.ray)} addresses ({', '.join(self.ray)}); expected one or none")
