import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from pstn.estimators import PSTNClassifier, PSTNTimeSeriesClassifier, base
from pstn.estimators.progress import Progress

STEPS = 25


def series(n=24, length=20, channels=1, seed=0):
    """Rising and falling ramps at random places: two classes."""
    draw = np.random.default_rng(seed)
    y = np.arange(n) % 2
    time = np.linspace(-2, 2, length) - draw.uniform(-0.5, 0.5, (n, channels, 1))
    x = np.tanh(3 * time) * np.where(y, 1, -1)[:, None, None] + 0.1 * draw.normal(size=(n, channels, length))
    return x, y


def images(n=24, shape=(12, 12), seed=0):
    """Horizontal and vertical bars: two classes."""
    draw = np.random.default_rng(seed)
    y = np.arange(n) % 2
    x = np.zeros((n, *shape))
    for image, label in zip(x, y, strict=True):
        place = draw.integers(3, 8)
        image[(slice(place, place + 2), slice(2, 10)) if label else (slice(2, 10), slice(place, place + 2))] = 1
    return x, y


CASES = [(PSTNTimeSeriesClassifier, series), (PSTNClassifier, images)]
cases = pytest.mark.parametrize(("make", "data"), CASES, ids=["series", "images"])


@pytest.fixture(scope="module", params=CASES, ids=["series", "images"])
def fitted(request):
    make, data = request.param
    x, y = data()
    return make(max_steps=STEPS, random_state=0).fit(x, y), x, y


# --- scikit-learn's own rules ---


@pytest.mark.parametrize(
    "estimator", [PSTNTimeSeriesClassifier(max_steps=20), PSTNClassifier(max_steps=30)], ids=["series", "images"]
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_is_content(estimator):
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(results) > 50
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert not failed


def test_pipelines_and_grid_search():
    x, y = series()
    pipeline = make_pipeline(StandardScaler(), PSTNTimeSeriesClassifier(max_steps=5, random_state=0))
    assert pipeline.fit(x[:, 0], y).predict_proba(x[:, 0]).shape == (24, 2)
    search = GridSearchCV(PSTNTimeSeriesClassifier(random_state=0, max_steps=10), {"warp": [True, False]}, cv=2)
    assert search.fit(x, y).best_score_ > 0.7
    assert search.best_estimator_.n_steps_ == 10


# --- what is learned ---


def test_it_learns(fitted):
    estimator, x, y = fitted
    assert estimator.score(x, y) > 0.9
    assert estimator.n_steps_ == STEPS
    assert estimator.stopped_ == "the planned steps are taken"


def test_probabilities_are_probabilities_whoever_is_beside(fitted):
    estimator, x, _ = fitted
    probs = estimator.predict_proba(x)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(estimator.predict_proba(x[3:4]), probs[3:4], atol=1e-9)
    np.testing.assert_allclose(estimator.predict_proba(x[::-1]), probs[::-1], atol=1e-9)


@cases
def test_the_same_seed_gives_the_same_and_another_another(make, data):
    x, y = data()
    a, b, c = (make(max_steps=5, random_state=seed).fit(x, y).predict_proba(x) for seed in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


@cases
def test_a_clone_is_a_fresh_one_that_learns_the_same(make, data):
    x, y = data()
    first = make(max_steps=5, random_state=3).fit(x, y)
    second = clone(first)
    with pytest.raises(NotFittedError):
        second.predict(x)
    assert np.array_equal(second.fit(x, y).predict_proba(x), first.predict_proba(x))


@cases
def test_names_of_the_classes_do_not_matter(make, data):
    x, y = data()
    plain = make(max_steps=5, random_state=0).fit(x, y)
    words = make(max_steps=5, random_state=0).fit(x, np.array(["ape", "bee"])[y])
    assert list(words.classes_) == ["ape", "bee"]
    assert np.array_equal(words.predict_proba(x), plain.predict_proba(x))
    assert set(words.predict(x)) <= {"ape", "bee"}


def test_the_order_of_the_examples_does_not_matter():
    x, y = series()
    order = np.random.default_rng(1).permutation(len(x))
    a, b = (PSTNTimeSeriesClassifier(max_steps=5, random_state=0).fit(x[i], y[i]) for i in (slice(None), order))
    assert np.array_equal(a.predict_proba(x), b.predict_proba(x))


def test_a_weight_is_a_repetition_and_no_weight_an_absence():
    x, y = series()
    weight = np.array([0, 2, 1, 1] * 6)
    weighted = PSTNTimeSeriesClassifier(max_steps=5, random_state=0).fit(x, y, sample_weight=weight)
    repeated = PSTNTimeSeriesClassifier(max_steps=5, random_state=0).fit(np.repeat(x, weight, 0), np.repeat(y, weight))
    assert np.array_equal(weighted.predict_proba(x), repeated.predict_proba(x))
    plain = PSTNTimeSeriesClassifier(max_steps=5, random_state=0).fit(x, y)
    assert not np.array_equal(weighted.predict_proba(x), plain.predict_proba(x))


def test_class_weights_pull_towards_their_class():
    x, y = series()
    hard = np.random.default_rng(0).normal(size=x.shape)
    means = []
    for factor in (0.01, 100.0):
        estimator = PSTNTimeSeriesClassifier(max_steps=STEPS, random_state=0, class_weight={0: 1.0, 1: factor})
        means.append(estimator.fit(hard, y).predict_proba(x)[:, 1].mean())
    assert means[0] < 0.2
    assert means[1] > 0.8


def test_classes_are_as_even_as_their_weights():
    x, _ = images(20)
    for weights, kl_weight in ((None, 7 * 0.469**2), ("balanced", 7.0)):
        estimator = PSTNClassifier(class_weight=weights, max_steps=1, random_state=0).fit(x, np.arange(20) < 2)
        assert estimator.recipe_.config.kl_weight == pytest.approx(kl_weight, rel=0.01)


def test_without_warps_it_is_a_plain_network():
    x, y = series()
    plain = PSTNTimeSeriesClassifier(warp=False, max_steps=STEPS, random_state=0).fit(x, y)
    assert plain.score(x, y) > 0.9
    assert not plain.predictive(x).mutual_information.any()
    assert np.array_equal(plain.transform(x), x)
    with pytest.raises(ValueError, match="no warps"):
        plain.pose(x)


# --- poses ---


def test_samples_are_as_wide_as_what_was_learned(fitted):
    estimator, x, _ = fitted
    assert estimator.pose_.mean.shape == estimator.pose_.spread.shape == (len(estimator.pose_.names),)
    assert (estimator.pose_.spread > 0).all()
    drawn = estimator.sample(x, 3, random_state=0)
    assert drawn.shape == (3, *x.shape)
    assert np.array_equal(drawn, estimator.sample(x, 3, random_state=0))
    assert not np.allclose(drawn[0], drawn[1])


def test_aligned_inputs_are_warped_by_the_centre_of_their_pose(fitted):
    estimator, x, _ = fitted
    pose = estimator.pose(x)
    assert pose.mean.shape == pose.spread.shape == (len(x), len(pose.names))
    assert (pose.spread < 2 * estimator.pose_.spread).all()
    assert (np.abs(pose.mean) < 2 * estimator.pose_.spread).all()
    aligned = estimator.transform(x)
    assert aligned.shape == x.shape
    assert np.array_equal(aligned, estimator.transform(x))
    assert not np.allclose(aligned, x)


def test_large_images_go_through_a_few_at_a_time(monkeypatch):
    x, y = images(8, (64, 64))
    estimator = PSTNClassifier(max_steps=1, samples=64, random_state=0).fit(x, y)
    at_once = []
    estimator.recipe_.model.body.register_forward_pre_hook(lambda body, given: at_once.append(len(given[0])))
    monkeypatch.setattr("pstn.inference.POINTS", 2 * 64 * 64 * 64)
    estimator.predict(x)
    estimator.pose(x)
    assert at_once == [2 * 64] * 8, "two images, 64 warps of each"


# --- when it ends ---


def test_early_stopping_keeps_the_best():
    x, y = series(40)
    noise = np.random.default_rng(0).permutation(y)
    estimator = PSTNTimeSeriesClassifier(early_stopping=True, patience=3, max_steps=400, random_state=0)
    estimator.fit(x, noise)
    assert estimator.stopped_.startswith("no better")
    assert estimator.n_steps_ < 400


def test_a_time_budget_is_kept():
    x, y = series()
    start = time.perf_counter()
    estimator = PSTNTimeSeriesClassifier(time_budget=1.0, max_steps=100_000).fit(x, y)
    assert time.perf_counter() - start < 6
    assert 1 <= estimator.n_steps_ < 100_000
    assert estimator.stopped_ in ("time is up", "the planned steps are taken")
    with pytest.raises(ValueError, match="time_budget is 0"):
        PSTNTimeSeriesClassifier(time_budget=0).fit(x, y)


def test_an_interrupt_keeps_what_was_learned(monkeypatch):
    x, y = series()
    after = Progress.__call__

    def interrupted(self, record):
        after(self, record)
        if record["epoch"] == 20:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Progress, "__call__", interrupted)
    estimator = PSTNTimeSeriesClassifier(max_steps=2000, random_state=0)
    with pytest.warns(ConvergenceWarning, match="interrupted after 2. of 2000 steps"):
        estimator.fit(x, y)
    assert estimator.stopped_ == "interrupted"
    assert estimator.n_steps_ < 2000
    assert estimator.score(x, y) > 0.6


# --- files ---


def test_a_saved_estimator_predicts_the_same(fitted, tmp_path):
    estimator, x, _ = fitted
    estimator.save(tmp_path / "a.safetensors")
    again = type(estimator).load(tmp_path / "a.safetensors")
    assert np.array_equal(again.predict_proba(x), estimator.predict_proba(x))
    assert np.array_equal(again.transform(x), estimator.transform(x))
    assert again.get_params() == estimator.get_params()
    assert str(again.recipe_) == str(estimator.recipe_)
    other = PSTNClassifier if isinstance(estimator, PSTNTimeSeriesClassifier) else PSTNTimeSeriesClassifier
    with pytest.raises(ValueError, match="expected a PSTN"):
        other.load(tmp_path / "a.safetensors")
    assert np.array_equal(pickle.loads(pickle.dumps(estimator)).predict_proba(x), estimator.predict_proba(x))


def test_a_file_keeps_its_spread_when_new_ones_start_elsewhere(fitted, tmp_path, monkeypatch):
    """Weights hold how far a spread went from its start; a file loaded and saved again still knows where that was."""
    estimator, x, _ = fitted
    estimator.save(tmp_path / "a.safetensors")
    monkeypatch.setattr("pstn.recipe.SPREADS", {1: 0.5, 2: 0.5})
    again = type(estimator).load(tmp_path / "a.safetensors")
    again.save(tmp_path / "b.safetensors")
    for one in (again, type(estimator).load(tmp_path / "b.safetensors")):
        assert np.array_equal(one.pose_.spread, estimator.pose_.spread)
        assert np.array_equal(one.predict_proba(x), estimator.predict_proba(x))


def test_files_that_do_not_say_where_their_spread_started_are_read_as_before(tmp_path, monkeypatch):
    x, y = series()
    monkeypatch.setattr("pstn.recipe.SPREADS", {1: 0.1})
    estimator = PSTNTimeSeriesClassifier(max_steps=2, random_state=0).fit(x, y)
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        written = base.save
        patch.setattr(base, "save", lambda path, state, meta: written(path, state, _without(meta, "spread")))
        estimator.save(tmp_path / "a.safetensors")
    again = PSTNTimeSeriesClassifier.load(tmp_path / "a.safetensors")
    assert np.array_equal(again.pose_.spread, estimator.pose_.spread)


def _without(meta, name):
    return {key: value for key, value in meta.items() if key != name}


@pytest.mark.parametrize("background", [0.0, None])
@pytest.mark.parametrize("warp", [True, False])
def test_images_on_a_background_and_photographs_survive_a_file(background, warp, tmp_path):
    """With and without warps: the network is made anew from what the file says."""
    rng = np.random.default_rng(0)
    x = rng.random((12, 20, 20), dtype=np.float32)
    if background is not None:
        x[:, :6] = x[:, -6:] = x[:, :, :6] = x[:, :, -6:] = background
    estimator = PSTNClassifier(max_steps=2, warp=warp).fit(x, np.arange(12) % 2)
    assert (estimator.recipe_.fill is None) == (background is None)
    estimator.save(tmp_path / "a.safetensors")
    again = PSTNClassifier.load(tmp_path / "a.safetensors")
    assert np.array_equal(again.predict_proba(x), estimator.predict_proba(x))


def test_names_survive_a_file(tmp_path):
    x, y = series()
    names = np.array(["ape", "bee"], dtype=object)[y]
    estimator = PSTNTimeSeriesClassifier(max_steps=2, class_weight={"ape": 1.0, "bee": 2.0}).fit(x, names)
    estimator.save(tmp_path / "a.safetensors")
    assert list(PSTNTimeSeriesClassifier.load(tmp_path / "a.safetensors").predict(x)) == list(estimator.predict(x))


def test_numbers_of_numpy_survive_a_file(tmp_path):
    """A search over a grid sets them."""
    x, y = images()
    x = x.reshape(len(x), -1)
    given = {"max_steps": np.int64(2), "warp": np.bool_(True), "image_shape": np.array([6, 24])}
    estimator = PSTNClassifier(random_state=np.int64(3), **given).fit(x, y)
    estimator.save(tmp_path / "a.safetensors")
    again = PSTNClassifier.load(tmp_path / "a.safetensors")
    assert np.array_equal(again.predict_proba(x), estimator.predict_proba(x))
    assert (again.max_steps, again.warp, again.image_shape, again.random_state) == (2, True, (6, 24), 3)


# --- what comes in ---


def test_series_come_in_many_forms():
    x, y = series()
    estimator = PSTNTimeSeriesClassifier(max_steps=2, random_state=0).fit(x, y)
    expected = estimator.predict_proba(x)
    for form in (x[:, 0], list(x), x.tolist(), np.ascontiguousarray(x, dtype=np.float32)):
        np.testing.assert_allclose(estimator.predict_proba(form), expected, atol=1e-6)
    assert estimator.transform(x[:, 0]).shape == x[:, 0].shape


def test_how_far_series_are_from_zero_does_not_matter(tmp_path):
    x, y = series()
    far = PSTNTimeSeriesClassifier(max_steps=STEPS, early_stopping=True, random_state=0).fit(x + 1.7e9, y)
    assert far.score(x + 1.7e9, y) > 0.9
    assert np.std(far.transform(x + 1.7e9) - 1.7e9) == pytest.approx(np.std(x), rel=0.1)
    far.save(tmp_path / "far.safetensors")
    again = PSTNTimeSeriesClassifier.load(tmp_path / "far.safetensors")
    np.testing.assert_array_equal(again.predict_proba(x + 1.7e9), far.predict_proba(x + 1.7e9))


def test_series_of_different_lengths_and_several_channels():
    x, y = series(channels=2)
    cut = [one[:, : 14 + i % 7] for i, one in enumerate(x)]
    estimator = PSTNTimeSeriesClassifier(max_steps=STEPS, random_state=0).fit(cut, y)
    assert estimator.length_ == 20
    assert estimator.score(cut, y) > 0.8
    assert estimator.predict(cut[:3]).shape == (3,)
    assert estimator.predict(x[..., ::2]).shape == (24,)
    with pytest.raises(ValueError, match="X has 1 channels; the estimator was fitted with 2"):
        estimator.predict(x[:, :1])


def test_images_come_in_many_forms():
    x, y = images()
    colour = np.stack([x, x / 2, x * 0], axis=1)
    estimator = PSTNClassifier(max_steps=2, random_state=0).fit(colour, y)
    last = np.moveaxis(colour, 1, -1)
    np.testing.assert_allclose(estimator.predict_proba(last), estimator.predict_proba(colour))
    np.testing.assert_allclose(estimator.predict_proba(list(last)), estimator.predict_proba(colour))
    with pytest.raises(ValueError, match="different shapes"):
        estimator.predict([last[0], last[1][:5]])
    assert estimator.transform(last).shape == last.shape
    np.testing.assert_allclose(np.moveaxis(estimator.transform(last), -1, 1), estimator.transform(colour))
    grey = PSTNClassifier(max_steps=2, random_state=0).fit(x, y)
    np.testing.assert_allclose(grey.predict_proba(x.reshape(len(x), -1)), grey.predict_proba(x))
    rows = PSTNClassifier(max_steps=2, image_shape=(6, 24), random_state=0).fit(x.reshape(len(x), -1), y)
    assert rows.image_shape_ == (1, 6, 24)
    with pytest.raises(ValueError, match="images of"):
        grey.predict(x[:, :6, :6])
    with pytest.raises(ValueError, match="image_shape is"):
        PSTNClassifier(image_shape=(5, 5)).fit(x.reshape(len(x), -1), y)


@cases
def test_errors_say_what_is_wrong(make, data):
    x, y = data()
    bad = x.copy()
    bad[2, ..., 3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        make().fit(bad, y)
    with pytest.raises(ValueError, match="one class only"):
        make().fit(x, y * 0)
    with pytest.raises(ValueError, match="0 sample"):
        make().fit(x[:0], y[:0])
    with pytest.raises(ValueError, match="24 examples and y 20 labels"):
        make().fit(x, y[:20])
    with pytest.raises(ValueError, match="non-zero"):
        make().fit(x, y, sample_weight=np.zeros(24))
    with pytest.raises(ValueError, match="validation_fraction is 20; expected a share between 0 and 1"):
        make(max_steps=1, early_stopping=True, validation_fraction=20).fit(x, y)
    with pytest.raises(ValueError, match="NaN"):
        make(max_steps=1).fit(x, y).predict(bad)


@cases
def test_what_may_only_be_read_is_read(make, data):
    """As processes share it; torch's warning comes once a process, so another one listens."""
    x, y = data()
    code = f"""
import numpy as np
from pstn.estimators import {make.__name__}
x, y = np.array({x.tolist()}), np.array({y.tolist()})
for one in (x, y):
    one.flags.writeable = False
{make.__name__}(max_steps=1).fit(x, y).predict(x.reshape(len(x), *x.shape[-2:])[:3])
"""
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_missing_values_in_a_list_are_found_too():
    x, y = series()
    cut = [one[:, : 14 + i % 7] for i, one in enumerate(x)]
    cut[5] = cut[5] * np.nan
    with pytest.raises(ValueError, match="index 5"):
        PSTNTimeSeriesClassifier().fit(cut, y)


def test_series_of_any_length_after_series_of_many_lengths():
    x, y = series(length=30)
    ragged = [one[0, : 20 + i % 11] for i, one in enumerate(x)]
    clf = PSTNTimeSeriesClassifier(max_steps=3, random_state=0).fit(ragged, y)
    assert clf.predict(ragged).shape == (24,)
    for length in (12, 30):
        assert clf.predict([one[0, :length] for one in x]).shape == (24,), "all of one length, and another than before"
    assert clf.predict([x[0, 0, :17]]).shape == (1,)
    assert np.array_equal(clf.predict_proba([one[0] for one in x]), clf.predict_proba(x[:, 0]))
    long, _ = series(length=300)
    assert np.allclose(clf.predict_proba([one[0] for one in long]), clf.predict_proba(long)), "no point is skipped"


def test_a_gpu_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    x, y = images()
    with pytest.raises(ValueError, match="torch finds no GPU here; expected 'cpu' or 'auto'"):
        PSTNClassifier(device="cuda").fit(x, y)
