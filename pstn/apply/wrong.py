"""What somebody gave that cannot be used: one line for them, and no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class BadInput(ValueError):
    """Data, a file or a folder that is not what was asked for; its words are meant for who gave it."""


@contextmanager
def given() -> Iterator[None]:
    """Errors while reading what was given are about what was given."""
    try:
        yield
    except BadInput:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(" ".join(str(error).split())) from error
