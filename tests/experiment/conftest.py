"""The small table, run once; each test gets a copy of what the run left."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from pstn.experiment import find, run

TRIALS = Path(__file__).parent / "trials"
sys.path.append(str(TRIALS.parent))  # doctest collection imports the tables before anything has looked for them


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """On a CPU the last digits depend on the number of threads, and two workers of Ray have two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def table():
    return find("toy/few_digits", TRIALS)


@pytest.fixture(scope="session")
def finished(tmp_path_factory, one_thread):
    folder = tmp_path_factory.mktemp("finished")
    run(find("toy/few_digits", TRIALS), device="cpu", runs=folder / "runs", results=folder / "results")
    return folder


@pytest.fixture
def done(finished, tmp_path):
    """Folders of runs and results in which the small table is finished."""
    folder = tmp_path / "done"
    shutil.copytree(finished, folder)
    return folder
