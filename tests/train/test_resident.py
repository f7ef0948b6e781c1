"""A step as one kernel, each network in a block of threads of its own, is the same step."""

import math
import re
import shutil
import subprocess
from dataclasses import replace

import host
import pytest
import torch
from subject import FIFTY, assert_same, close, made, make_data, make_model, weights

from pstn import CPAB, STN, Affine, C, Gaussian, Learned, Point, Similarity, kernels, nets
from pstn.data import Data, Normalise, digits
from pstn.inference import Augment
from pstn.train import Fleet, Member, fit_fleet, seeded
from pstn.train.fleet import resident
from pstn.train.fleet.optimizer import State
from pstn.train.fleet.resident import kernel
from pstn.train.fleet.resident.values import Unsupported
from pstn.train.fleet.resident.writer import Writer
from pstn.train.signals import Signals


@pytest.fixture
def here(monkeypatch, replayed):
    """As on a GPU, but that kernels are compiled for this machine; the lanes that were recorded."""
    host.watch(monkeypatch)
    monkeypatch.setattr(kernel, "compiled", host.alone)
    monkeypatch.setattr(kernels, "_DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(kernels, "_TRITON", False)  # all that is no step goes as ever
    return replayed()


def small(shape, *, normed=False):
    """A small classifier of several layers with pooling; with batch normalisation, also with padding."""
    return nets.normed_classifier(shape, 3, channels=(4, 6), hidden=5) if normed else (
        nets.classifier(shape, 3, channels=(3, 5), kernel=(4, 3), hidden=6)
    )  # fmt: skip


SHAPE = (1, 14, 13)


class Sums(torch.nn.Module):
    """Long sums, to each of which another is added that is then not needed any more."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(182, 3, bias=False)

    def forward(self, x):
        return x.flatten(1)[:, :3].sum(0) + self.linear(x.flatten(1))


def network(kind, seed):
    """Networks as the papers' tables have them, small."""
    if kind in ("student", "gaussian", "point", "frozen", "cnn"):
        return made(seed, kind)
    with seeded(seed):
        look = nets.localizer(SHAPE, channels=(3, 4), kernel=(4, 3))
        if kind == "pooled":
            return STN(small(SHAPE))
        if kind == "sums":
            return STN(Sums())
        if kind == "spread":
            return STN(small(SHAPE, normed=True), nets.blind(), Affine(), Learned(), fill=0.3)
        if kind == "hidden":
            head = Gaussian(0.1, hidden=(7,), image_noise=0.01)
            return STN(small(SHAPE), look, Similarity(scale="linear"), head, padding="border")
        if kind == "bent":
            return STN(small(SHAPE), look, CPAB((2, 3)), Gaussian(0.3, 0.2), fill=0.1)
        if kind == "window":
            return STN(small((1, 14, 14)), look, Similarity(), Point(), size=(14, 14), fill=0.1)
        assert kind == "starts"
        starts = ((0.0, 0.0, 0.1, 0.0), (1.0, 0.0, 0.0, 0.1))
        found = nets.localizer((1, 14, 14), channels=(3, 4), kernel=(4, 3))
        return STN(small((1, 14, 14)), found, Similarity(), Point(), C(0, starts=starts), size=(14, 14))


def data(kind, seed):
    if kind in ("student", "gaussian", "point", "frozen", "cnn"):
        return make_data(seed=seed)
    with seeded(seed):
        y = torch.arange(22) % 3
        # smooth, or where a position falls beside a pixel's middle decides on its slope
        x = torch.nn.functional.avg_pool2d(torch.randn(22, 1, 16, 15), 3, stride=1) * 2
        return Data(x, y, ("a", "b", "c"))


#: Not at the identity, where positions are pixels' middles, at which pictures have two slopes.
def moved(model, seed):
    with seeded(seed + 100), torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model


def train(kind, steps=2, count=2, augment=False, **options):
    if kind == "spread":
        options |= {"kl_per": "dataset", "samples": 2}
    config = replace(FIFTY, epochs=1, steps=steps, drop_last=True, **options)
    members = []
    for i in range(count):
        extra = Augment(Similarity(), 0.1 * (i + 1), fill=0.2) if augment else None
        own = replace(config, seed=i, kl_weight=1e-2 * (i + 1), lr=1e-3 * (i + 1))
        members.append(Member(moved(network(kind, i), i), data(kind, i), None, own, extra))
    runs = fit_fleet(members, progress=False)
    assert [run.steps for run in runs] == [steps] * count
    return [weights(run.model) for run in runs], [run.history[-1]["loss"] for run in runs]


KINDS = (
    "student",
    "gaussian",
    "point",
    "frozen",
    "cnn",
    "pooled",
    "sums",
    "spread",
    "hidden",
    "window",
    "starts",
    "bent",
)


@pytest.mark.parametrize(
    ("compiled", "kind"),
    [*((host.together, kind) for kind in KINDS), *((host.alone, kind) for kind in ("student", "spread", "bent"))],
)
def test_a_step_as_one_kernel_is_the_same_step(kind, compiled, here, monkeypatch):
    monkeypatch.setattr(kernel, "compiled", compiled)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # which tensor cores round to
    here_found, losses = train(kind)
    assert all(lane.kernel is not None for lane in here), "it was not tried"
    with kernels.reference():
        here.clear()
        found, wanted = train(kind)
    assert all(lane.kernel is None for lane in here)
    assert losses == pytest.approx(wanted, rel=1e-4)
    for a, b in zip(here_found, found, strict=True):
        close(a, b, atol=2e-5)


@pytest.fixture
def team(request, monkeypatch):
    """However few examples there are, so many blocks share them out."""
    blocks = getattr(request, "param", 4)
    monkeypatch.setattr(resident.team, "TEAMS", (blocks,))
    monkeypatch.setattr(resident.team, "PICTURES", 1)
    return blocks


#: By Adam, rounding of a slope of zero would be a step.
SHARED = {"batch_size": 4, "optimizer": "sgd"}


@pytest.mark.parametrize(
    ("team", "kind"), [*((4, kind) for kind in KINDS), (2, "student"), (2, "sums")], indirect=["team"]
)
def test_by_several_blocks_it_is_the_same_step(kind, team, here, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    here_found, losses = train(kind, 3, **SHARED)
    assert all(lane.kernel is not None for lane in here), "it was not tried"
    # where examples have to do with one another, a block has all of them
    assert {lane.kernel.text.team for lane in here} == {1 if kind == "sums" else team}
    with kernels.reference():
        found, wanted = train(kind, 3, **SHARED)
    assert losses == pytest.approx(wanted, rel=1e-5)
    for a, b in zip(here_found, found, strict=True):
        close(a, b, atol=2e-6)


@pytest.mark.parametrize(("team", "kind"), [(4, "student"), (4, "spread"), (2, "student")], indirect=["team"])
def test_blocks_of_many_threads_wait_for_one_another(kind, team, here, monkeypatch):
    monkeypatch.setattr(kernel, "compiled", host.together)
    found, _ = train(kind, 1, **SHARED)
    assert {lane.kernel.text.team for lane in here} == {team}
    with kernels.reference():
        wanted, _ = train(kind, 1, **SHARED)
    for a, b in zip(found, wanted, strict=True):
        close(a, b, atol=1e-3)  # convolutions are rounded


def test_a_loss_of_its_own_is_of_the_whole_batch(team, here):
    """It may compare examples with one another, if not at the first step: each block has all of them."""
    config = replace(FIFTY, epochs=1, steps=2, drop_last=True, **SHARED)

    def loss(out, y):
        return torch.nn.functional.cross_entropy(out.logits[0], y)

    members = [Member(network("pooled", i), data("pooled", i), None, config, loss=loss) for i in range(2)]
    fit_fleet(members, progress=False)
    assert {lane.kernel.text.team for lane in here} == {1}


def test_noise_that_is_no_examples_own_is_for_one_block(team, here, monkeypatch):
    def refuse(whole, own, size, team):
        if team > 1:
            raise Unsupported("noise of an unknown kind")

    monkeypatch.setattr("pstn.train.fleet.resident.step.part_of", refuse)
    train("student", 1, **SHARED)
    assert {lane.kernel.text.team for lane in here} == {1}


@pytest.mark.parametrize("seed", range(3))
def test_rounding_is_not_taken_for_examples_that_have_to_do_with_one_another(seed, here):
    """In a large network with batch normalisation it is more than elsewhere, before a black background most of all."""
    few, _ = digits().normalised(Normalise(mean=0.1307, std=0.3081)).split((100, 100), seed=seed)
    with seeded(seed):
        model = STN(nets.normed_classifier((1, 28, 28), 10), nets.blind(), Affine(), Learned(), fill=-0.42)
    config = replace(FIFTY, epochs=1, batch_size=8, samples=4, kl_per="dataset", seed=seed, drop_last=True)
    with Signals() as signals:
        fleet = Fleet([Member(model, few, None, config)], signals)
        fleet.stack.unit.train()
        lane = fleet.lane(8)
        lane.noise = [r.draw(fleet.sources[0])[None, None] for r in lane.requests]
        lane.fill(torch.stack(fleet.shuffled()[:1]), torch.tensor([fleet.knobs(0)])[:, fleet.kind])
        found = resident.resident(fleet, lane)
    assert found is not None
    assert found.text.team == 8


class Gated(torch.nn.Module):
    """Examples have to do with one another through a gate, which is closed at first: all that shows is its gradient."""

    def __init__(self):
        super().__init__()
        self.linear, self.gate = torch.nn.Linear(182, 3), torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        x = x.flatten(1)
        return self.linear(x) + 0.01 * self.gate * (x - x.mean(0))[:, :3]


def test_a_gradient_of_one_number_is_not_lost_among_the_others(team, here):
    config = replace(FIFTY, epochs=1, steps=1, drop_last=True, **SHARED)
    fit_fleet([Member(STN(Gated()), data("pooled", 0), None, config)], progress=False)
    assert {lane.kernel.text.team for lane in here} == {1}


def test_what_several_blocks_do_wrong_one_does(team, here, monkeypatch):
    """Here, they do not wait for one another, which is noticed."""
    monkeypatch.setattr(Writer, "meet", Writer.barrier)
    train("pooled", 1, **SHARED)
    assert {lane.kernel.text.team for lane in here} == {1}


def test_factors_of_convolutions_are_rounded_where_torch_would(here, monkeypatch):
    """And what comes of it is still taken for torch's step."""
    monkeypatch.setattr(kernel, "compiled", host.together)
    found = {}
    for rounds in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", rounds)
        found[rounds] = train("pooled", 1)
    assert all(lane.kernel is not None for lane in here)
    apart = abs(torch.tensor(found[True][1]) - torch.tensor(found[False][1])).max()
    assert 1e-7 < apart < 1e-3


@pytest.mark.parametrize(
    "how",
    [
        {"optimizer": "adamw", "weight_decay": 0.1, "clip": 0.5},
        {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
        {"optimizer": "sgd", "momentum": 0.0, "clip": 0.1},
        {"kl_per": "input", "samples": 3},
        {"bound": "iw", "samples": 2},
    ],
)
def test_whatever_the_settings(how, here):
    here_found, losses = train("student", 3, **how)
    assert all(lane.kernel is not None for lane in here)
    with kernels.reference():
        found, wanted = train("student", 3, **how)
    assert losses == pytest.approx(wanted, rel=1e-4)
    for a, b in zip(here_found, found, strict=True):
        close(a, b, atol=2e-5)


@pytest.mark.parametrize("kind", ["cnn", "pooled"])
def test_augmented_each_by_its_own(kind, here):
    here_found, _ = train(kind, augment=True)
    assert all(lane.kernel is not None for lane in here)
    with kernels.reference():
        found, _ = train(kind, augment=True)
    for a, b in zip(here_found, found, strict=True):
        close(a, b, atol=2e-5)


def test_a_network_that_diverges_keeps_its_last_good_numbers(here):
    """Batch statistics, too; the others do not notice."""

    def run():
        configs = [replace(FIFTY, epochs=1, seed=i, kl_weight=w) for i, w in enumerate((1e-2, 3e38, 1e-2))]
        members = [Member(make_model(i), make_data(seed=i), None, config) for i, config in enumerate(configs)]
        runs = fit_fleet(members, progress=False)
        assert [run.failure is None for run in runs] == [True, False, True]
        return [weights(run.model) for run in runs]

    found = run()
    assert all(lane.kernel is not None for lane in here)
    assert_same(found[1], weights(make_model(1)))
    with kernels.reference():
        wanted = run()
    for n in (0, 2):
        close(found[n], wanted[n], atol=1e-3)


class Ranked(torch.nn.Module):
    """An operation that no kernel has words for."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(182, 3)

    def forward(self, x):
        return self.linear(x.flatten(1).sort().values)


@pytest.mark.parametrize("kind", ["ranked", "large"])
def test_what_has_no_kernel_trains_as_other_fleets_do(kind, here, monkeypatch):
    if kind == "large":
        monkeypatch.setattr(resident, "PRODUCTS", 1000)
    network = STN(small(SHAPE) if kind == "large" else Ranked())
    fit_fleet([Member(network, data(kind, 0), None, replace(FIFTY, epochs=1))], progress=False)
    assert here
    assert all(lane.kernel is None for lane in here)


@pytest.mark.parametrize(("kind", "wanted"), [("bent", False), ("hidden", True)])
def test_sums_in_no_fixed_order_are_not_for_who_asks_for_the_same_numbers_each_time(kind, wanted, here):
    torch.use_deterministic_algorithms(True)
    try:
        train(kind, 1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert {lane.kernel is not None for lane in here} == {wanted}


def test_a_kernel_that_fails_costs_speed_alone(here, monkeypatch):
    def refuse(text, shared, team):
        raise RuntimeError("no such thing")

    with kernels.reference():
        wanted, _ = train("cnn")
    monkeypatch.setattr(kernel, "compiled", refuse)
    with pytest.warns(UserWarning, match="without a kernel of its own, which failed: no such thing"):
        found, _ = train("cnn")
    for a, b in zip(found, wanted, strict=True):
        close(a, b, atol=2e-5)


def test_a_kernel_that_does_not_do_what_torch_does_is_not_used(here, monkeypatch):
    with kernels.reference():
        wanted, _ = train("cnn")
    monkeypatch.setattr(kernel.Kernel, "__call__", lambda self: None)
    with pytest.warns(UserWarning, match="without a kernel of its own, whose losses are not torch's"):
        found, _ = train("cnn")
    for a, b in zip(found, wanted, strict=True):
        close(a, b, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("sums", lambda x: x * 1.05, "whose losses are not torch's"),
        (
            "slots",
            lambda x: x * torch.tensor([1.5, 1.5, 9.0]),
            "whose gradients or statistics are 0.5 times themselves",
        ),
        ("still", lambda x: x + 1, "whose gradients or statistics are"),
        ("still", lambda x: x * math.nan, "whose gradients or statistics are nan times themselves"),
        ("alive", lambda x: torch.tensor([False, True]), "which finds other networks to diverge than torch does"),
        ("sums", lambda x: x * 1.001, ""),
        ("slots", lambda x: x * torch.tensor([1.01, 1.01, 9.0]), ""),  # the last is a localizer's
    ],
)
def test_steps_are_alike_or_not(name, change, words):
    """One network of two has diverged: its numbers do not matter."""
    alone = torch.tensor([[1.0], [math.nan]])
    kinds = {"weights": 3, "sums": 2, "slots": 3, "still": 2}
    made = {kind: (torch.randn(2, n) + 3) * alone for kind, n in kinds.items()}
    wanted = State(
        made["weights"], {"first": made["slots"]}, {"mean": made["still"]}, torch.tensor([True, False]), made["sums"]
    )
    found = wanted.clone()
    value = getattr(found, name)
    for each in value.values() if isinstance(value, dict) else [value]:
        each.copy_(change(each))
    said = resident.unlike(found, wanted, torch.tensor([True, True, False]))
    assert said.startswith(words)
    assert bool(said) is bool(words)


def test_networks_with_weights_of_their_own_and_settings_share_a_kernel(here):
    texts = []
    for count, decay in ((1, 0.0), (3, 0.1)):
        here.clear()
        train("pooled", count=count, weight_decay=decay)
        texts.append(here[0].kernel.text.source)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("shared", [57_344, 1000, 0])
def test_with_less_shared_memory_it_is_the_same_step(shared, here, monkeypatch):
    monkeypatch.setattr(resident, "shared_memory", lambda device: shared or 32)
    found, _ = train("hidden")
    assert here[0].kernel.text.shared <= max(shared, 32)
    assert (here[0].kernel.text.room == 0) is (shared == 57_344)
    with kernels.reference():
        wanted, _ = train("hidden")
    for a, b in zip(found, wanted, strict=True):
        close(a, b, atol=2e-5)


def test_threads_that_do_not_wait_for_one_another_are_noticed(here, monkeypatch):
    monkeypatch.setattr(Writer, "barrier", lambda writer: writer.passed())
    with pytest.warns(UserWarning, match="threads would get in each other's way"):
        train("pooled", 1)


@pytest.mark.parametrize("kind", ["hidden", "bent"])
def test_a_kernel_compiles_for_a_gpu(kind, here, tmp_path, monkeypatch):
    """As far as can be told without one: by NVIDIA's compiler, where there is one."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("no nvcc: kernels are not compiled for a GPU")
    monkeypatch.setattr(resident.team, "PICTURES", 1)
    train(kind, 1, batch_size=4)
    text = here[0].kernel.text
    assert text.team == 4
    file = tmp_path / "step.cu"
    file.write_text(kernel.source(text.source.replace("reading(", "(").replace("writing(", "("), text.team))
    command = [compiler, "-arch=sm_90", "-std=c++17", "-ptx", "-o", str(tmp_path / "step.ptx"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    assert {"mma.sync", "barrier.cluster"} <= set(
        re.findall(r"mma\.sync|barrier\.cluster", (tmp_path / "step.ptx").read_text())
    )
