"""Tables of pandas, in and out."""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pstn.estimators import PSTNClassifier, PSTNTimeSeriesClassifier

pandas = pytest.importorskip("pandas")
DRAW = np.random.default_rng(0)


@pytest.mark.parametrize(("make", "shape"), [(PSTNTimeSeriesClassifier, (1, 20)), (PSTNClassifier, (12, 12))])
def test_aligned_rows_are_tables_where_tables_are_asked_for(make, shape):
    x, y = DRAW.random((24, *shape)), np.arange(24) % 2
    rows = pandas.DataFrame(x.reshape(len(x), -1), index=range(100, 100 + len(x))).add_prefix("p")
    line = make_pipeline(StandardScaler(), make(max_steps=2, samples=1)).set_output(transform="pandas").fit(rows, y)
    aligned = line.transform(rows)
    assert list(aligned.columns) == list(rows.columns)
    assert list(aligned.index) == list(rows.index)
    with config_context(transform_output="pandas"):
        assert make(max_steps=2, samples=1).fit(x, y).transform(x).shape == x.shape, "no table has three axes"


def test_columns_of_tables_are_series_too():
    cut, y = [DRAW.random(14 + i % 7) for i in range(24)], np.arange(24) % 2
    columns = [pandas.Series(one, index=range(5, 5 + len(one))) for one in cut]
    fitted = [PSTNTimeSeriesClassifier(max_steps=2, random_state=0).fit(form, y) for form in (cut, columns)]
    for form in (cut, columns, cut[:1], columns[:1]):
        np.testing.assert_array_equal(fitted[0].predict_proba(form), fitted[1].predict_proba(form))
