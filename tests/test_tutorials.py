"""Every tutorial runs, from top to bottom, in a directory of its own."""

import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
TUTORIALS = sorted(path for path in FOLDER.glob("*.py") if path.name != "conftest.py")


def test_there_are_tutorials():
    assert TUTORIALS


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path, monkeypatch):
    """In this process, which has everything imported already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(path), "out.png"])
    plt.switch_backend("agg")
    runpy.run_path(str(path), run_name="__main__")
    plt.close("all")
    assert (tmp_path / "out.png").stat().st_size > 1000, "the tutorial wrote no figure to the path it was given"
