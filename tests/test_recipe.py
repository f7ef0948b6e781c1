import copy
from dataclasses import replace

import pytest
import torch

from pstn.data import Data, cbf
from pstn.recipe import SPREADS, affordable, body, find_background, network, recipe, resized, seen_size, settings
from pstn.train import fit


def data(*shape, n=12, classes=3):
    x = torch.rand(n, *shape, generator=torch.Generator().manual_seed(0))
    return Data(x, torch.arange(n) % classes, tuple("abc"[:classes]), "things")


SHAPES = [(1, 1), (1, 2), (3, 7), (1, 24), (2, 128), (1, 600), (1, 1, 5), (1, 3, 3), (1, 4, 4), (1, 8, 8), (3, 12, 15),
          (1, 28, 28), (3, 32, 32), (1, 64, 20), (3, 64, 64), (3, 80, 65), (1, 150, 300)]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("warp", [True, False], ids=["warps", "plain"])
def test_every_size_has_a_network_that_takes_a_step(shape, warp):
    given = data(*shape)
    found = recipe(given, warp=warp, steps=1)
    prepared = replace(given, x=found.prepare(given.x))
    assert prepared.x.shape[2:] == found.size == seen_size(shape[1:])
    assert fit(found.model, prepared, config=found.config, progress=False).steps == 1
    assert found.model.eval()(prepared.x, samples=2).logits.shape == (2 if warp else 1, 12, 3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_small_inputs_have_small_networks(shape):
    size = sum(p.numel() for p in body((shape[0], *seen_size(shape[1:])), 10).parameters())
    assert size < (100_000 if len(shape) == 2 or max(shape[1:]) <= 64 else 1_000_000)


def test_a_recipe_is_a_function_of_data_and_seed():
    given = cbf(12, seed=0)
    first, again, other = (recipe(given, seed=seed) for seed in (1, 1, 2))
    pairs = list(zip(first.model.parameters(), again.model.parameters(), other.model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)
    assert first.config == again.config


def test_prepared_data_has_mean_zero_and_deviation_one():
    for given in (data(3, 40), data(3, 20, 20)):
        x = recipe(given).prepare(given.x)
        assert abs(float(x.mean())) < 1e-5
        assert float(x.std()) == pytest.approx(1, abs=0.01)


def test_the_background_is_what_lies_outside():
    x = torch.zeros(6, 1, 20, 20)
    x[:, :, 5:15, 5:15] = torch.rand(6, 1, 10, 10)
    white = Data(1 - x, torch.arange(6) % 2, ("a", "b"))
    assert find_background(white.x) == 1
    found = recipe(white)
    assert found.model.options["padding"] == "fill"
    assert found.model.options["fill"] == pytest.approx(float(found.prepare(white.x)[0, 0, 0, 0]), abs=1e-5)
    assert "background is 1" in str(found)
    assert recipe(data(1, 20, 20)).model.options["padding"] == "border"


def test_brightness_and_contrast_of_photographs_do_not_matter():
    x = torch.rand(3, 3, 20, 20)
    scene, drawing = (network((3, 20, 20), 2, fill=fill).eval() for fill in (None, 0.0))
    torch.testing.assert_close(scene(5 + 3 * x, samples=0).logits, scene(x, samples=0).logits, atol=1e-3, rtol=1e-3)
    assert not torch.allclose(drawing(5 + 3 * x, samples=0).logits, drawing(x, samples=0).logits, atol=1e-2)


def test_the_words_name_what_was_found():
    text = str(recipe(data(2, 600)))
    assert "12 series of 600 points and 2 channels, 4 of each of 3 classes" in text
    assert "distortions of time" in text
    assert "No warps" in str(recipe(data(1, 28, 28), warp=False))


def test_more_examples_get_more_steps():
    steps = [settings(n, 2).steps for n in (10, 100, 1000, 100_000)]
    assert steps == sorted(steps)
    assert settings(5, 1).batch_size == 5
    assert settings(100, 1).steps < settings(100, 2).steps


@pytest.mark.parametrize(("side", "count"), [(12, 2), (32, 3), (80, 20)])
def test_the_convolutions_of_images_have_their_channels_last_and_keep_them_so(side, count):
    model = network((3, side, side), 4)
    again = copy.deepcopy(model)
    again.load_state_dict({name: value.contiguous() for name, value in model.state_dict().items()})
    for one in (model, again):
        kernels = [p for p in one.parameters() if p.ndim == 4]
        assert len(kernels) == count
        assert all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)


def test_a_spread_can_go_as_far_in_few_steps_as_in_many():
    for steps in (100, 10_000):
        config = settings(100, 2, steps=steps)
        assert config.lr * config.localizer_lr * steps == pytest.approx(0.3)


def test_uneven_classes_weigh_the_spread_less():
    """Most labels are one class, whatever is warped away: the divergence would win."""
    x = torch.rand(126, 1, 8, 8)
    for small, weight in ((63, 7.0), (6, 0.53)):
        y = (torch.arange(126) < small).long()
        assert recipe(Data(x, y, ("a", "b", "none of it"), "pets")).config.kl_weight == pytest.approx(weight, rel=0.01)


def test_the_spread_of_series_starts_smaller_than_that_of_images():
    series, images = (recipe(data(*shape)).model.posterior.spread for shape in ((1, 24), (1, 28, 28)))
    assert (series, images) == (SPREADS[1], SPREADS[2])
    assert series < images
    assert network((1, 24), 3, spread=0.2).posterior.spread == 0.2


def test_a_budget_buys_steps():
    given = data(1, 28, 28)
    config = settings(12, 2, steps=10**9)
    model = network((1, 28, 28), 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    few, many = (affordable(model, given, config, seconds) for seconds in (0.2, 20.0))
    assert 1 <= few < many < 10**9
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert affordable(model, given, replace(config, steps=3), 60.0) == 3
    with pytest.raises(ValueError, match="time_budget is -1"):
        recipe(given, time_budget=-1)


def test_resizing_keeps_the_mean_and_the_edges():
    x = torch.rand(2, 3, 40, 60)
    torch.testing.assert_close(resized(x, (20, 30)).mean(), x.mean())
    line = torch.linspace(0, 1, 11).view(1, 1, 11)
    assert (resized(line, (33,)).diff() >= 0).all()
    assert resized(x, (40, 60)) is x


def test_what_cannot_be_learned_is_an_error():
    with pytest.raises(ValueError, match="one class only"):
        recipe(Data(torch.rand(4, 1, 9), torch.zeros(4, dtype=torch.int64), ("a", "b")))
    with pytest.raises(ValueError, match="examples have shape"):
        recipe(data(1, 4, 4, 4))
