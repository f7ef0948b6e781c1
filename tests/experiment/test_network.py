"""What a network is found by, and how it is scored."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from pstn import STN, Gaussian, Similarity, nets
from pstn.data import Data
from pstn.experiment import Experiment, classified
from pstn.experiment.network import _blank, _describe, _hollow, _model, plain
from pstn.train import Train


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_a_network_is_found_by_whatever_torch(kind):
    """torch 2.13 says of batch normalisation that it has a bias, 2.11 does not."""
    text = _describe(nn.Sequential(kind(3)))
    assert f"{kind.__name__}(3, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)" in text
    assert "0.bias: (3,) True" in text
    assert "bias=False" in _describe(nn.Conv2d(1, 2, 3, bias=False))


def test_a_network_is_found_whatever_the_last_digits_of_what_was_computed():
    """A prior's scale that comes out of matrices rounds differently on another machine."""

    def text(scale):
        return _describe(STN(nn.Flatten(), nets.blind(), Similarity(), Gaussian(scale)))

    for scale in (0.02253, 1e-7 / 3, 12345.678901234567, math.pi):
        assert text(scale) == text(math.nextafter(scale, 9e9))
        assert text(scale) != text(scale * (1 + 1e-9))


def test_networks_that_differ_are_described_differently():
    texts = {
        _describe(model)
        for model in (
            nets.normed_classifier((1, 28, 28), 10),
            nets.normed_classifier((1, 28, 28), 10, dropout=0.25),
            nets.normed_classifier((1, 28, 28), 10, hidden=49),
            nn.Sequential(nn.BatchNorm2d(3, affine=False)),
            nn.Sequential(nn.BatchNorm2d(3)),
        )
    }
    assert len(texts) == 5


def test_rows_of_one_network_share_its_words_and_no_others():
    """Networks are described once for all rows that make them alike: by function, given arguments and setting."""

    def row(name, model, **options):
        return Experiment(name, "digits", model, Train(), **options)

    def text(row):
        return [_model(row, plain(setting)) for setting in row.settings()]

    built = []

    def layer(width, *, bias=True, sizes=()):
        built.append(width)
        return nn.Linear(width, 2, bias=bias)

    (one,) = text(row("a", partial(layer, 3)))
    assert text(row("b", partial(layer, 3))) == [one]
    assert built == [3]
    assert text(row("c", partial(layer, 3, bias=False))) != [one]
    two = text(row("d", layer, grid={"width": (3, 4), "lr": (0.1, 0.2)}))
    assert two[0] == two[1] != two[2] == two[3]
    assert built == [3, 3, 3, 4]
    assert text(row("e", partial(layer, 3, sizes=[1]))) == [one], "a list cannot be looked up, and is built"
    assert text(row("h", partial(nn.Dropout, 1))) != text(row("i", partial(nn.Dropout, 1.0)))
    first = row("f", partial(layer, 3))
    found = {
        text(row("g", lambda pretrained: nn.Sequential(pretrained), needs=needed))[0]
        for needed in (first, replace(first, model=partial(layer, 5)))
    }
    assert len(found) == 2


def test_a_network_is_described_without_its_numbers_where_none_is_needed():
    """And with them where it cannot be made otherwise: in the same words."""

    def counted():
        width = int(torch.ones(3).sum())  # a number that a network is made by
        return nn.Linear(width, 2)

    for model, hollow in ((partial(nets.classifier, (1, 28, 28), 10), True), (counted, False)):
        row = Experiment("a", "digits", model, Train())
        found = _hollow(row, {})
        assert all(p.is_meta for p in found.parameters()) is hollow
        assert _describe(found) == _describe(_blank(row, {}))
    with pytest.raises(ZeroDivisionError):
        _hollow(Experiment("b", "digits", lambda: 1 / 0, Train()), {})


def test_networks_that_are_sure_and_wrong_have_an_nll():
    """Theirs are probabilities too small for a number."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False))
    body[1].weight.data = torch.tensor([[1000.0], [0.0]])
    data = Data(torch.ones(4, 1, 1), torch.tensor([0, 0, 0, 1]), ("right", "wrong"))
    assert classified(STN(body), data)["nll"] == pytest.approx(250.0)
