"""Networks of kinds that torch cannot stack, or not easily: in a fleet they are what they are alone, or are refused."""

from dataclasses import replace

import pytest
import torch
from subject import CONFIG, close, localizer, make_data, weights
from torch import nn
from torch.utils.checkpoint import checkpoint

from pstn import STN, Similarity
from pstn.train import Member, fit, fit_fleet, seeded

FLAT = 64  # the pixels of an example


class Recurrent(nn.Module):
    """A gated recurrent network over an image's rows."""

    def __init__(self):
        super().__init__()
        self.over, self.out = nn.GRU(8, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.over(x[:, 0])[0][:, -1])


class Classifier(nn.Module):
    """A linear layer behind something that each kind below has of its own."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(FLAT, 3)

    def forward(self, x):
        return self.out(self.seen(x).flatten(1))


class Deciding(Classifier):
    def seen(self, x):
        return x if x.mean() > 0.03 else -x


class Masking(Classifier):
    def seen(self, x):
        return x * x[x > 0].mean()


class Averaging(Classifier):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(FLAT))

    def seen(self, x):
        before = self.mean
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().flatten(1).mean(0)
        return x.flatten(1) * (1 + before) - self.mean


class Writing(Classifier):
    def seen(self, x):
        return x.mul_(2.0)


class Again(Classifier):
    def forward(self, x):
        return checkpoint(self.out, x.flatten(1), use_reentrant=False)


def convolved(*layers):
    return lambda: nn.Sequential(nn.Conv2d(1, 4, 3), *(layer() for layer in layers), nn.Flatten(), nn.LazyLinear(3))


def trained(kind, count=2, config=CONFIG, data=None):
    """One network alone, and as the last of a fleet."""
    data = make_data() if data is None else data

    def network(i):
        with seeded(i):
            model = STN(kind(), localizer(), Similarity(), features=8)
            model(data.x[:1].clone())  # so that lazy layers know their shapes
            return model

    configs = [replace(config, seed=i) for i in range(count)]
    members = [Member(network(i), data, data, configs[i]) for i in range(count)]
    return fit(network(count - 1), data, data, configs[-1], progress=False), fit_fleet(members, progress=False)[-1]


def same(alone, fleet, atol=1e-4):
    assert fleet.failure is None
    close(weights(alone.model), weights(fleet.model), atol=atol)
    for one, other in zip(alone.history, fleet.history, strict=True):
        assert other["validation_nll"] == pytest.approx(one["validation_nll"], rel=1e-3, abs=10 * atol)


@pytest.mark.parametrize(
    "kind",
    [Recurrent, Deciding, Masking, convolved(lambda: nn.BatchNorm2d(4, momentum=None))],
    ids=["recurrent", "deciding", "masking", "averaged statistics"],
)
def test_networks_that_cannot_be_stacked_take_turns(kind):
    with pytest.warns(UserWarning, match="one after the other"):
        same(*trained(kind))


@pytest.mark.parametrize("layer", [nn.PReLU, lambda: nn.ConvTranspose2d(4, 2, 3)], ids=["PReLU", "transposed"])
def test_so_do_those_that_cannot_in_sixteen_bits(layer):
    with pytest.warns(UserWarning, match="one after the other"):
        same(*trained(convolved(layer), config=replace(CONFIG, precision="bf16-mixed", lr=1e-3)), atol=1e-2)


@pytest.mark.parametrize("kind", [Deciding, Masking])
def test_steps_that_depend_on_values_are_not_written_down(kind, monkeypatch):
    """A recording would go on as the first step did, whatever it is given."""
    monkeypatch.setattr("pstn.train.fleet.lane.PATIENCE", 0)
    with pytest.warns(UserWarning, match="not written down"):
        same(*trained(kind, count=1))


def test_a_dropout_of_everything_leaves_nothing():
    same(*trained(convolved(lambda: nn.Dropout(1.0))))


@pytest.mark.parametrize("patience", [0, 10**9], ids=["recorded", "eager"])
@pytest.mark.parametrize("large", [0, 10**9], ids=["apart", "stacked"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_buffer_may_be_assigned_to(count, large, patience, monkeypatch):
    monkeypatch.setattr("pstn.train.fleet.lane.PATIENCE", patience)
    monkeypatch.setattr("pstn.train.fleet.stack.LARGE", large)
    same(*trained(Averaging, count))


def test_a_model_may_write_to_what_it_is_given():
    data = make_data()
    before = data.x.clone()

    def network(i):
        with seeded(i):
            return STN(Writing())

    config = replace(CONFIG, lr=1e-3)
    alone = fit(network(1), data, data, config, progress=False)
    fleet = fit_fleet([Member(network(i), data, data, config) for i in range(2)], progress=False)[1]
    assert torch.equal(data.x, before)
    same(alone, fleet)
    assert alone.history[-1]["validation_nll"] == pytest.approx(alone.history[-1]["nll"], abs=0.3)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", [Again, lambda: nn.Sequential(nn.Flatten(), nn.Linear(FLAT, 5), nn.RReLU())])
def test_what_a_fleet_cannot_do_is_refused_in_words(kind, count):
    with pytest.raises(RuntimeError, match=r"fleet cannot train these networks; fit\(...\) can"):
        trained(kind, count)


@pytest.mark.parametrize("whole", ["training", "evaluation"])
def test_parts_in_evaluation_mode_stay_so(whole):
    """Batch statistics that are not to move do not, in a model that is in training mode; nor is its mode lost."""
    data = make_data()

    def network(i):
        with seeded(i):
            model = STN(convolved(lambda: nn.BatchNorm2d(4))(), localizer(), Similarity(), features=8)
            model(data.x)
            model.train(whole == "training").body[1].eval()
            return model

    alone = fit(network(1), data, data, CONFIG, progress=False).model
    fleet = fit_fleet([Member(network(i), data, data, CONFIG) for i in range(2)], progress=False)[1].model
    close(weights(alone), weights(fleet))
    for model in (alone, fleet):
        moved = not torch.equal(model.body[1].running_mean, network(1).body[1].running_mean)
        assert moved == (whole == "evaluation"), "a model in evaluation mode is trained as a whole"
        assert [module.training for module in model.modules()] == [m.training for m in network(1).modules()]


def test_networks_with_other_parts_in_evaluation_mode_are_not_mixed_up():
    data = make_data()

    def network(rests):
        with seeded(0):
            model = STN(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(FLAT, 3)))
            model.body[0].train(not rests)
            return model

    runs = fit_fleet([Member(network(rests), data, None, CONFIG) for rests in (True, False)], progress=False)
    assert [int(run.model.body[0].num_batches_tracked) for run in runs] == [0, 15]
