"""Progress in a log: a line now and then."""

import io

import pytest
from rich.console import Console

from pstn.experiment import lines
from pstn.experiment.engine import run
from pstn.experiment.lines import Lines


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(lines.time, "monotonic", lambda: now[0])
    return now


def test_a_line_a_minute_for_each(clock):
    text = io.StringIO()
    shown = Lines(Console(file=text, width=200))
    with shown:
        one = shown.add_task("five networks", total=100, completed=20, status="")
        other = shown.add_task("no end in sight", total=None, status="")
        clock[0] += 30
        shown.update(one, completed=30, status="loss 2")
        assert not text.getvalue()
        clock[0] += 30
        shown.update(other, completed=0)
        shown.update(one, completed=50, status="loss 1", refresh=True)
        shown.update(one, completed=51, status="loss 1")
        clock[0] += 60
        shown.update(other, completed=7)
        shown.remove_task(one)
        shown.remove_task(one)
    assert text.getvalue().splitlines() == ["five networks: 50 of 100, 100 s left; loss 1", "no end in sight: 7"]


def test_fleets_of_other_processes_show_in_a_log(table, tmp_path, monkeypatch):
    monkeypatch.setattr(lines.Lines.__init__, "__defaults__", (0.0,))
    text = io.StringIO()
    run(table, jobs=2, device="cpu", runs=tmp_path / "runs", results=tmp_path, console=Console(file=text, width=200))
    assert " × train 0: 6 of 6, 0 s left" in text.getvalue()
    assert "done (" in text.getvalue()
