"""The file of results: one JSON line a network, appended whole, repaired when a killed run left half a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pstn.train.checkpoint import write

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
        text = path.read_bytes() if path.exists() else b""
        whole, _, rest = text.rpartition(b"\n")
        lines = whole.split(b"\n") if whole else []
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                self.records[record["key"]] = record
            except (ValueError, KeyError, TypeError) as error:
                raise ResultsError(f"line {number} of {path} is no record ({error}); restore or remove it") from error
        # A run killed while it wrote leaves an end without a newline: half a line is dropped, a whole one kept.
        self.torn = bool(rest)
        if self.torn:
            try:
                record = json.loads(rest)
                self.records[record["key"]] = record
                self._repaired = text + b"\n"
            except (ValueError, KeyError, TypeError):
                self._repaired = whole + b"\n" if whole else b""

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records, each as one line that is written at once."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.torn:
            write(self.path, self._repaired)
            self.torn = False
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            for record in records:
                line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
                while line:  # a single call but on a full disk, which then raises
                    line = line[os.write(file, line) :]
                self.records[record["key"]] = dict(record)
            os.fsync(file)
        finally:
            os.close(file)
