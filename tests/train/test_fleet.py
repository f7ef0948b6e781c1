"""A fleet is its networks, each as if alone."""

import copy
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from subject import CONFIG, FIFTY, assert_same, body, close, differ, localizer, made, make_data, make_model, weights
from torch import nn

from pstn import STN, Gaussian, Learned, Similarity, nets, wrap
from pstn.data import Data
from pstn.inference import Augment
from pstn.train import CheckpointError, Member, Train, fit, fit_fleet, load, load_model, save, seeded
from pstn.train.fleet.convolve import Products
from pstn.train.fleet.noise import Feed, Record
from pstn.train.fleet.stack import Stack


def same_history(a, b, tolerance=1e-3):
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() - {"seconds"}:
            assert one[key] == pytest.approx(other[key], rel=tolerance, abs=tolerance), key


@pytest.fixture(params=[(0, 10**9), (10**9, 10**9), (0, 0)], ids=["recorded", "eager", "recorded, large"])
def way(request, monkeypatch):
    """A step is written down and performed from the notes, or done anew each time; by all networks, or each in turn."""
    patience, large = request.param
    monkeypatch.setattr("pstn.train.fleet.lane.PATIENCE", patience)
    monkeypatch.setattr("pstn.train.fleet.stack.LARGE", large)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", ["student", "cnn", "gaussian", "point", "frozen", "diffeomorphic"])
def test_each_network_is_the_one_trained_alone(kind):
    """Fifty steps with dropout, batch statistics, sampled warps, a short last batch and settings of its own each."""
    data, validation = [make_data(seed=i) for i in range(3)], make_data(15, seed=9)
    configs = [
        replace(FIFTY, seed=5, lr=1e-2, kl_weight=1e-2),
        replace(FIFTY, seed=6, lr=3e-3, kl_weight=1e-3, weight_decay=0.1, schedule="cosine", warmup=1.0),
        replace(FIFTY, seed=7, lr=1e-3, kl_weight=1e-1, kl_warmup=3.0, schedule="step", step_size=4, localizer_lr=1.0),
    ]
    alone = [fit(made(i, kind), data[i], validation, configs[i], progress=False) for i in range(3)]
    fleet = fit_fleet([Member(made(i, kind), data[i], validation, configs[i]) for i in range(3)], progress=False)
    for one, other in zip(alone, fleet, strict=True):
        assert (other.steps, other.failure) == (50, None)
        close(weights(one.model), weights(other.model))
        same_history(one.history, other.history)
    assert differ(weights(fleet[0].model), weights(fleet[1].model))


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "weight_decay": 0.1},
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
        {"optimizer": "sgd", "nesterov": True, "clip": 0.5},
        {"clip": 0.1},
        {"samples": 3, "bound": "iw", "kl_per": "input"},
        {"drop_last": True, "steps": 11},
    ],
    ids=str,
)
def test_every_optimizer_and_setting_is_that_of_fit(settings):
    config = replace(CONFIG, **settings)
    data = make_data()
    alone = fit(make_model(), data, None, config, progress=False)
    fleet = fit_fleet([Member(make_model(i), data, None, replace(config, seed=i)) for i in range(2)], progress=False)
    close(weights(alone.model), weights(fleet[0].model))
    same_history(alone.history, fleet[0].history)


def test_weights_that_the_loss_does_not_depend_on_stay_as_they_are():
    def network(i):
        with seeded(i):
            looks = nn.Sequential(localizer(), nn.BatchNorm1d(8))  # in vain: the spread is the same for all
            return STN(body(), looks, Similarity(), Learned(), features=8)

    data, config = make_data(), replace(CONFIG, weight_decay=0.1, kl_per="dataset")
    alone = fit(network(1), data, None, config, progress=False)
    fleet = fit_fleet([Member(network(i), data, None, config) for i in range(2)], progress=False)
    close(weights(alone.model), weights(fleet[1].model))
    looked, started = (model.transformers[0].localizer[0] for model in (fleet[1].model, network(1)))
    assert_same(weights(looked), weights(started))


def test_the_company_does_not_matter():
    """Alone or with others before and behind: the same."""
    data = make_data()
    configs = [replace(CONFIG, seed=i) for i in range(3)]

    def run(order):
        runs = fit_fleet([Member(make_model(i), data, None, configs[i]) for i in order], progress=False)
        return {i: weights(run.model) for i, run in zip(order, runs, strict=True)}

    several, one = run((2, 0, 1)), run((1,))
    close(several[1], one[1])


def test_large_networks_take_their_steps_in_turn(monkeypatch):
    """A CPU gains nothing by stacking them: they are what they are alone, to the last bit."""
    batches = []
    run = Stack.run
    monkeypatch.setattr(
        Stack, "run", lambda stack, weights, *rest: batches.append(len(weights)) or run(stack, weights, *rest)
    )
    data = make_data()

    def trained(order):
        batches.clear()
        members = [Member(make_model(i), data, None, replace(CONFIG, seed=i)) for i in order]
        return [weights(run.model) for run in fit_fleet(members, progress=False)]

    stacked = trained((0, 1))
    assert set(batches) == {2}, "dots of eight pixels are small"
    monkeypatch.setattr("pstn.train.fleet.stack.LARGE", 1)
    apart = trained((0, 1))
    assert set(batches) == {1}
    assert_same(apart[1], trained((1,))[0])
    close(apart[1], stacked[1])


def test_augmentations_may_differ_in_strength():
    data = make_data()

    def augment(i):
        return Augment(Similarity(), 0.1 * i, fill=0.25)

    alone = [fit(made(i, "cnn"), data, config=CONFIG, augment=augment(i), progress=False) for i in range(3)]
    fleet = fit_fleet(
        [Member(made(i, "cnn"), data, None, CONFIG, augment=augment(i)) for i in range(3)], progress=False
    )
    for one, other in zip(alone, fleet, strict=True):
        close(weights(one.model), weights(other.model))
    assert differ(weights(fleet[0].model), weights(fleet[2].model))


def test_an_augmentation_that_could_learn_stays_as_it_is():
    def augment():
        return Augment(Similarity(), posterior=Learned())

    data = make_data()
    alone = fit(make_model(), data, config=CONFIG, augment=augment(), progress=False)
    members = [Member(make_model(i), data, None, replace(CONFIG, seed=i), augment()) for i in range(2)]
    fleet = fit_fleet(members, progress=False)
    close(weights(alone.model), weights(fleet[0].model))
    assert_same(weights(members[0].augment), weights(augment()))


def test_a_mixture_is_sorted_and_answered_in_order():
    data, small = make_data(), make_data(10)
    kinds = ["student", "cnn", "student", "point", "cnn"]
    members = [Member(made(i, kind), small if i == 4 else data, None, CONFIG) for i, kind in enumerate(kinds)]
    runs = fit_fleet(members, progress=False)
    assert [run.model for run in runs] == [member.model for member in members]
    assert [run.steps for run in runs] == [15, 15, 15, 15, 6]
    for i, kind in enumerate(kinds):
        alone = fit(made(i, kind), small if i == 4 else data, None, CONFIG, progress=False)
        close(weights(alone.model), weights(runs[i].model))


def test_sets_of_fewer_classes_than_others_join_them():
    few = make_data()
    several = replace(few, y=torch.arange(len(few)) % 5, classes=tuple("abcde"))

    def network():
        with seeded(0):
            return STN(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)))

    alone = fit(network(), several, None, CONFIG, progress=False)
    fleet = fit_fleet([Member(network(), data, None, CONFIG) for data in (few, several)], progress=False)
    close(weights(alone.model), weights(fleet[1].model))


def test_networks_that_differ_in_a_plain_setting_are_not_mixed_up():
    """Fill is a number in the model, not a tensor: two fills are two fleets, and both are right."""
    data = make_data()

    def network(i):
        with seeded(0):
            return STN(body(), localizer(), Similarity(), Gaussian(), features=8, fill=float(i))

    runs = fit_fleet([Member(network(i), data, None, CONFIG) for i in range(2)], progress=False)
    for i, run in enumerate(runs):
        close(weights(fit(network(i), data, None, CONFIG, progress=False).model), weights(run.model))


def test_one_that_diverges_is_left_behind_and_the_others_go_on():
    data = make_data()
    rates = (1e-2, 1e20, 1e-3)
    members = [Member(make_model(i), data, None, replace(FIFTY, lr=lr, seed=i)) for i, lr in enumerate(rates)]
    runs = fit_fleet(members, progress=False)
    assert "lr (now 1e+20)" in str(runs[1].failure)
    assert all(value.isfinite().all() for value in weights(runs[1].model).values())
    for i in (0, 2):
        assert runs[i].failure is None
        close(weights(fit(make_model(i), data, None, members[i].config, progress=False).model), weights(runs[i].model))


def test_the_best_weights_are_those_of_each_networks_own_best_epoch():
    data, validation = make_data(), make_data(15, seed=9)
    config = replace(FIFTY, lr=5e-2, keep="best")
    alone = [fit(make_model(i), data, validation, replace(config, seed=i), progress=False) for i in range(2)]
    fleet = fit_fleet(
        [Member(make_model(i), data, validation, replace(config, seed=i)) for i in range(2)], progress=False
    )
    for one, other in zip(alone, fleet, strict=True):
        assert one.best["epoch"] == other.best["epoch"]
        close(weights(one.model), weights(other.model), atol=2e-2)  # five times the usual learning rate
    assert any(run.best["epoch"] < 10 for run in fleet)


def test_a_validation_that_is_no_number_is_not_the_best_for_good():
    def loss(out, y):
        found = nn.functional.cross_entropy(out.logits.mean(0), y)
        return found if len(out.logits) == CONFIG.samples else torch.where(found > 0.7, torch.nan, found)  # to validate

    data, config = make_data(), replace(FIFTY, keep="best")
    alone = fit(make_model(), data, data, config, loss=loss, progress=False)
    fleet = fit_fleet([Member(make_model(i), data, data, config, loss=loss) for i in range(2)], progress=False)
    assert alone.history[0]["validation_loss"] != alone.history[0]["validation_loss"]
    assert alone.best["epoch"] == fleet[0].best["epoch"]


def test_validation_changes_nothing():
    data, validation = make_data(), make_data(15, seed=9)
    without = fit_fleet([Member(make_model(), data, None, CONFIG)], progress=False)
    with_it = fit_fleet([Member(make_model(), data, validation, CONFIG)], progress=False)
    assert_same(weights(without[0].model), weights(with_it[0].model))


def test_a_loss_of_ones_own():
    def loss(out, y):
        return ((out.logits.mean(0) - nn.functional.one_hot(y, 3)) ** 2).mean()

    data = make_data()
    alone = fit(make_model(), data, data, CONFIG, loss=loss, progress=False)
    fleet = fit_fleet([Member(make_model(i), data, data, CONFIG, loss=loss) for i in range(2)], progress=False)
    close(weights(alone.model), weights(fleet[0].model))
    assert "validation_loss" in fleet[0].history[-1]


def test_the_papers_networks_make_a_fleet():
    with seeded(0):
        data = Data(torch.randn(16, 1, 28, 28), torch.arange(16) % 10, tuple("0123456789"))
    config = replace(CONFIG, epochs=1, batch_size=8, lr=1e-3)

    def network(i):
        with seeded(i):
            return STN(nets.classifier((1, 28, 28), 10), nets.localizer((1, 28, 28)), Similarity(), Gaussian())

    runs = fit_fleet([Member(network(i), data, None, config) for i in range(2)], progress=False)
    for i, run in enumerate(runs):
        close(weights(fit(network(i), data, None, config, progress=False).model), weights(run.model))


def test_validation_is_in_sixteen_bits_where_training_is():
    data, validation, config = make_data(), make_data(15, seed=9), replace(CONFIG, precision="bf16-mixed")
    with seeded(0):
        model = STN(body(dropout=0.0))
    fleet = fit_fleet([Member(copy.deepcopy(model), data, validation, config)], progress=False)
    same_history(fit(model, data, validation, config, progress=False).history, fleet[0].history, tolerance=1e-5)


def test_networks_with_batch_norm_make_a_fleet_in_sixteen_bits():
    data, config = make_data(), replace(CONFIG, precision="bf16-mixed", lr=1e-3)
    alone = fit(make_model(), data, None, config, progress=False)
    members = [Member(make_model(i), data, None, replace(config, seed=i)) for i in range(2)]
    fleet = fit_fleet(members, progress=False)
    close(weights(alone.model), weights(fleet[0].model), atol=1e-2)
    same_history(alone.history, fleet[0].history, tolerance=1e-2)


def test_networks_with_group_norm_make_a_fleet():
    def network(i):
        with seeded(i):
            return STN(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 36, 3)))

    data = make_data()
    alone = fit(network(0), data, data, CONFIG, progress=False)
    fleet = fit_fleet([Member(network(i), data, data, CONFIG) for i in range(2)], progress=False)
    close(weights(alone.model), weights(fleet[0].model), atol=1e-3)  # of biases that are normalised away


def test_wrapped_networks_make_a_fleet():
    data, validation = make_data(), make_data(15, seed=9)

    def wrapped(i):
        with seeded(i):
            return wrap(body(), Similarity(), Gaussian(), example=data.x[:2], train="all")

    alone = fit(wrapped(0), data, validation, CONFIG, progress=False)
    members = [Member(wrapped(i), data, validation, replace(CONFIG, seed=i)) for i in range(2)]
    fleet = fit_fleet(members, progress=False)
    close(weights(alone.model), weights(fleet[0].model))
    same_history(alone.history, fleet[0].history)


def test_files_are_those_of_fit(tmp_path):
    data, validation = make_data(), make_data(15, seed=9)
    members = [Member(make_model(i), data, validation, CONFIG) for i in range(2)]
    runs = fit_fleet(members, directory=tmp_path, progress=False)
    for i, run in enumerate(runs):
        assert run.directory == tmp_path / f"{i:03d}"
        fresh = make_model(7)
        meta = load_model(fresh, run.directory / "model.safetensors")
        assert_same(weights(fresh), weights(run.model))
        assert (meta["config"]["seed"], meta["record"]["epoch"]) == (0, 3)
        assert len((run.directory / "log.jsonl").read_text().splitlines()) == 4


def test_a_finished_fleet_is_not_trained_again(tmp_path):
    data = make_data()
    first = fit_fleet([Member(make_model(), data, None, CONFIG)], directory=tmp_path, progress=False)
    start = time.perf_counter()
    again = fit_fleet([Member(make_model(), data, None, CONFIG)], directory=tmp_path, progress=False)
    assert time.perf_counter() - start < 1
    assert_same(weights(first[0].model), weights(again[0].model))
    assert again[0].history == first[0].history


def test_another_fleets_checkpoint_is_refused(tmp_path):
    data = make_data()
    fit_fleet([Member(make_model(), data, None, CONFIG)], directory=tmp_path, progress=False)
    with pytest.raises(CheckpointError, match=r"lr 0\.01 there, 0\.5 here"):
        fit_fleet([Member(make_model(), data, None, replace(CONFIG, lr=0.5))], directory=tmp_path, progress=False)
    with pytest.raises(CheckpointError, match=r"does not fit these networks: .*num_batches_tracked is not in"):
        fit_fleet([Member(made(0, "cnn"), data, None, CONFIG)], directory=tmp_path, progress=False)
    runs = fit_fleet(
        [Member(make_model(), data, None, replace(CONFIG, lr=0.5))], directory=tmp_path, resume=False, progress=False
    )
    assert runs[0].steps == 15


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from dataclasses import replace
from subject import CONFIG, make_data, make_model
from pstn.train import Member, fit_fleet
config = replace(CONFIG, epochs=60, checkpoint_every=0.0, schedule="cosine", keep="best", validate_every=4)
members = [
    Member(make_model(i), make_data(seed=i), make_data(15, seed=9), replace(config, seed=i)) for i in range(3)
]
print("ready", flush=True)
runs = fit_fleet(members, directory=sys.argv[1], progress=False)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A fleet that nothing stopped: the command that trains it, and its folder."""
    folder = tmp_path_factory.mktemp("fleet")
    script = folder / "fleet.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent)))
    command = [sys.executable, str(script)]
    subprocess.run([*command, str(folder)], check=True, stdout=subprocess.DEVNULL)
    return command, folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_a_stopped_fleet_goes_on_to_the_same_bits(tmp_path, whole, number):
    command, folder = whole
    broken = subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "fleet0-checkpoint.safetensors").exists():
        assert broken.poll() is None, broken.communicate()
        time.sleep(0.005)
    broken.send_signal(number)
    _, said = broken.communicate(timeout=60)
    assert broken.returncode != 0
    assert (number == signal.SIGKILL) or "call fit_fleet(...) again" in said
    assert not (tmp_path / "000").exists()
    subprocess.run([*command, str(tmp_path)], check=True, stdout=subprocess.DEVNULL)
    for i in range(3):
        a, b = make_model(7), make_model(8)
        load_model(a, folder / f"{i:03d}" / "model.safetensors")
        load_model(b, tmp_path / f"{i:03d}" / "model.safetensors")
        assert_same(weights(a), weights(b))


@pytest.mark.parametrize("finished", [True, False])
def test_a_fleet_of_another_kind_of_device(tmp_path, finished):
    """A GPU's random numbers cannot be continued on a CPU; where none are left to draw, there is no need to."""
    path, data = tmp_path / "fleet0-checkpoint.safetensors", make_data()

    def go():
        return fit_fleet([Member(make_model(0), data, None, CONFIG)], directory=tmp_path, progress=False)[0]

    whole = weights(go().model)
    tensors, meta = load(path)
    tensors["source.0"] = torch.zeros(16, dtype=torch.uint8)
    if not finished:
        meta["state"]["step"] -= 1
    save(path, tensors, meta)
    if finished:
        assert_same(weights(go().model), whole)
    else:
        with pytest.raises(CheckpointError, match="another kind of device"):
            go()


def test_a_validation_that_was_stopped_is_made_up_for(tmp_path, monkeypatch):
    """A signal in the midst of one: it is neither lost nor counted twice."""
    data, validation = make_data(), make_data(600, seed=9)
    config = replace(CONFIG, validate_every=1, samples_validation=100, keep="best")

    def go(folder):
        return fit_fleet([Member(make_model(i), data, validation, config) for i in range(2)], directory=folder)

    whole = go(tmp_path / "whole")
    run, calls = Stack.run, []

    def stop(self, *arguments):
        if not self.unit.training:
            calls.append(1)
            if len(calls) == 70:
                signal.raise_signal(signal.SIGINT)
        return run(self, *arguments)

    monkeypatch.setattr(Stack, "run", stop)
    with pytest.raises(KeyboardInterrupt, match="again"):
        go(tmp_path / "broken")
    broken = go(tmp_path / "broken")
    for one, other in zip(whole, broken, strict=True):
        assert_same(weights(one.model), weights(other.model))
        assert [list(record) for record in one.history] == [list(record) for record in other.history]


def test_bad_fleets_are_refused():
    data = make_data()
    with pytest.raises(ValueError, match="no members"):
        fit_fleet([])
    with pytest.raises(ValueError, match="32-true"):
        fit_fleet([Member(make_model(), data, None, Train(precision="64-true"))])
    with pytest.raises(ValueError, match="devices is 2"):
        fit_fleet([Member(make_model(), data, None, Train(devices=2))])
    with pytest.raises(ValueError, match="nothing to train"):
        fit_fleet([Member(make_model().requires_grad_(False), data, None, CONFIG)])
    model = make_model()
    with pytest.raises(ValueError, match="two members have the same model"):
        fit_fleet([Member(model, data, None, replace(CONFIG, seed=seed)) for seed in range(2)])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("count", [1, 2])
def test_draws_that_cannot_be_told_apart_are_refused(count):
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.empty(x.shape).exponential_()

    models = [STN(nn.Sequential(Noisy(), body())) for _ in range(count)]
    with pytest.raises(RuntimeError, match="random"):
        fit_fleet([Member(model, make_data(), None, CONFIG) for model in models], progress=False)


def test_fed_noise_is_the_noise_drawn():
    model, x = make_model().train(), make_data().x
    with seeded(3), Record() as record:
        drawn = model(x, samples=2).logits
    source = torch.Generator().manual_seed(3)
    with Feed([request.draw(source) for request in record.requests]):
        fed = make_model().train()(x, samples=2).logits
    assert torch.equal(drawn, fed)
    with pytest.raises(RuntimeError, match="draws other numbers"), Feed([]):
        model(x)


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_products_are_convolutions(ndim):
    convolution = {1: nn.functional.conv1d, 2: nn.functional.conv2d, 3: nn.functional.conv3d}[ndim]
    x = torch.randn(3, 2, 4, *[7] * ndim, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 5, 4, *range(2, 2 + ndim), dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def one(x, weight, bias):
        return convolution(x, weight, bias, stride=2, padding=1)

    expected = torch.stack([one(*each) for each in zip(x, weight, bias, strict=True)])
    with Products():
        found = torch.func.vmap(one)(x, weight, bias)
    torch.testing.assert_close(found, expected)
    direction = torch.randn_like(expected)
    for a, b in zip(
        torch.autograd.grad(found, (x, weight, bias), direction),
        torch.autograd.grad(expected, (x, weight, bias), direction),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
