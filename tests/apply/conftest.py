"""Pictures, and one small model trained on them."""

import pytest
from homemade import bars
from rich.console import Console

from pstn.apply.settings import Fit


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    return bars(tmp_path_factory.mktemp("data") / "bars", per_class=20)


@pytest.fixture(scope="session")
def model(pictures, tmp_path_factory):
    """The folder of a model of standing and lying bars."""
    from pstn.apply.fit import fit

    folder = tmp_path_factory.mktemp("models") / "bars"
    fit(Fit(pictures, out=folder, time="4s"), Console(quiet=True))
    return folder
