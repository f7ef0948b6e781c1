"""What somebody gave that cannot be used: one line for them, and no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape


class BadInput(ValueError):
    """Data, a file or a folder that is not what was asked for; its words are meant for who gave it."""


@contextmanager
def given(path: Path | None = None) -> Iterator[None]:
    """Errors while reading what was given are about what was given; a terminal shows what is being read.

    Arguments:
        path: What may take a while to read: photographs do.
    """
    try:
        with Console(stderr=True, quiet=path is None).status(escape(f"reading {path}")):
            yield
    except BadInput:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(" ".join(str(error).split())) from error
