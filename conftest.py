"""For all tests: Triton's kernels are interpreted, so that they run without a GPU, and every test draws the same."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A test that fails, fails again."""
    torch.manual_seed(0)
