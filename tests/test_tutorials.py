"""Every tutorial runs, from top to bottom, in a directory of its own; what it trains, it trains briefly."""

import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from pstn.train import Train

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
TUTORIALS = sorted(path for path in FOLDER.glob("*.py") if path.name != "conftest.py")
STEPS = 60


def test_there_are_tutorials():
    assert TUTORIALS


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path, monkeypatch):
    """In this process, which has everything imported already."""
    check = Train.__post_init__

    def shortened(self):
        if self.steps is not None and self.steps > STEPS:
            object.__setattr__(self, "steps", STEPS)
        check(self)

    monkeypatch.setattr(Train, "__post_init__", shortened)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(path), "out.png"])
    plt.switch_backend("agg")
    runpy.run_path(str(path), run_name="__main__")
    plt.close("all")
    assert (tmp_path / "out.png").stat().st_size > 1000, "the tutorial wrote no figure to the path it was given"
