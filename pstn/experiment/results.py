"""The file of results: one JSON line a network, appended whole, repaired when a killed run left half a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from pstn.experiment.lock import lock

Record = dict[str, Any]


class ResultsError(RuntimeError):
    """A file of results that cannot be read."""


class Results:
    """The records of a table, by their key; of several lines with one key the last counts.

    Arguments:
        path: The file; it and its folder are made with the first record.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Results(Path(folder) / "a.jsonl").add([{"key": "1", "row": "cnn"}])
        ...     Results(Path(folder) / "a.jsonl").records
        {'1': {'key': '1', 'row': 'cnn'}}
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, Record] = {}
        whole, _, rest = (path.read_bytes() if path.exists() else b"").rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
            try:
                self.records |= _keyed(line)
            except (ValueError, KeyError, TypeError) as error:
                raise ResultsError(f"line {number} of {path} is no record ({error}); restore or remove it") from error
        with suppress(ValueError, KeyError, TypeError):  # without a newline, a line may be half of one
            self.records |= _keyed(rest)

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records, each as one line that is written at once; runs that add to one file take turns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab", buffering=0) as file:
            lock(file)
            _mend(self.path, file)
            for record in records:
                line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
                while line:  # a single call but on a full disk, which then raises
                    line = line[os.write(file.fileno(), line) :]
                self.records[record["key"]] = dict(record)
            os.fsync(file)


def _keyed(line: bytes) -> dict[str, Record]:
    """The record of a line under its key; an error if it is none."""
    record = json.loads(line)
    return {record["key"]: record}


def _mend(path: Path, file: IO[bytes]) -> None:
    """End a file, open to append to, with a newline; half a line behind its last one is dropped.

    Not when the file is read: another run may be writing that line.
    """
    whole, newline, rest = path.read_bytes().rpartition(b"\n")
    if not rest:
        return
    try:
        _keyed(rest)
        file.write(b"\n")
    except (ValueError, KeyError, TypeError):
        file.truncate(len(whole) + len(newline))
