import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pstn.families import Affine, Similarity, Translation
from pstn.inference import TTA, Augment, predict
from pstn.posterior import Gaussian, Point, StudentT
from pstn.stn import STN, Output
from pstn.wrap import wrap

CLASSES = 3


class Sampled(nn.Module):
    """Logits that are given, (S, N, K): each input carries its number in its first pixel."""

    def __init__(self, logits):
        super().__init__()
        self.register_buffer("logits", logits)

    def forward(self, x, samples=1, *, method="random", generator=None):
        return Output(self.logits[:samples, x[:, 0, 0, 0].long()])


def numbered(n):
    return torch.arange(float(n)).view(n, 1, 1, 1)


def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))


def stn(posterior, **options):
    model = STN(plain(), nn.Flatten(), Similarity(), posterior, features=36, **options)
    with torch.no_grad():
        for parameter in model.transformers.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# --- the mathematics ---


def test_probabilities_are_averaged_and_the_uncertainty_is_split():
    torch.manual_seed(0)
    logits = 3 * torch.randn(4, 11, CLASSES, dtype=torch.float64)
    p = predict(Sampled(logits), numbered(11), samples=4, batch_size=5)
    each = logits.softmax(-1)
    mean = each.mean(0)
    torch.testing.assert_close(p.probs, mean)
    torch.testing.assert_close(p.log_probs, mean.log())
    torch.testing.assert_close(p.entropy, -(mean * mean.log()).sum(-1))
    torch.testing.assert_close(p.mutual_information, p.entropy + (each * each.log()).sum(-1).mean(0))
    assert torch.equal(p.labels, mean.argmax(-1))
    assert len(p) == 11
    assert p.theta is None


def test_samples_that_agree_carry_no_information_and_those_that_do_not_carry_log_two():
    sure = torch.tensor([[[60.0, 0.0]], [[60.0, 0.0]]])
    p = predict(Sampled(sure), numbered(1), samples=2)
    assert p.entropy.item() == pytest.approx(0, abs=1e-6)
    assert p.mutual_information.item() == 0
    torn = torch.tensor([[[60.0, 0.0]], [[0.0, 60.0]]])
    p = predict(Sampled(torn), numbered(1), samples=2)
    log2 = 0.6931472
    assert p.entropy.item() == pytest.approx(log2)
    assert p.mutual_information.item() == pytest.approx(log2)


def test_an_impossible_class_makes_no_nan():
    p = predict(Sampled(torch.tensor([[[0.0, -torch.inf, 1.0]]])), numbered(1), samples=1)
    assert p.probs[0, 1] == 0
    assert p.entropy.isfinite().all()


def test_several_labels_an_input():
    logits = torch.randn(4, 5, 2, CLASSES)
    p = predict(Sampled(logits), numbered(5), samples=4)
    assert p.probs.shape == (5, 2, CLASSES)
    assert p.entropy.shape == p.mutual_information.shape == p.labels.shape == (5, 2)


# --- models and inputs ---


@pytest.mark.parametrize("posterior", [Point(), Gaussian(), StudentT()], ids=str)
def test_an_stn_by_batches_is_the_stn_at_once(posterior):
    torch.manual_seed(0)
    model, x = stn(posterior), torch.rand(7, 1, 6, 6)
    p = predict(model, x, samples=5, batch_size=3, generator=seeded())
    count = 1 if isinstance(posterior, Point) else 5
    assert p.theta.shape == (count, 7, 4)
    generator = seeded()
    parts = [model(batch, samples=5, generator=generator) for batch in x.split(3)]
    torch.testing.assert_close(p.probs, torch.cat([part.logits.softmax(-1).mean(0) for part in parts]))
    torch.testing.assert_close(p.theta, torch.cat([part.theta for part in parts], 1))
    assert not p.probs.requires_grad


@pytest.mark.parametrize("method", ["random", "antithetic", "sobol"])
def test_method_and_generator_reach_the_model(method):
    model, x = stn(StudentT()), torch.rand(4, 1, 6, 6)
    first, again, other = (predict(model, x, 6, method=method, generator=seeded(n)) for n in (1, 1, 2))
    assert torch.equal(first.probs, again.probs)
    assert not torch.equal(first.theta, other.theta)
    if method == "antithetic":
        middle = model(x, samples=0).theta
        torch.testing.assert_close(first.theta[0] + first.theta[1], 2 * middle[0])


def test_a_plain_network_is_one_sample():
    model, x = plain(), torch.rand(7, 1, 6, 6)
    p = predict(model, x)
    torch.testing.assert_close(p.probs, model(x).softmax(-1))
    assert not p.mutual_information.any()


def test_batches_from_an_iterable():
    model, x = plain(), torch.rand(7, 1, 6, 6)
    expected = predict(model, x).probs
    data = torch.utils.data.TensorDataset(x, torch.zeros(7))
    torch.testing.assert_close(predict(model, torch.utils.data.DataLoader(data, batch_size=3)).probs, expected)
    torch.testing.assert_close(predict(model, [x[:2], x[2:]]).probs, expected)
    torch.testing.assert_close(predict(model, (part for part in x.split(2))).probs, expected)


def test_wrapped_models_still_sample():
    model, x = stn(StudentT()), torch.rand(4, 1, 6, 6)
    expected = predict(model, x, 3, generator=seeded()).theta

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args, **kwargs):
            return self.module(*args, **kwargs)

    assert torch.equal(predict(Wrapper(model), x, 3, generator=seeded()).theta, expected)
    compiled = torch.compile(model, backend="eager")
    assert predict(compiled, x, 3).theta.shape == expected.shape


def test_every_module_is_left_in_its_mode():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(36, CLASSES))
    model.train()
    model[1].eval()
    before = [m.training for m in model.modules()]
    x = torch.rand(4, 1, 6, 6)
    predict(model, x)
    assert [m.training for m in model.modules()] == before
    model[1].train()
    assert torch.equal(predict(model, x).probs, predict(model, x).probs)  # no dropout inside
    assert model[1].training
    with pytest.raises(ValueError, match="NaN"):
        predict(model, x * torch.nan)
    assert model[1].training  # also after an error


def test_frozen_bodies_stay_frozen():
    model = stn(StudentT(), frozen=True)
    assert not model.body.training
    predict(model, torch.rand(2, 1, 6, 6))
    assert model.training
    assert not model.body.training


@pytest.mark.parametrize("model", [plain(), stn(StudentT())], ids=["plain", "stn"])
def test_nothing_in_gives_nothing_out(model):
    p = predict(model, torch.zeros(0, 1, 6, 6), samples=4)
    assert p.probs.shape == (0, CLASSES)
    assert p.entropy.shape == p.mutual_information.shape == p.labels.shape == (0,)
    assert p.theta is None or p.theta.shape == (4, 0, 4)
    assert len(p) == 0


def test_progress_shows_and_changes_nothing(capsys):
    model, x = plain(), torch.rand(7, 1, 6, 6)
    assert torch.equal(predict(model, x, progress=True).probs, predict(model, x).probs)
    assert "predict" in capsys.readouterr().out


def test_low_precision_models_give_float32_probabilities():
    p = predict(plain().bfloat16(), torch.rand(3, 1, 6, 6, dtype=torch.bfloat16))
    assert p.probs.dtype == torch.float32
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(3))


# --- bad input ---


def spoilt(*where, value=torch.nan):
    x = torch.rand(7, 1, 6, 6)
    for place in where:
        x[place] = value
    return x


@pytest.mark.parametrize(
    ("model", "x", "error", "message"),
    [
        (
            plain(),
            spoilt((4, 0, 0, 0), (4, 0, 2, 3)),
            ValueError,
            "2 values that are NaN or infinite.*first in input 4",
        ),
        (plain(), spoilt((6, 0, 0, 0), value=torch.inf), ValueError, "1 values.*first in input 6"),
        (plain(), torch.zeros(7, 1, 6, 6, dtype=torch.uint8), TypeError, "torch.uint8; expected floating point"),
        (plain(), torch.rand(7), ValueError, "expected a batch"),
        (plain(), [], ValueError, "no batches"),
        (plain(), [{"x": torch.rand(7, 1, 6, 6)}], TypeError, "a batch is dict"),
        (Sampled(torch.full((1, 7, 2), torch.nan)), numbered(7), ValueError, "2 inputs are NaN.*input 0"),
        (
            Sampled(torch.zeros(1, 7, 2).index_fill(1, torch.tensor(5), torch.inf)),
            numbered(7),
            ValueError,
            "1 inputs.*input 5",
        ),
        (nn.Flatten(0), torch.rand(7, 1, 1, 1), ValueError, "expected logits"),
    ],
)
def test_bad_input(model, x, error, message):
    with pytest.raises(error, match=message):
        predict(model, x, samples=1, batch_size=2)


def test_bad_batch_size():
    with pytest.raises(ValueError, match="batch_size is 0"):
        predict(plain(), torch.rand(7, 1, 6, 6), batch_size=0)


# --- Augment and TTA ---


def test_augmentation_moves_inputs_in_training_only():
    x = torch.rand(5, 1, 6, 6)
    augment = Augment(Similarity(), 0.2, fill=0.5)
    assert not torch.equal(augment(x), x)
    assert torch.equal(augment(x, seeded()), augment(x, seeded()))
    assert torch.equal(augment.eval()(x), x)
    assert torch.equal(Augment(Similarity(), 0.0)(x), x) or torch.allclose(Augment(Similarity(), 0.0)(x), x, atol=1e-6)


def test_augmentation_draws_what_it_says():
    augment = Augment(Similarity(), (0.0, 0.1, 0.2, 0.3))
    theta, warped = augment.sample(torch.zeros(5000, 1, 1, 1), 2, generator=seeded())
    assert theta.shape == (2, 5000, 4)
    assert warped.shape == (2, 5000, 1, 1, 1)
    torch.testing.assert_close(theta.flatten(0, 1).std(0), torch.tensor([0.0, 0.1, 0.2, 0.3]), atol=0.01, rtol=0)
    torch.testing.assert_close(theta.flatten(0, 1).mean(0), torch.zeros(4), atol=0.015, rtol=0)


def test_augmentation_fills_the_outside():
    x = torch.ones(50, 1, 4, 4)
    out = Augment(Translation(), 5.0, fill=-1.0)(x, seeded())
    assert out.min() == -1
    assert Augment(Translation(), 5.0, padding="border")(x, seeded()).min() == pytest.approx(1)


def test_augmentation_in_a_network_and_in_its_state():
    model = nn.Sequential(Augment(Similarity(), 0.2), plain())
    other = nn.Sequential(Augment(Similarity(), 0.9), plain())
    other.load_state_dict(model.state_dict())
    assert torch.equal(other[0].spread, torch.full((4,), 0.2))
    assert "spread=" in repr(copy.deepcopy(model))


@pytest.mark.parametrize("spread", [-0.1, float("nan"), (0.1, 0.2)])
def test_augmentation_refuses(spread):
    with pytest.raises(ValueError, match="spread"):
        Augment(Similarity(), spread)


def test_test_time_augmentation_averages_the_warps():
    torch.manual_seed(0)
    model, x = plain(), torch.rand(5, 1, 6, 6)
    tta = TTA(model, Similarity(), 0.2)
    p = predict(tta, x, samples=8, method="antithetic", generator=seeded())
    theta, warped = tta.augment.sample(x, 8, "antithetic", seeded())
    torch.testing.assert_close(p.theta, theta)
    torch.testing.assert_close(p.probs, model(warped.flatten(0, 1)).view(8, 5, CLASSES).softmax(-1).mean(0))
    assert p.mutual_information.all()


def test_test_time_augmentation_without_spread_is_the_model():
    model, x = plain(), torch.rand(5, 1, 6, 6)
    torch.testing.assert_close(predict(TTA(model, Similarity(), 0.0), x).probs, model(x).softmax(-1))


@pytest.mark.parametrize("learned", [False, True])
def test_test_time_augmentation_without_samples_looks_at_the_centre(learned):
    model, x = plain(), torch.rand(5, 1, 6, 6)
    localizer = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    options = {"posterior": Gaussian(), "localizer": localizer} if learned else {"spread": 0.2}
    p = predict(TTA(model, Similarity(), **options), x, samples=0)
    assert p.theta.shape == (1, 5, 4)
    torch.testing.assert_close(p.probs, model(x).softmax(-1))


def test_test_time_augmentation_of_a_model_that_returns_an_output():
    out = TTA(stn(Point()), Similarity(), 0.1)(torch.rand(5, 1, 6, 6), samples=3)
    assert out.logits.shape == (3, 5, CLASSES)
    assert not out.kl.any()


def test_labels_of_another_number_of_inputs_are_refused():
    p = predict(plain(), torch.rand(5, 1, 6, 6))
    assert p.nll(torch.zeros(5, dtype=torch.long)) > 0
    with pytest.raises(ValueError, match=r"labels have shape \(3,\); \(5,\) were predicted"):
        p.nll(torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_are_whole_numbers_of_any_size(dtype):
    p, y = predict(plain(), torch.rand(3, 1, 6, 6)), torch.arange(3)
    assert p.nll(y.to(dtype)) == p.nll(y)
    with pytest.raises(TypeError, match="expected integers"):
        p.nll(y.float())


def test_any_object_with_logits_and_theta_will_do():
    class Foreign(nn.Module):
        def forward(self, x, samples, method, generator):
            return SimpleNamespace(logits=torch.zeros(samples, len(x), 2), theta=torch.ones(samples, len(x), 1))

    assert predict(Foreign(), torch.rand(5, 1, 2, 2), 3).theta.shape == (3, 5, 1)


class Wordy(nn.Module):
    """A network that says more than logits."""

    def __init__(self, say):
        super().__init__()
        self.linear, self.say = nn.Linear(64, 3), say

    def forward(self, x):
        return self.say(self.linear(x.flatten(1)))


LOOKS = {
    "alone": lambda network: network,
    "TTA": lambda network: TTA(network, Affine(), 0.0),
    "STN": lambda network: STN(network, nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), Affine()),
    "wrap": lambda network: wrap(network, Affine()),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_networks_may_answer_with_an_object_that_has_logits(look):
    network, x = Wordy(lambda logits: SimpleNamespace(logits=logits, loss=None)), torch.rand(5, 1, 8, 8)
    p = predict(look(network), x, samples=2)
    assert torch.allclose(p.probs, network(x).logits.softmax(-1), atol=1e-6)


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("say", [lambda y: {"out": y}, lambda y: (y, y), lambda y: None], ids=["dict", "tuple", "None"])
def test_networks_without_logits_are_told_what_is_expected(look, say):
    with pytest.raises(TypeError, match="expected logits"):
        predict(look(Wordy(say)), torch.rand(5, 1, 8, 8))
