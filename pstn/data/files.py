"""Where data sets lie, and reading files that may be packed, missing or damaged."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from pathlib import Path

#: What a path may be given as.
StrPath = str | os.PathLike[str]


def cache_dir() -> Path:
    """Where downloads are kept: ``$XDG_CACHE_HOME/pstn``, or ``~/.cache/pstn``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pstn"


def roots(root: StrPath | None = None) -> tuple[Path, ...]:
    """The folders to look for data sets in: ``root``, or else ``$PSTN_DATA``, and then the cache of downloads."""
    first = root if root is not None else os.environ.get("PSTN_DATA")
    return (Path(first).expanduser(), cache_dir()) if first else (cache_dir(),)


def read_bytes(path: StrPath) -> bytes:
    """The contents of a file, unpacked if it is gzip, whatever its name."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is truncated or damaged ({error}); fetch it again") from error


def md5_of(path: StrPath) -> str:
    """The md5 of a file as it lies there, which guards against damage (not against malice)."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
