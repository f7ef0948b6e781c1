"""For all tests: Triton's kernels are interpreted, so that they run without a GPU, and every test draws the same."""

import os
import signal

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import pytest
import torch

#: Folders have one each: as modules to look for examples in, which they have not, they would be taken for one another.
collect_ignore_glob = ["*conftest.py"]

# How long a test takes says how busy the machine is.
hypothesis.settings.register_profile("pstn", deadline=None)
hypothesis.settings.load_profile("pstn")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A test that fails, fails again."""
    torch.manual_seed(0)
