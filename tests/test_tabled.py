"""Models that are described before they have memory: what they do not save is there all the same."""

import copy

import pytest
import torch

from pstn import (
    CPAB,
    STN,
    TPS,
    Affine,
    C,
    Compose,
    Crop,
    Gaussian,
    Learned,
    Point,
    Projective,
    Rotation,
    Similarity,
    StudentT,
    nets,
    turns,
    warp,
    wrap,
)

SHAPE = (1, 24, 24)
COVARIANCE = (0.02 * torch.eye(14)).tolist()


def stn(*parts, channels=1):
    return STN(nets.classifier((channels, 24, 24), 3), nets.localizer(SHAPE), *parts)


MODELS = {
    "spline": lambda: stn(TPS(3), Gaussian(prior_scale=0.1)),
    "covariance": lambda: stn(CPAB((2, 2)), Gaussian(covariance=COVARIANCE)),
    "learned": lambda: stn(Similarity(size=(24, 30)), Learned()),
    "composed": lambda: stn(Compose(Affine(size=(3, 4)), Projective()), StudentT()),
    "starts": lambda: stn(Rotation(), Point(), C(0, starts=turns(4))),
    "tiles": lambda: stn(Crop(), Gaussian(), C(0, parallel=2, tile=0.5), channels=2),
    "wrapped": lambda: wrap(nets.classifier(SHAPE, 3), Affine(), Learned()),
}


def answers(model):
    torch.manual_seed(1)
    out = model.eval()(torch.rand(2, *SHAPE), samples=2)
    return out.logits, out.kl


@pytest.mark.parametrize("way", ["to_empty", "to_empty of a copy", "to meta and back", "assign"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_model_without_memory_answers_as_the_one_whose_state_it_is_given(make, way):
    torch.manual_seed(0)
    whole = make()
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    if way in ("to_empty", "assign"):
        with torch.device("meta"):
            model = make()
    else:
        model = copy.deepcopy(whole)
    if way == "to meta and back":
        model.to("meta")
    if way != "assign":
        model.to_empty(device="cpu")
    model.load_state_dict(whole.state_dict(), assign=way == "assign")
    for found, expected in zip(answers(model), answers(whole), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_tables_are_no_part_of_the_state_and_follow_a_cast(make):
    model = make()
    names = {name for name, _ in model.named_buffers()} - model.state_dict().keys()
    half = copy.deepcopy(model).half()
    for name in names:
        table, own = model.get_buffer(name), "family" in name
        torch.testing.assert_close(half.get_buffer(name), table if own else table.half())
    half.to("meta")
    assert all(half.get_buffer(name).is_meta for name in names)


@pytest.mark.parametrize("make", [lambda: TPS(3), lambda: Similarity(size=(5, 6))], ids=["TPS", "Similarity"])
def test_families_may_be_made_in_what_is_compiled(make):
    x, theta = torch.rand(1, 1, 5, 6), 0.1 * torch.randn(1, make().dim)

    def look(theta):
        return warp(x, make(), theta)

    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(look, fullgraph=True, backend="eager")(theta), look(theta))
