"""benchmarks/rerun.py: what is stopped goes on, and what was spent is summed."""

import sys

import pytest

from pstn.bench import BenchError

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
