"""A network written down and built again is the same network; a file builds networks and nothing else."""

import json

import pytest
import torch
from torch import nn

from pstn import (
    CPAB,
    DL,
    SL,
    STN,
    TPS,
    Affine,
    C,
    Compose,
    Gaussian,
    Learned,
    Point,
    Rotation,
    Similarity,
    StudentT,
    nets,
    turns,
)
from pstn.apply.blueprint import BlueprintError, build, describe
from pstn.recipe import network

SHAPE = (1, 20, 20)


def small(family, posterior, placement=None):
    placement = C(0) if placement is None else placement
    localizer = nets.localizer((4, 9, 9) if 1 in placement.depths else SHAPE, channels=(4,), kernel=3, hidden=5)
    body = nets.classifier(SHAPE, 3, channels=(4, 5), kernel=3)
    return STN(body, localizer, family, posterior, placement, fill=-0.4)


MODELS = {
    "small images": (lambda: network((1, 20, 20), 3, fill=-0.4), SHAPE),
    "flat images": (lambda: network((3, 3, 9), 3), (3, 3, 9)),
    "large images": (lambda: network((3, 72, 72), 3), (3, 72, 72)),
    "series": (lambda: network((2, 40), 3), (2, 40)),
    "plain": (lambda: network(SHAPE, 3, warp=False), SHAPE),
    "student": (lambda: small(Similarity(size=(20, 20)), StudentT(alpha=2.0, per="input")), SHAPE),
    "gaussian": (lambda: small(Compose(Affine(), CPAB((2, 2))), Gaussian(hidden=(6,), image_noise=0.1)), SHAPE),
    "covariance": (lambda: small(Similarity(), Gaussian(covariance=torch.eye(4) * 0.3)), SHAPE),
    "shared": (lambda: small(TPS(3), Learned(centred=False), SL(1)), SHAPE),
    "own copy": (lambda: small(Similarity(scale="linear"), Gaussian(prior_scale=(0.1, 0.2, 0.3, 0.4)), DL(1)), SHAPE),
    "starts": (lambda: small(Rotation(), Point(), C(0, starts=turns(3))), SHAPE),
}


@pytest.mark.parametrize("case", MODELS.values(), ids=MODELS)
def test_there_and_back(case):
    make, shape = case
    model = make().eval()
    for parameter in model.parameters():
        parameter.data += 0.01 * torch.randn_like(parameter)
    text = json.dumps(describe(model))
    again = build(json.loads(text)).eval()
    again.load_state_dict(model.state_dict())
    assert json.dumps(describe(again)) == text
    x = torch.rand(4, *shape)
    outputs = [one(x, samples=3, generator=torch.Generator().manual_seed(1)).logits for one in (model, again)]
    assert torch.equal(*outputs)
    assert torch.equal(*(one.train()(x, samples=0).kl for one in (model, again)))


class Own(nn.Module):
    pass


def test_what_has_no_name_is_refused():
    with pytest.raises(BlueprintError, match="Own cannot be written down"):
        describe(nn.Sequential(Own()))
    with pytest.raises(BlueprintError, match="cannot be written down"):
        describe(nn.Sequential(type("Linear", (nn.Linear,), {})(2, 2)))


@pytest.mark.parametrize(
    "bad",
    [{"is": "os.system"}, {"is": "Linear", "in_features": "x"}, {"is": "Linear", "odd": 1}, [], {}, {"is": "STN"}],
)
def test_a_description_from_elsewhere_builds_nothing_else(bad):
    with pytest.raises(BlueprintError):
        build(bad)
