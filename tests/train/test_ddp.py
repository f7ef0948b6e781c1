"""Two processes over gloo learn what one learns from the joint batch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ddp_script import JOINT, make_model, read, train

from pstn.train import load_model

SCRIPT = Path(__file__).parent / "ddp_script.py"
#: Two ways to start: the script starts its own second process, or torchrun starts both.
LAUNCHERS = {
    "by itself": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
}


@pytest.fixture(scope="module")
def alone():
    return train(JOINT)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_end_where_one_does(launcher, alone, tmp_path):
    ran = subprocess.run(
        [*LAUNCHERS[launcher], str(SCRIPT), str(tmp_path), "2"], capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    weights, facts = alone
    ranks = [read(tmp_path / f"rank{rank}.safetensors") for rank in range(2)]
    for name, first in ranks[0][0].items():
        assert torch.equal(first, ranks[1][0][name]), f"the processes differ in {name}"
        # Another order of summation; over 15 steps of Adam rounding grows a little.
        torch.testing.assert_close(first, weights[name], rtol=1e-4, atol=2e-6)
    start = make_model().state_dict()
    assert max(float((weights[name] - start[name]).abs().max()) for name in weights) > 0.05, "nothing was learned"
    for _, theirs in ranks:
        assert theirs["steps"] == facts["steps"] == 15
        for ours, other in zip(facts["history"], theirs["history"], strict=True):
            assert other == pytest.approx(ours, rel=1e-4, abs=1e-6)
    kept = make_model()
    load_model(kept, tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(value, ranks[0][0][name]) for name, value in kept.state_dict().items())
