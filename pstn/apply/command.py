"""Running a command on somebody's data: what goes wrong is said in a line, with an exit status."""

from __future__ import annotations

import errno
import os
import signal
import sys

from rich.console import Console
from rich.markup import escape

from pstn.apply.settings import Doctor, Fit, Predict, Report, Serve
from pstn.apply.wrong import BadInput

Settings = Fit | Predict | Report | Doctor | Serve


def run(settings: Settings, console: Console, command: str) -> int:
    """Do what a command asks for.

    Arguments:
        settings: The command's settings.
        console: Where to print.
        command: The command that was given, to be given again.

    Returns:
        The exit status: 0; 1 for an error, or what the doctor found; 2 for what cannot be used as it was given; 130
        after Ctrl-C.
    """
    from pstn.train import CheckpointError

    try:
        status = _act(settings, console)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt as stop:
        if isinstance(settings, Fit):
            how = (
                "Stopped at once: the last checkpoint stands" if "at once" in str(stop) else "Stopped. Nothing is lost"
            )
            words = f"\n{how}; to go on, run the same command again:\n  {command}"
            Console(stderr=True).print(words, markup=False, highlight=False, soft_wrap=True)
        return 130
    except BrokenPipeError:  # whoever read along, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (BadInput, CheckpointError) as error:
        return _fail(str(error), 2)
    except OSError as error:
        full = error.errno == errno.ENOSPC
        return _fail(f"{error}; make room and run the same command again" if full else str(error), 1)
    except (ImportError, FloatingPointError) as error:
        return _fail(str(error), 1)


def _act(settings: Settings, console: Console) -> int:
    if isinstance(settings, Fit):
        from pstn.apply.fit import fit

        fit(settings, console)
    elif isinstance(settings, Predict):
        from pstn.apply.predict import predict

        predict(settings, console)
    elif isinstance(settings, Report):
        from pstn.apply.report import report

        report(settings, console)
    elif isinstance(settings, Doctor):
        from pstn.apply.doctor import doctor

        return doctor(settings, console)
    else:
        from pstn.serve.server import serve

        serve(settings, console)
    return 0


def _fail(message: str, status: int) -> int:
    Console(stderr=True).print(f"[bold red]error:[/bold red] {escape(message)}", highlight=False, soft_wrap=True)
    return status
