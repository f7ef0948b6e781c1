"""What a run writes down: a JSON line that says what it is, then one line an epoch."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from pstn._version import __version__
from pstn.train.checkpoint import write


class Log:
    """A file of JSON lines: the header, then a record an epoch.

    Opening it writes the header and the records so far, so a resumed run's log has every epoch once.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], records: Sequence[Mapping[str, Any]] = ()) -> None:
        write(path, "".join(json.dumps(line) + "\n" for line in (header, *records)).encode())
        self.file: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)

    def add(self, record: Mapping[str, Any]) -> None:
        """Append one record."""
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device, time and, in a checkout, the commit: what one needs to run it again."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"pstn": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        "device": f"{device.type} ({name}), {torch.get_num_threads()} threads",
        "commit": _commit(),
    }


def fingerprint(data: Any) -> dict[str, Any] | None:
    """Enough of a data set to tell it from another: name, shape, a checksum of the labels and of some inputs."""
    if data is None:
        return None
    some: Tensor = data.x[:: max(1, len(data.x) // 64)]
    crc = 0
    for tensor in (data.y, some):
        crc = zlib.crc32(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data, crc)
    return {"name": getattr(data, "name", None), "shape": list(data.x.shape), "crc32": f"{crc:08x}"}


def _commit(here: Path = Path(__file__).parent) -> str | None:
    """The commit of the code, ``-dirty`` where it has been changed since; results that it has written are no change."""
    if given := os.environ.get("PSTN_COMMIT"):  # a copy of the files without their history
        return given

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()

    written = (":(top,exclude)results", ":(top,exclude)benchmarks/results", ":(top,exclude)docs/results")
    try:
        commit = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", *written)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changed else commit
