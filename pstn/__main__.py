"""The command line: ``pstn fit`` and its kin for own data, ``demo``, ``reproduce``, ``bench``, ``info``."""

from __future__ import annotations

import io
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape

from pstn._version import __version__
from pstn.apply.settings import Doctor, Fit, Predict, Report, Serve
from pstn.bench import Bench
from pstn.demo.settings import Demo
from pstn.experiment.settings import Reproduce

# Everything that takes long to import is imported where a command needs it: asking for help must not wait.


@dataclass(frozen=True)
class Info:
    """Show versions, devices, and which data sets are at hand."""


Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Info, tyro.conf.subcommand("info")]
    | Annotated[Fit, tyro.conf.subcommand("fit")]
    | Annotated[Predict, tyro.conf.subcommand("predict")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    | Annotated[Serve, tyro.conf.subcommand("serve")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
)
DESCRIPTION = """Spatial transformers that know what they don't know.

pstn --version prints the version; pstn COMMAND --help explains a command."""


def main(args: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 0, 1 for an error, 2 for a wrong command line, 130 after Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # names of files may be in any encoding, and terminals know not every sign: that is no reason to stop
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(args)
    except KeyboardInterrupt:  # before a command had begun
        return 130
    except BrokenPipeError:  # whoever read the output (``pstn --help | head``) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(args: Sequence[str] | None) -> int:
    args = list(sys.argv[1:] if args is None else args)
    if args in (["--version"], ["-V"]):
        print(f"pstn {__version__}")
        return 0
    chosen: Fit | Predict | Report | Doctor | Serve | Demo | Info | Reproduce | Bench = tyro.cli(
        Command,
        prog="pstn",
        description=DESCRIPTION,
        args=args or ["--help"],
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
    )
    if isinstance(chosen, Fit | Predict | Report | Doctor | Serve):
        from pstn.apply.command import run

        return run(chosen, _console(), shlex.join(["pstn", *args]))
    if isinstance(chosen, Info):
        return info()
    if isinstance(chosen, Bench):
        return bench(chosen, shlex.join(["pstn", *args]))
    if isinstance(chosen, Reproduce):
        return reproduce(chosen, shlex.join(["pstn", *args]))
    return demo(chosen, shlex.join(["pstn", *args]))


def demo(settings: Demo, command: str) -> int:
    """Run the demonstration."""
    from concurrent.futures import BrokenExecutor

    from pstn.demo.command import run
    from pstn.train import CheckpointError

    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        run(settings, _console(), command)
    except KeyboardInterrupt:
        Console(stderr=True).print(
            f"\nStopped. Finished networks are kept in {settings.runs}; to go on, run the same command again:\n"
            f"  {command}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        return 130
    except BrokenExecutor:
        return _fail("a process that trained a network was killed, perhaps for want of memory; try fewer --workers")
    except (ImportError, OSError, CheckpointError, FloatingPointError) as error:
        return _fail(str(error))
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def reproduce(settings: Reproduce, command: str) -> int:
    """Run the papers' tables."""
    from pstn.experiment import command as tables
    from pstn.experiment.catalogue import MissingTable
    from pstn.experiment.network import DataError
    from pstn.experiment.results import ResultsError
    from pstn.train import CheckpointError

    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        tables.reproduce(settings, _console(), command)
    except KeyboardInterrupt:
        Console(stderr=True).print(
            f"\nStopped. Trained networks are in {settings.runs}; to go on, run the same command again:\n  {command}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        return 130
    except (ImportError, OSError, DataError, MissingTable, CheckpointError, ResultsError) as error:
        return _fail(str(error))
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def bench(settings: Bench, command: str) -> int:
    """Run benchmarks."""
    from pstn.bench import BenchError, run

    try:
        return run(settings, _console(), command)
    except KeyboardInterrupt:
        return 130
    except (BenchError, ImportError, OSError) as error:
        return _fail(str(error))


def info() -> int:
    """Print versions, devices and data."""
    import torch

    from pstn.data import available
    from pstn.demo.results import surroundings
    from pstn.report.table import Column, Table

    console = _console()
    found = surroundings()
    console.print(", ".join(f"{name} {number}" for name, number in found["versions"].items()), highlight=False)
    devices = [f"cpu ({torch.get_num_threads()} threads)"]
    devices += [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    console.print("devices: " + ", ".join(devices), highlight=False)
    columns = [Column("data set", "left"), Column("splits", "left"), Column("where", "left")]
    rows = [[data.name, ", ".join(data.splits), str(data.folder or "")] for data in available()]
    console.print(Table(columns, rows).rich())
    console.print("Set PSTN_DATA to a folder of data sets to have more; see pstn.data.")
    return 0


def _console() -> Console:
    """The terminal as wide as it is; a file or a pipe wide enough for a table."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _fail(message: str) -> int:
    Console(stderr=True).print(f"[bold red]error:[/bold red] {escape(message)}", highlight=False, soft_wrap=True)
    return 1


def _terminated(number: int, frame: FrameType | None) -> None:
    """A SIGTERM ends the demonstration as Ctrl-C does, so that the workers are told to stop."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
