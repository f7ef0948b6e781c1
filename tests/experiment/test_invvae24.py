"""The study of invariant autoencoders: its arms, its data, its measures and its figures, on stand-in pictures."""

from dataclasses import replace

import pytest
import torch

from pstn.data import Data
from pstn.experiment import compare, find, render, run
from pstn.experiment.comparison import Comparison, Result
from pstn.vae import VAE, Paired, undo
from pstn.warp import warp

TABLE = find("invvae24/table1")  # puts the checkout on the path
from experiments.invvae24.study import data as clothes  # noqa: E402
from experiments.invvae24.study import measure  # noqa: E402

FEW = ("transformer", "vae10-augmented-none", "vae10-augmented-pre", "vae10-augmented-stn", "cat100-base-pstn",
       "cat10-fresh-none")  # fmt: skip


def pictures(split):
    """Thirty bars, one place a class."""
    x, y = torch.zeros(30, 1, 28, 28), torch.arange(30) % 10
    for i, label in enumerate(y.tolist()):
        x[i, 0, 2 * label + 3 : 2 * label + 6, 6:22] = 1.0 if split == "train" else 0.9
    return Data(x, y, tuple("0123456789"), f"bars {split}")


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    for cached in (clothes._pictures, clothes._split):
        cached.cache_clear()
    monkeypatch.setattr(clothes, "whole", pictures)
    yield
    for cached in (clothes._pictures, clothes._split):
        cached.cache_clear()


def short(row):
    train = replace(row.train, steps=3, batch_size=10)
    return replace(row, train=train, folds=2, needs=row.needs and short(row.needs))


def test_every_arm_is_there():
    """Both sets, both kinds, four fronts, two widths, and plain augmentation; the paper's eight cells among them."""
    tags = [tuple(row.tags.values()) for row in TABLE.rows if row.tags]
    arms = {(k, w, t, f) for k in ("vae", "cat") for w in (10, 100) for t in ("base", "augmented")
            for f in ("none", "pre", "stn", "pstn")}  # fmt: skip
    assert set(tags) == arms | {(k, w, "fresh", f) for k in ("vae", "cat") for w in (10, 100) for f in ("none", "stn")}
    assert all(row.folds == 5 for row in TABLE.rows)
    published = {row.name: row.paper for row in TABLE.rows if row.paper}
    assert len(published) == 8
    assert published["vae10-base-none"]["accuracy"][0] == 0.779
    assert published["cat100-augmented-none"]["moved_accuracy"][0] == 0.7635
    # in one unit, the paper's losses of both kinds are alike
    for a, b in (("vae10-base-none", "cat100-base-none"), ("vae10-augmented-none", "cat100-augmented-none")):
        assert published[b]["loss"][0] == pytest.approx(published[a]["loss"][0], rel=0.05)


@pytest.mark.parametrize("row", [row for row in TABLE.rows if row.tags], ids=lambda row: row.name)
def test_networks(row):
    pretrained = None if row.needs is None else row.needs.build({})
    model = row.build({}, pretrained)
    assert isinstance(model, VAE)
    assert model.width == row.tags["width"]
    assert (model.front is None) == (row.tags["front"] == "none")
    learns = [p.requires_grad for t in model.transformers for p in t.parameters()]
    assert all(learns) if row.tags["front"] in ("stn", "pstn") else not any(learns)
    assert model.compare == ("canonical" if row.tags["front"] == "pre" else "observed")


def test_data():
    base, augmented, fresh, pairs = (clothes.Clothes(kind)(0) for kind in ("base", "augmented", "fresh", "pairs"))
    assert torch.equal(base.train.x, fresh.train.x)
    assert torch.equal(pairs.train.x, torch.cat([augmented.train.x, base.train.x], dim=1))
    for split, study in ((base, base), (augmented, augmented), (fresh, augmented)):
        assert torch.equal(split.test.study.x, study.train.x)
        assert all(torch.equal(a.x, b.train.x) for a, b in zip(split.test.studies, (base, augmented), strict=True))
        assert torch.equal(split.test.x, base.test.x)
        assert torch.equal(split.test.moved, base.test.moved)
    family, pose = clothes.nudge().family, clothes.nudge().draw(30, generator=torch.Generator().manual_seed(24))
    again = warp(base.train.x, family, undo(family, pose), fill=clothes.FILL)
    torch.testing.assert_close(augmented.train.x, again)  # fixed by its seed, twin by twin
    assert clothes.Clothes("base")(0).train is clothes.Clothes("base")(4).train  # one set on the device


def test_a_code_without_pose_has_no_gap():
    """Scores of a code that knows the class and nothing else."""
    exam = clothes.Clothes("augmented")(0).test

    class Oracle(VAE):
        def features(self, x, samples=0):
            return 9 * torch.nn.functional.one_hot(torch.arange(len(x)) % 10, 10).float()

    scores = measure.gaussian(Oracle(clothes.SHAPE), exam)
    assert scores["accuracy"] == scores["moved_accuracy"] == 1
    assert scores["gap"] == scores["invariance"] == 0
    assert "pictures" not in scores


def test_each_set_may_have_a_classifier_of_its_own():
    """Codes that shift when pictures do: one classifier fails on the twins, theirs does not."""
    exam = clothes.Clothes("base")(0).test
    base, nudged = exam.studies
    turns = {x.data_ptr(): turn for turn, each in enumerate(((exam.x, base.x), (exam.moved, nudged.x))) for x in each}

    class Turned(VAE):
        def features(self, x, samples=0):
            return 9 * torch.nn.functional.one_hot((torch.arange(len(x)) + turns[x.data_ptr()]) % 10, 10).float()

    model = Turned(clothes.SHAPE)
    assert measure.gaussian(model, exam)["moved_accuracy"] == 0
    scores = measure.apart(model, exam)
    assert scores == {"accuracy": 1, "moved_accuracy": 1, "gap": 0}


def test_the_papers_cells_with_two_classifiers(tmp_path):
    table = find("invvae24/classifiers")
    assert [row.name for row in table.rows] == [row.name for row in TABLE.rows if row.paper]
    assert table.row("cat100-base-none").paper["moved_accuracy"][0] == 0.7452
    few = replace(table, rows=[short(table.row("vae10-augmented-none"))], claims=(), quick=())
    run(few, device="cpu", runs=tmp_path / "runs", results=tmp_path / "results")
    found = compare(few, results=tmp_path / "results").by_name["vae10-augmented-none"]
    assert found.values("gap")[0] == pytest.approx(found.values("accuracy")[0] - found.values("moved_accuracy")[0])


def test_losses_are_in_one_unit():
    """A decoder that draws grey, the mean, costs the variance of the pictures, whatever its kind."""
    x = clothes.Clothes("base")(0).test.x
    for name, bound in (("vae10-base-none", measure.GAUSSIAN), ("cat100-base-none", measure.CATEGORICAL)):
        model = TABLE.row(name).build({}).eval()
        with torch.no_grad():
            for layer in (model.encoder[-1], model.decoder[-2]):
                layer.weight.zero_()
                layer.bias.zero_()
            loss, error = measure.losses(model, x, bound)
        assert loss == pytest.approx(float(x.square().mean()), rel=1e-4)
        assert error == pytest.approx(loss)


def test_pictures_are_kept_small_and_whole():
    x = clothes.NORMALISE(torch.rand(3, 1, 5, 7))
    packed = measure.pack(x)
    back = measure.unpack(packed)
    assert back.shape == (3, 5, 7)
    assert (back - clothes.NORMALISE.inverse(x)[:, 0]).abs().max() <= 0.5 / 15 + 1e-6


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        clothes._pictures.cache_clear()
        clothes._split.cache_clear()
        patch.setattr(clothes, "whole", pictures)
        folder = tmp_path_factory.mktemp("invvae24")
        rows = [short(row) for row in TABLE.rows if row.name in FEW]
        table = replace(TABLE, id="invvae24/short", rows=rows, claims=(), quick=())
        run(table, device="cpu", runs=folder / "runs", results=folder / "results")
        yield compare(table, results=folder / "results")


def test_the_study_runs(done: Comparison):
    assert list(done.by_name) == list(FEW)
    for name in FEW[1:]:
        result = done.by_name[name]
        for metric in TABLE.metrics:
            assert len(result.values(metric)) == 2, (name, metric)
        gap = [a - b for a, b in zip(result.values("accuracy"), result.values("moved_accuracy"), strict=True)]
        assert gap == pytest.approx(result.values("gap"))
        first, second = result.chosen
        assert first["test"]["loss"] != second["test"]["loss"]  # seeds differ
    assert done.by_name["transformer"].values("still_error")[0] > 0


def test_the_transformer_of_the_pairs_is_used_and_left_alone():
    before = TABLE.row("transformer").build({})
    assert isinstance(before, Paired)
    with torch.no_grad():
        before.front.transformers[0].head.loc[-1].bias.add_(0.1)
    model = TABLE.row("vae10-augmented-pre").build({}, before)
    x = clothes.Clothes("base")(0).test.x[:3]
    torch.testing.assert_close(model(x, samples=0).pose.warped, before.front(x).warped)
    torch.testing.assert_close(model(x, samples=0).target, before.front(x).warped)


def test_claims_are_confirmed_refuted_or_confounded():
    """Categorical codes ahead of narrow Gaussian ones and level with wide ones: the width did it."""

    def result(name, mean):
        off = enumerate((-0.002, 0.0, 0.002))
        records = [{"fold": fold, "test": dict.fromkeys(TABLE.metrics, mean + d)} for fold, d in off]
        return Result(TABLE.row(name), {}, records, records)

    means = {"cat100-base-none": 0.85, "vae10-base-none": 0.78, "vae100-base-none": 0.85, "vae10-augmented-none": 0.75}
    shown = Comparison(TABLE, [result(name, mean) for name, mean in means.items()]).claims()
    found = {words: verdict for words, verdict, *_ in shown.rows}
    assert found["Categorical codes classify base pictures better than Gaussian ones"].startswith("confounded")
    assert found["A larger code makes the VAE better"] == "confirmed"
    assert found["Augmented training helps a VAE on base pictures"] == "refuted"
    assert found["... and of a joint one"] == "not run"


def test_page_and_figures(done: Comparison, tmp_path):
    text = render(done, tmp_path).read_text()
    for name in TABLE.figures:
        assert (tmp_path / f"invvae24-short-{name}.svg").stat().st_size > 2000
        assert f"invvae24-short-{name}.svg" in text
