import copy
from types import SimpleNamespace

import onnxruntime
import pytest
import torch
from torch import nn

from pstn import nets, predict
from pstn.export import MeanPath, SampledPath, export
from pstn.families import CPAB, Affine, Similarity, Translation
from pstn.inference import TTA, Augment
from pstn.labels import Labels, clip_boxes
from pstn.objectives import elbo
from pstn.posterior import Gaussian, Learned, Point, StudentT
from pstn.stn import param_groups
from pstn.wrap import wrap

X = torch.rand(4, 1, 20, 20, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0])
POSTERIORS = [Point(), Gaussian(), StudentT(), Learned()]


class Residual(nn.Module):
    """A small network with a skip around its middle, batch normalisation and dropout."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.inner = nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(6, 3))

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.inner(x))


class Patches(nn.Module):
    """A small transformer of patches, which answers with an object."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 5, 5)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        tokens = self.layer(self.patches(x).flatten(2).transpose(1, 2))
        return SimpleNamespace(logits=self.head(tokens.mean(1)))


def answer(model, x=X):
    found = model(x)
    return found if isinstance(found, torch.Tensor) else found.logits


# --- the law: at the start nothing has changed ---


@pytest.mark.parametrize("posterior", POSTERIORS, ids=str)
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Residual, {}),
        (Residual, {"reads": "stem"}),
        (Residual, {"at": "stem"}),
        (Residual, {"at": "inner"}),
        (Residual, {"at": "inner", "reads": "stem"}),
        (Patches, {}),
        (Patches, {"at": "patches"}),
        (lambda: nets.classifier((1, 20, 20), 3), {}),
        (lambda: nets.resnet18(3, channels=1, width=4, small=True), {"at": "layer2", "reads": "layer1"}),
    ],
)
def test_a_wrapped_network_predicts_exactly_as_before(make, options, posterior):
    model = make().eval()
    before = answer(model)
    wrapped = wrap(model, Similarity(), posterior, example=X, **options)
    for samples in (0, 1, 5):
        logits = wrapped(X, samples=samples).logits
        assert logits.shape == (1, 4, 3)
        torch.testing.assert_close(logits[0], before, atol=1e-6, rtol=0)
    torch.testing.assert_close(predict(wrapped, X).probs, before.softmax(-1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", [Affine(), CPAB((2, 2)), Translation()], ids=lambda f: type(f).__name__)
def test_whatever_the_family(family):
    model = Residual().eval()
    wrapped = wrap(model, family, Gaussian(), example=X)
    torch.testing.assert_close(wrapped(X).logits[0], answer(model), atol=1e-6, rtol=0)


def test_series_are_wrapped_too():
    model, x = nets.classifier((2, 64), 3).eval(), torch.rand(4, 2, 64)
    wrapped = wrap(model, Affine(1), Gaussian(), example=x)
    torch.testing.assert_close(wrapped(x).logits[0], model(x), atol=1e-6, rtol=0)


# --- training ---


@pytest.mark.parametrize("options", [{}, {"at": "stem"}, {"reads": "stem"}], ids=str)
def test_only_the_localizer_learns(options):
    model = Residual().eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    wrapped = wrap(model, Similarity(), Gaussian(), example=X, **options).train()
    assert not model.training
    groups = param_groups(wrapped, lr=0.1, localizer=1.0)
    assert sum(len(group["params"]) for group in groups) == len(list(wrapped.transformers.parameters()))
    optimizer = torch.optim.SGD(groups)
    for _ in range(2):
        out = wrapped(X, samples=3)
        assert out.logits.shape == (3, 4, 3)
        assert out.theta.shape == (3, 4, 4)
        elbo(out, Y).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in wrapped.transformers.parameters())
    assert predict(wrapped, X, 7).theta.shape == (7, 4, 4)


def test_what_is_named_learns_with_it():
    model = Residual().eval()
    wrapped = wrap(model, train=("head",)).train()
    assert model.head.training
    assert not model.stem.training
    elbo(wrapped(X, samples=2), Y).backward()
    assert all(p.grad is not None for p in model.head.parameters())
    assert all(p.grad is None for p in model.stem.parameters())
    whole = wrap(Residual(), train="all").train()
    assert whole.body.stem.training
    assert all(p.requires_grad for p in whole.parameters())


def test_training_is_remembered_in_the_weights():
    wrapped = wrap(Residual().eval())
    assert wrapped(X, samples=3).logits.shape[0] == 1
    wrapped.train()(X)
    again = wrap(Residual().eval())
    again.load_state_dict(wrapped.state_dict())
    assert again.eval()(X, samples=3).logits.shape[0] == 3


def test_errors_name_the_layer():
    with pytest.raises(ValueError, match=r"no layer 'steam'.*'stem', 'inner', 'head'"):
        wrap(Residual(), at="steam")
    with pytest.raises(ValueError, match="'localizer', 'all'"):
        wrap(Residual(), train="head")
    with pytest.raises(ValueError, match="example"):
        wrap(Residual(), posterior=Gaussian())
    with pytest.raises(ValueError, match="layer 'layer' returns"):
        wrap(Patches(), at="layer")(X)
    recurrent = nn.Sequential(nn.Flatten(2), nn.GRU(64, 3))
    with pytest.raises(ValueError, match="layer '1' returns a tuple"):
        wrap(recurrent, reads="1", posterior=Gaussian(), example=torch.rand(2, 1, 8, 8))


# --- Augment and TTA ---


def test_a_learned_spread_learns_and_a_fixed_one_does_not():
    fixed, shared = Augment(Similarity(), 0.1), Augment(Similarity(), posterior=Learned())
    each = Augment(Similarity(), posterior=Gaussian(), localizer=nets.localizer((1, 20, 20)))
    assert not list(fixed.parameters())
    for jitter in (shared, each):
        warped = jitter(X)
        assert not torch.equal(warped, X)
        assert torch.equal(jitter.eval()(X), X)
        assert jitter.kl.shape == (4,)
        assert copy.deepcopy(jitter).stage is None
        (warped.square().mean() + 0.01 * jitter.kl.mean()).backward()
        assert all(p.grad is not None for p in jitter.transformers[0].head.parameters())
    spread = shared.transformers[0].head(torch.zeros(4, 1)).stddev
    assert torch.equal(spread, spread[:1].expand(4, -1))
    with pytest.raises(ValueError, match="no divergence"):
        fixed.kl
    with pytest.raises(ValueError, match="not both"):
        Augment(Similarity(), 0.1, posterior=Learned())
    with pytest.raises(ValueError, match="reads nothing"):
        Augment(Similarity(), 0.1, localizer=nets.blind())


def test_test_time_augmentation_can_be_trained():
    model = TTA(Residual(), Similarity(), posterior=Learned())
    out = model(X, samples=3)
    assert out.kl.shape == (4,)
    elbo(out, Y).backward()
    assert model.augment.transformers[0].head.growth.grad.abs().sum() > 0


def test_a_loader_gives_augmented_batches():
    data = torch.utils.data.TensorDataset(X, Y)
    jitter = Augment(Similarity(), 0.2)
    ((x, y),) = torch.utils.data.DataLoader(data, 4, collate_fn=jitter.collate)
    assert torch.equal(y, Y)
    assert x.shape == X.shape
    assert not torch.equal(x, X)
    jitter.eval()
    ((x, y),) = torch.utils.data.DataLoader(data, 4, collate_fn=jitter.collate)
    assert torch.equal(x, X)
    assert torch.equal(jitter.collate([X[0], X[1]]), X[:2])


# --- labels go along, and back ---


@pytest.mark.parametrize("family", [Similarity(), Affine(), CPAB((2, 2))], ids=lambda f: type(f).__name__)
def test_labels_go_with_the_image_and_come_back(family):
    x = torch.zeros(3, 1, 48, 48)
    x[:, :, 16:32, 12:28] = 1
    points = torch.tensor([[0.1, -0.2], [0.3, 0.2]]).expand(3, 2, 2)
    boxes = torch.tensor([[-0.5, -1 / 3, 1 / 6, 1 / 3]]).expand(3, 1, 4)
    labels = Labels(points, boxes, x > 0.5)
    image, there, theta = Augment(family, 0.1).together(x, labels, torch.Generator().manual_seed(0))
    assert ((image > 0.5) == there.masks).float().mean() > 0.99
    back = there.unwarped(family, theta)
    torch.testing.assert_close(back.points, points, atol=1e-4, rtol=0)
    assert (back.masks == labels.masks).float().mean() > 0.97
    assert (back.boxes[..., :2] <= boxes[..., :2] + 1e-3).all()
    assert (back.boxes[..., 2:] >= boxes[..., 2:] - 1e-3).all()
    same, kept, zero = Augment(family, 0.1).eval().together(x, labels)
    assert same is x
    assert kept is labels
    assert not zero.any()


def test_what_is_cut_off_of_a_box_is_told():
    inside, share = clip_boxes(torch.tensor([[-2.0, -1.0, 0.0, 1.0], [-0.5, -0.5, 0.5, 0.5], [1.0, 1.0, 1.0, 1.0]]))
    torch.testing.assert_close(share, torch.tensor([0.5, 1.0, 0.0]))
    assert (inside.abs() <= 1).all()


# --- other people's networks ---


@pytest.mark.parametrize(("name", "at"), [("resnet18", None), ("resnet18", "layer1"), ("vit_b_32", None)])
def test_torchvision_networks(name, at):
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed", exc_type=ImportError)
    model, x = getattr(models, name)().eval(), torch.rand(1, 3, 224, 224)
    torch.testing.assert_close(wrap(model, at=at)(x).logits[0], model(x), atol=1e-5, rtol=1e-5)


def test_what_is_asked_for_is_trained_whatever_was_before():
    network = nets.classifier((1, 20, 20), 3, channels=(4, 5), kernel=3)
    wrap(network)
    assert not any(p.requires_grad for p in network.parameters())
    assert all(p.requires_grad for p in wrap(network, train="all").parameters())


@pytest.mark.parametrize(
    ("options", "samples", "format"),
    [
        ({}, 4, "onnx"),
        ({"at": "0"}, 0, "torch.export"),
        ({"reads": "1"}, 4, "onnx"),
        ({"at": "0", "reads": "1"}, 0, "torch.export"),
    ],
)
def test_a_wrapped_network_is_exported(options, samples, format, tmp_path):
    network = nets.classifier((1, 20, 20), 3, channels=(4, 5), kernel=3).eval()
    x = torch.rand(3, 1, 20, 20)
    wrapped = wrap(network, Similarity(), **options)
    first = torch.export.load(export(wrapped, "torch.export", tmp_path / "first.pt2", x, samples=samples)).module()(x)
    torch.testing.assert_close(first, network(x).softmax(-1), msg="untrained, it says what the network says")
    wrapped.train()(x)
    file = export(wrapped, format, tmp_path / "model", x, samples=samples)
    wrapped.eval()
    expected = (SampledPath(wrapped, samples) if samples else MeanPath(wrapped))(x).detach()
    assert torch.allclose(expected, first) == (samples == 0), "draws differ, now that it is trained"
    if format == "onnx":
        found = onnxruntime.InferenceSession(file).run(None, {"x": x.numpy()})[0]
    else:
        found = torch.export.load(file).module()(x)
    torch.testing.assert_close(torch.as_tensor(found), expected, atol=1e-5, rtol=1e-4)


def test_what_cannot_be_exported_is_said(tmp_path):
    with pytest.raises(TypeError, match=r"Linear; expected an STN, or a network that wrap\(...\) returned"):
        export(nn.Linear(2, 2), "torch.export", tmp_path / "m", torch.rand(2, 2))
