"""The file of results survives what can happen to it."""

import json

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
