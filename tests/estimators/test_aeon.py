import subprocess
import sys

import numpy as np
import pytest

WITHOUT = """
import sys
sys.modules["aeon"] = None
from pstn.estimators.aeon import AeonPSTNClassifier
try:
    AeonPSTNClassifier()
except ImportError as error:
    print(error)
"""


def test_without_aeon_the_error_names_the_extra():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert "pip install 'pstn[aeon]'" in done.stdout


@pytest.mark.filterwarnings("ignore")
def test_aeon_is_content():
    checking = pytest.importorskip("aeon.testing.estimator_checking", reason="the extra aeon is not installed")
    from pstn.estimators.aeon import AeonPSTNClassifier

    results = checking.check_estimator(AeonPSTNClassifier)
    assert len(results) > 20
    assert {name: result for name, result in results.items() if result != "PASSED"} == {}


@pytest.mark.filterwarnings("ignore")
def test_it_is_the_same_classifier():
    pytest.importorskip("aeon", reason="the extra aeon is not installed")
    from pstn.estimators import PSTNTimeSeriesClassifier
    from pstn.estimators.aeon import AeonPSTNClassifier

    x, y = np.random.default_rng(0).normal(size=(12, 2, 20)), np.arange(12) % 2
    ours = PSTNTimeSeriesClassifier(max_steps=3, random_state=0).fit(x, y)
    theirs = AeonPSTNClassifier(max_steps=3, random_state=0).fit(x, y)
    assert np.array_equal(ours.predict_proba(x), theirs.predict_proba(x))
