"""Fetching a published file: checked, and whole or not at all."""

from __future__ import annotations

import hashlib
import os
import urllib.request
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from pathlib import Path

_BLOCK = 1 << 16
_TIMEOUT = 30.0


class _Refused(Exception):
    """One mirror did not give the file; the next one may."""


def fetch(urls: Sequence[str], path: Path, md5: str) -> Path:
    """Download a file from the first of several mirrors that has it, and check its md5.

    The file appears under its name only when it is complete and right. Until then it lies beside it as ``.part``, which
    is removed whatever happens, an interrupt included.

    Arguments:
        urls: Where to find the file, in the order to try.
        path: Where to put it.
        md5: What its md5 must be.

    Returns:
        The path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for url in urls:
        partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            found = _receive(url, partial)
            if found != md5:
                raise _Refused(f"the file has md5 {found}, expected {md5}")
            os.replace(partial, path)
            return path
        except _Refused as reason:
            reasons.append(f"{url}: {reason}")
        finally:
            partial.unlink(missing_ok=True)
    raise ConnectionError(
        f"could not download {path.name}: {'; '.join(reasons) or 'no mirror is known'}. Try again, or put the file at "
        f"{path} yourself"
    )


def _receive(url: str, partial: Path) -> str:
    """Write what the address holds to a file; its md5."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    digest = hashlib.md5(usedforsecurity=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(url.rpartition("/")[2], total=None)
        blocks = _blocks(url)
        try:
            with open(partial, "wb") as file:
                for block, total in blocks:
                    file.write(block)
                    digest.update(block)
                    progress.update(task, advance=len(block), total=total)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot write {partial.parent}: {error.strerror}; XDG_CACHE_HOME names another place"
            ) from error
    return digest.hexdigest()


def _blocks(url: str) -> Iterator[tuple[bytes, int | None]]:
    """What the address holds, piece by piece, with the whole's length where it is known."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            received = 0
            while block := response.read(_BLOCK):
                received += len(block)
                yield block, total
            if total is not None and received < total:
                raise _Refused(f"broke off after {received} of {total} bytes")
    except (OSError, HTTPException) as error:
        raise _Refused(str(error) or type(error).__name__) from error
