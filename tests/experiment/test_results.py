"""The file of results survives what can happen to it."""

import errno
import json
import os

import pytest

from pstn.experiment import Results, ResultsError

RECORDS = [{"key": "a", "x": 1}, {"key": "b", "x": [2.5, "σ"]}]


def test_a_line_cut_anywhere_costs_that_line_alone(tmp_path):
    path = tmp_path / "paper" / "table.jsonl"
    Results(path).add(RECORDS)
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        found = Results(path)
        kept = end == len(whole) - 1  # only the newline is gone
        assert list(found.records) == (["a", "b"] if kept else ["a"])
        found.add([{"key": "c"}])
        again = [json.loads(line)["key"] for line in path.read_text().splitlines()]
        assert again == (["a", "b", "c"] if kept else ["a", "c"])


def test_reading_changes_nothing(tmp_path):
    path = tmp_path / "table.jsonl"
    path.write_text('{"key": "a"}\n{"key": ')
    Results(path)
    assert path.read_text() == '{"key": "a"}\n{"key": '


def test_the_last_line_of_a_key_counts(tmp_path):
    path = tmp_path / "table.jsonl"
    Results(path).add([{"key": "a", "test": None}])
    Results(path).add([{"key": "a", "test": 1.0}])
    assert Results(path).records == {"a": {"key": "a", "test": 1.0}}


def test_a_file_cut_in_its_first_line_starts_over(tmp_path):
    path = tmp_path / "table.jsonl"
    path.write_text('{"ke')
    Results(path).add(RECORDS)
    assert list(Results(path).records) == ["a", "b"]


@pytest.mark.parametrize("line", ["{", "[]", '{"row": "a"}', ""])
def test_a_damaged_line_in_the_middle_is_named(tmp_path, line):
    path = tmp_path / "table.jsonl"
    path.write_text(f'{{"key": "a"}}\n{line}\n{{"key": "b"}}\n')
    with pytest.raises(ResultsError, match=r"line 2 of .*table\.jsonl is no record"):
        Results(path)


def keys(path):
    return [json.loads(line)["key"] for line in path.read_text().splitlines()]


def test_two_runs_that_find_half_a_line_keep_what_the_other_adds(tmp_path):
    path = tmp_path / "table.jsonl"
    path.write_text('{"key": "a"}\n{"key": "b')
    one, other = Results(path), Results(path)
    other.add([{"key": "c"}])
    one.add([{"key": "d"}])
    assert keys(path) == ["a", "c", "d"]


def test_a_line_that_another_run_was_writing_is_kept(tmp_path):
    path = tmp_path / "table.jsonl"
    path.write_text('{"key": "a"}\n{"key": "b", ')
    found = Results(path)
    with open(path, "a") as file:
        file.write('"x": 1}\n')
    found.add([{"key": "c"}])
    assert keys(path) == ["a", "b", "c"]


def test_a_full_disk_leaves_a_file_that_can_be_added_to(tmp_path, monkeypatch):
    path = tmp_path / "table.jsonl"
    results, real = Results(path), os.write
    results.add(RECORDS[:1])

    def write(file, data):
        if len(data) < 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:-8])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space left"):
            results.add(RECORDS[1:])
    results.add([{"key": "c"}])
    assert keys(path) == ["a", "c"] == list(Results(path).records)
