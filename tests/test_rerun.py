"""benchmarks/rerun.py: what is stopped goes on, what was spent is summed, and what is measured is the papers'."""

import math
import sys

import pytest

from pstn.bench import BenchError
from pstn.experiment import find

COUNT = """
import sys, time, pathlib
file = pathlib.Path(sys.argv[1])
try:
    file.write_text((file.read_text() if file.exists() else "") + "x")
    time.sleep(60 if len(file.read_text()) == 1 else 0)
except KeyboardInterrupt:
    print("stopped")
"""


def test_seconds_of_all_calls_are_summed(tmp_path):
    from benchmarks.rerun import timed

    command = [sys.executable, "-c", COUNT, str(tmp_path / "calls")]
    spent, ended = timed(command, tmp_path, 1.5)
    assert (len(spent), ended) == (1, False)
    assert 1.5 <= spent[0] < 30
    more, ended = timed(command, tmp_path, 60)
    assert (more[0], len(more), ended) == (spent[0], 2, True)


def test_a_command_that_fails_is_said_and_its_seconds_count(tmp_path):
    from benchmarks.rerun import timed

    with pytest.raises(BenchError, match="ended with status 3"):
        timed([sys.executable, "-c", "raise SystemExit(3)"], tmp_path, 60)
    spent, _ = timed([sys.executable, "-c", ""], tmp_path, 60)
    assert len(spent) == 2


def test_what_is_measured_are_the_papers_rows_for_a_part_of_their_epochs(tmp_path):
    from benchmarks.rerun import TABLES, written

    folder = written(tmp_path / "tables", 4)
    for name in TABLES:
        whole, part = find(name), find(name, folder)
        assert {row.name for row in part.rows} >= {
            row.name for row in whole.rows if row.column == "published" and not row.name.endswith("-short")
        }
        for row in part.every():
            long = whole.row(row.name)
            assert row.train.epochs == -(-long.train.epochs // 4)
            assert row.train.schedule == long.train.schedule
            assert row.train.step_size == long.train.step_size / 4
            assert row.further == 0
            assert row.folds == (1 if any(math.isnan(spread) for _, spread in row.paper.values()) else long.folds)
    placed = find("pstn22/placement", folder)
    assert len({id(row.needs) for row in placed.rows if row.needs}) == 1, "they share a classifier"
    assert not any(row.name.startswith(("learned", "normed")) for row in find("pstn22/table2", folder).rows)
