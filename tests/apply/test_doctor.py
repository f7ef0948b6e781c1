"""The doctor finds each illness in a network that has it, and none in one that is well."""

import json

import pytest
import torch

from pstn import STN, Affine, Gaussian, Learned, Point, Similarity, nets
from pstn.apply import Trained, examine
from pstn.apply.card import card
from pstn.apply.measure import chance_ece, lost, measure, poses, scores, strength
from pstn.data import Data, Normalise
from pstn.families import CPAB, Compose, Translation
from pstn.inference import Predictive
from pstn.recipe import network

SHAPE = (1, 24, 24)


def blobs(n=16):
    """A bright square in the middle of black pictures."""
    x = torch.zeros(n, *SHAPE)
    x[:, :, 8:16, 8:16] = torch.rand(n, 1, 8, 8)
    return x


def trained(posterior, family=None, localizer=None, **settings):
    family = Similarity() if family is None else family
    localizer = nets.localizer(SHAPE, channels=(4,), kernel=3) if localizer is None else localizer
    body = nets.classifier(SHAPE, 2, channels=(4,), kernel=3)
    model = STN(body, localizer, family, posterior, **settings)
    return Trained(model.eval(), ("a", "b"), SHAPE, Normalise())


def named(model, x=None, **more):
    return [one.name for one in examine({**poses(model, blobs() if x is None else x), **more}, shape=SHAPE)]


def aligning(model, std=0.05):
    """A head whose centres depend on the input."""
    torch.nn.init.normal_(model.network.transformers[0].head.loc[-1].weight, std=std)
    return model


def test_well():
    assert named(aligning(trained(Gaussian(spread=0.1)))) == []
    assert named(trained(Learned(), localizer=nets.blind())) == [], "not looking is no illness of a learned spread"
    assert named(Trained(network(SHAPE, 2, warp=False).eval(), ("a", "b"), SHAPE, Normalise())) == []


def test_identity_collapse():
    assert "identity collapse" in named(trained(Gaussian(spread=0.1)))
    alike = trained(Gaussian(spread=0.1))
    torch.nn.init.constant_(alike.network.transformers[0].head.loc[-1].bias, 0.2)
    (finding, *_) = examine(poses(alike, blobs()), shape=SHAPE)
    assert "moves every input alike" in finding.what


def test_training_cut_short():
    """A tenth of the steps for so many examples, and most of these not known."""

    def names(known, steps):
        return [one.name for one in examine({"train_accuracy": known}, (), {"steps": steps}, SHAPE, 400)]

    assert names(0.3, 200) == ["training cut short"]
    assert names(0.3, 2000) == names(0.3, None) == names(1.0, 200) == []


def test_inputs_leave_the_frame():
    away = aligning(trained(Point(), Translation()), 0.01)
    torch.nn.init.constant_(away.network.transformers[0].head.loc[-1].bias, 1.5)
    assert "inputs leave the frame" in named(away)


def test_spread():
    assert "collapsed spread" in named(aligning(trained(Gaussian(spread=1e-5))))
    assert "exploding spread" in named(aligning(trained(Gaussian(spread=4.0))))


def test_over_strong():
    well = {"train_accuracy": 1.0, "accuracy": 0.95, "examples": 100}
    assert examine(well) == []
    assert [one.name for one in examine(well | {"accuracy": 0.6})] == ["over-strong classifier"]
    assert examine(well | {"accuracy": 0.75, "examples": 12}) == [], "twelve examples say nothing"
    curve = [{"validation_nll": value} for value in (1.0, 0.5, 0.4, 0.5, 0.9)]
    assert [one.name for one in examine({}, curve)] == ["over-strong classifier"]
    assert examine({}, curve[:3]) == []


@pytest.mark.parametrize(("power", "kind"), [(1.0, None), (4.0, "overconfident"), (0.3, "underconfident")])
def test_calibration(power, kind):
    """Labels are drawn from probabilities; the model says a power of them."""
    honest = (2 * torch.randn(2000, 5)).softmax(-1)
    y = torch.multinomial(honest, 1).squeeze(1)
    said = (power * honest.log()).log_softmax(-1)
    p = Predictive(said, torch.zeros(2000), torch.zeros(2000))
    found = examine({**scores(p, y), "ece_by_chance": chance_ece(p.probs)})
    assert [one.name for one in found] == (["miscalibration"] if kind else [])
    if kind:
        assert kind in found[0].what
        assert scores(p, y)["temperature"] == pytest.approx(power, rel=0.2), "the temperature undoes the power"


def test_every_finding_says_what_to_change():
    ill = {"looks": True, "centre": 0.0, "lost": 1.0, "spread": 9.0, "train_accuracy": 1.0, "accuracy": 0.1}
    ill |= {"ece": 0.8, "ece_by_chance": 0.0, "confidence": 0.9, "examples": 1000}
    found = examine(ill, config={"localizer_lr": 0.1, "kl_weight": 18.0}, shape=SHAPE)
    assert len(found) == 5
    assert all(len(one.advice) > 20 for one in found)
    assert "now 0.1" in found[0].advice


def test_series_have_points_and_images_pixels():
    ill = {"looks": True, "centre": 0.0, "spread": 0.0}
    for shape, unit, other in ((SHAPE, "pixels", "points"), ((1, 128), "points", "pixels")):
        said = [one.what.removeprefix("The transformer moves points") for one in examine(ill, shape=shape)]
        assert len(said) == 2
        assert all(unit in what and other not in what for what in said)


def test_content_that_is_lost():
    x, shifts = blobs(2), torch.tensor([0.0, 2 / 3, 1.0, 1.5])  # the square reaches from -1/3 to 1/3
    kept = [1 - lost(x, Translation(), torch.tensor([[[s, 0.0]] * 2]), 0.0) for s in shifts.tolist()]
    assert kept[0] == 1
    assert kept[1] == 1, "it lies at the border, whole"
    assert 0.4 < kept[2] < 0.8, "half of it, and the pixels next to it"
    assert kept[3] == 0


def test_strength_in_plain_units():
    theta = torch.randn(64, 32, 6) * torch.tensor([0.1, 0.2, 0.2, 0.05, 0.1, 0.2])
    rows = {row["name"]: row for row in strength(Affine(), theta, (20, 40))}
    assert rows["rotation"]["value"] == pytest.approx(5.73, rel=0.1)
    assert rows["rotation"]["unit"] == "degrees"
    assert rows["scale x"]["value"] == pytest.approx(22.1, rel=0.1)
    assert rows["shear xy"]["value"] == pytest.approx(5.0, rel=0.1)
    assert rows["shift x"]["value"] == pytest.approx(2.0, rel=0.1)
    assert rows["shift y"]["unit"] == "pixels"
    both = strength(Compose(Affine(1), CPAB(4)), torch.randn(8, 4, 5), (50,))
    assert [row["name"] for row in both] == ["stretch", "shift", "smooth distortion"]
    assert {row["unit"] for row in both} == {"%", "points"}


def test_wide_warps_are_written_out():
    row = {"name": "stretch", "value": 1327.0, "unit": "%"}
    about = {"data": {}, "shape": SHAPE, "classes": [], "measured": {"strength": [row]}}
    assert "| stretch | ± 1330 % |" in card(about)


def test_what_is_measured_is_plain_numbers():
    model = aligning(trained(Gaussian(spread=0.1)))
    found = measure(model, Data(blobs(), torch.arange(16) % 2, ("a", "b")))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
