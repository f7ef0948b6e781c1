import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import tyro
from subject import assert_same, make_model, weights

from pstn.train import Train, fit, load_model
from pstn.train.schedule import factor

PER_EPOCH, EPOCHS = 7, 30
TOTAL = PER_EPOCH * EPOCHS


def rates(config: Train) -> list[float]:
    return [factor(config, step, TOTAL, PER_EPOCH) for step in range(TOTAL)]


def test_constant_is_one():
    assert set(rates(Train())) == {1.0}


@pytest.mark.parametrize(("size", "gamma"), [(1, 0.5), (4, 0.1), (10, 0.3), (100, 0.1)])
def test_step_is_torchs(size, gamma):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = torch.optim.lr_scheduler.StepLR(optimizer, size, gamma)
    found = rates(Train(schedule="step", step_size=size, gamma=gamma))
    for epoch in range(EPOCHS):
        for step in range(PER_EPOCH):
            assert found[epoch * PER_EPOCH + step] == pytest.approx(reference.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        reference.step()


def test_step_may_be_a_part_of_an_epoch():
    found = rates(Train(schedule="step", step_size=3 / PER_EPOCH, gamma=0.5))
    assert found[:7] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]


@pytest.mark.parametrize(("falls", "gamma"), [((3,), 0.5), ((4, 9, 10), 0.1), ((28, 40), 0.3)])
def test_several_steps_are_torchs(falls, gamma):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, gamma)
    found = rates(Train(schedule="step", step_size=tuple(map(float, falls)), gamma=gamma))
    for epoch in range(EPOCHS):
        for step in range(PER_EPOCH):
            assert found[epoch * PER_EPOCH + step] == pytest.approx(reference.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        reference.step()


def test_cosine_is_torchs():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL)
    for value in rates(Train(schedule="cosine")):
        assert value == pytest.approx(reference.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        reference.step()


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine"])
def test_warmup_rises_linearly_and_then_leaves_the_schedule_alone(schedule):
    warm = rates(Train(schedule=schedule, warmup=2))
    steps = 2 * PER_EPOCH
    assert warm[:steps] == pytest.approx([(i + 1) / steps for i in range(steps)])
    assert max(warm) == 1.0
    if schedule == "cosine":
        assert warm[steps:] == pytest.approx(
            [(1 + math.cos(math.pi * i / (TOTAL - steps))) / 2 for i in range(TOTAL - steps)]
        )
    else:
        assert warm[steps:] == rates(Train(schedule=schedule))[steps:]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("steps", 0),
        ("batch_size", 0),
        ("lr", 0.0),
        ("lr", math.nan),
        ("lr", math.inf),
        ("localizer_lr", -1.0),
        ("weight_decay", -0.1),
        ("clip", 0.0),
        ("samples", 0),
        ("samples_validation", 0),
        ("kl_weight", -1.0),
        ("step_size", 0.0),
        ("step_size", ()),
        ("step_size", (2.0, 0.0)),
        ("step_size", (3.0, 2.0)),
        ("step_size", (3.0, 3.0)),
        ("warmup", -1.0),
        ("devices", 0),
        ("checkpoint_every", -1.0),
        ("optimizer", "lion"),
        ("schedule", "linear"),
        ("precision", "8-true"),
        ("accelerator", "tpu"),
        ("kl_per", "pixel"),
        ("bound", "upper"),
        ("keep", "all"),
    ],
)
def test_a_wrong_setting_is_named(field, value):
    with pytest.raises(ValueError, match=rf"{field} is .*expected"):
        Train(**{field: value})


def test_nesterov_needs_sgd():
    with pytest.raises(ValueError, match="nesterov needs optimizer='sgd'"):
        Train(nesterov=True)
    assert Train(nesterov=True, optimizer="sgd").nesterov


def test_the_command_line_fills_it(capsys):
    words = ["--epochs", "7", "--clip", "0.5", "--schedule", "cosine", "--drop-last"]
    assert tyro.cli(Train, args=words) == Train(epochs=7, clip=0.5, schedule="cosine", drop_last=True)
    assert tyro.cli(Train, args=["--step-size", "3"]).step_size == 3.0
    assert tyro.cli(Train, args=["--step-size", "3", "5.5"]).step_size == (3.0, 5.5)
    with pytest.raises(SystemExit):
        tyro.cli(Train, args=["--help"])
    text = capsys.readouterr().out
    assert "Passes over the training data" in text
    assert "The localizer's learning rate" in text


def test_the_schedule_ends_with_the_time(tmp_path, model, data, validation, config):
    """A machine that gets slower while it trains: fewer steps are taken, and the last are as small as planned."""
    taken = []

    def slower(x):
        taken.append(len(x))
        time.sleep(0.02 if len(taken) > 20 else 0.0)
        return x

    plan = replace(config, steps=400, schedule="cosine")
    run = fit(model, data, validation, plan, directory=tmp_path, augment=slower, seconds=2.5, progress=False)
    assert 40 < run.steps == len(taken) < 200
    assert run.seconds < 5
    assert run.history[-1]["step"] == run.steps
    assert run.history[-1]["lr"] < 0.05 * config.lr
    assert "validation_nll" in run.history[-1]
    again = make_model()
    load_model(again, tmp_path / "model.safetensors")
    assert_same(weights(again), weights(model))


def test_time_enough_changes_nothing(data, config):
    plan = replace(config, schedule="cosine")
    runs = [fit(make_model(), data, config=plan, seconds=seconds, progress=False) for seconds in (None, 1000.0)]
    assert_same(weights(runs[0].model), weights(runs[1].model))


@pytest.mark.parametrize("name", ["epochs", "steps", "batch_size", "samples"])
def test_what_is_counted_is_whole(name):
    """As a grid of settings has it that was made by linspace."""
    with pytest.raises(TypeError, match=f"{name} is 100.0; expected a whole number"):
        Train(**{name: 100.0})
    assert getattr(Train(**{name: np.int64(100)}), name) == 100
