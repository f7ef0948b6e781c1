"""From data to a network and its training with nothing to tune: what the estimators and the command line use.

A network is a plain classifier sized to the data behind warps whose spread is learned for the data set
(:class:`pstn.posterior.Learned`): affine maps of images; shifts, stretches and smooth distortions of time of series.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pstn import nets
from pstn.data import Data, Normalise
from pstn.families import CPAB, Affine, Compose, Family
from pstn.grid import Padding, resized
from pstn.nets.scales import scales_classifier
from pstn.objectives import elbo
from pstn.posterior import Learned
from pstn.stn import STN, param_groups
from pstn.train import Train
from pstn.train.seed import seeded

#: Series are averaged down to at most so many points, images to so many pixels a side, before a network sees them.
POINTS, PIXELS = 256, 128
#: From this many pixels on, images without a plain background are taken for photographs.
SCENE = 16
#: How far the logarithm of a spread can go in one training, in nats over :class:`LearnedHead`'s gain.
REACH = 0.3
# Series: 0.1, 0.03 and 0.01 were tried on held-out halves of the train files of twelve sets, mostly with two seeds
# (benchmarks/spread_start.py). Against the network without warps, 0.1 loses four points of accuracy on outlines of
# bones and nine on hours of the day; 0.03 nowhere more than one and a half. 0.01 is as accurate, with a worse NLL;
# 0.05, tried on eight sets, is as good as 0.03. One set (ECG200) has a worse NLL with warps, wherever they start.
#: Where the spread of the warps starts: of series, of images.
SPREADS = {1: 0.03, 2: 0.1}


@dataclass(frozen=True)
class Recipe:
    """What to train, how, and why."""

    model: STN
    """The network, untrained."""
    config: Train
    """The settings of its training."""
    size: tuple[int, ...]
    """The length, or height and width, that inputs are brought to."""
    normalise: Normalise
    """What they go through then."""
    understood: tuple[str, ...]
    """What was understood of the data, and what follows from it, a sentence each."""
    fill: float | None = None
    """The value outside an input, after normalising; None where its border is continued."""

    def prepare(self, x: Float[Tensor, "n c *space"]) -> Float[Tensor, "n c *size"]:
        """Inputs of any size, ready for the network."""
        return self.normalise(resized(x, self.size)).float()

    def __str__(self) -> str:
        return "\n".join(self.understood)


def recipe(
    data: Data,
    *,
    warp: bool = True,
    steps: int | None = None,
    time_budget: float | None = None,
    seed: int = 0,
    counts: Sequence[float] | None = None,
) -> Recipe:
    """A network for a data set and the settings to train it with.

    Arguments:
        data: Series (N, C, L) or images (N, C, H, W), not normalised.
        warp: Whether there are warps; without, it is the same classifier as a plain network.
        steps: How many steps of training; by the number of examples otherwise.
        time_budget: How many seconds training may take, about; a few steps are timed to find out what fits in.
        seed: Fixes the initial weights and everything drawn in training.
        counts: How much each class counts; as many as it has examples by default.

    Returns:
        The :class:`Recipe`. To follow it: ``fit(r.model, replace(data, x=r.prepare(data.x)), config=r.config)``.

    Example:
        >>> data = Data(torch.rand(40, 1, 28, 28), torch.arange(40) % 2, ("cat", "dog"), "pets")
        >>> print(recipe(data))
        pets: 40 images of 28×28 pixels and 1 channel, 20 of each of 2 classes.
        The background differs, so what a warp needs from outside continues the border.
        Each image is brought to the same brightness and contrast.
        Affine maps, their spread learned from the data; a classifier of 60,722 parameters.
        632 steps of 16 examples, 4 warps of each.
    """
    data.check_trainable()
    shape = tuple(data.x.shape[1:])
    if len(shape) not in (2, 3):
        raise ValueError(f"examples have shape {shape}; expected series (channels, time) or (channels, height, width)")
    size = seen_size(shape[1:])
    x = resized(data.x, size)
    background = None if len(size) == 1 else find_background(x)
    normalise = _normalise(x, background)
    fill = None if background is None else float(normalise.fill)
    with seeded(seed):
        model = network((shape[0], *size), data.num_classes, fill=fill, warp=warp)
    config = settings(len(data), len(size), warp=warp, steps=steps, seed=seed)
    if len(size) == 2:
        # Labels that are mostly one class have less to lose by a warp, and are half known before anything is learned: a
        # spread would grow until the other classes are lost (benchmarks/uneven.py). Series, whose weight is small, have
        # a worse NLL with a smaller one.
        even = evenness(data.counts if counts is None else counts)
        config = replace(config, kl_weight=config.kl_weight * even**2)
    found = Recipe(model, config, size, normalise, tuple(_words(data, background, model, config)), fill)
    return found if time_budget is None else within(found, replace(data, x=normalise(x).float()), time_budget)


def evenness(counts: Sequence[float]) -> float:
    """The entropy of labels as a share of what as many even classes have.

    Example:
        >>> round(evenness((20, 20)), 3), round(evenness((120, 6)), 3)
        (1.0, 0.276)
    """
    share = torch.tensor([count for count in counts if count], dtype=torch.float64)
    return float(torch.special.entr(share / share.sum()).sum()) / math.log(len(share))


def within(found: Recipe, data: Data, seconds: float) -> Recipe:
    """The recipe with the steps that fit into so many seconds of training on the data as it goes in, normalised."""
    config = paced(replace(found.config, steps=affordable(found.model, data, found.config, seconds)))
    return replace(found, config=config, understood=(*found.understood[:-1], _steps(found.model, config)))


def network(
    shape: Sequence[int], classes: int, *, fill: float | None = None, warp: bool = True, spread: float | None = None
) -> STN:
    """The network for inputs of a shape: the same architecture for the same arguments, always.

    Arguments:
        shape: One input's shape, (C, L) or (C, H, W).
        classes: How many classes.
        fill: The value outside an input; None to continue its border, and to bring each image of 16 pixels or more to
            mean 0 and deviation 1.
        warp: Whether there are warps.
        spread: Where their spread starts; by :data:`SPREADS` otherwise.

    Example:
        >>> network((1, 128), 4)(torch.rand(5, 1, 128), samples=3).theta.shape
        torch.Size([3, 5, 9])
    """
    classifier = body(shape, classes)
    if len(shape) == 3 and min(shape[1:]) >= SCENE and fill is None:
        # no plain background, so a photograph: how bright it is and how much contrast it has says nothing of the class
        classifier = nn.Sequential(nn.GroupNorm(1, shape[0], affine=False), classifier)
    if not warp:
        return STN(classifier)
    padding: Padding = "border" if fill is None else "fill"
    posterior = Learned(spread=spread or SPREADS[len(shape) - 1])
    return STN(classifier, nets.blind(), warps(shape[1:]), posterior, fill=fill or 0.0, padding=padding)


def seen_size(size: Sequence[int]) -> tuple[int, ...]:
    """The size that inputs of a size are brought to: itself, unless it is too large to be worth its time.

    Strips, such as spectrograms, keep :data:`SCENE` pixels of their short side.

    Example:
        >>> seen_size((500,)), seen_size((200, 300)), seen_size((28, 28)), seen_size((20, 3000))
        ((250,), (67, 100), (28, 28), (20, 125))
    """
    shrink = math.ceil(max(size) / (POINTS if len(size) == 1 else PIXELS))
    return tuple(math.ceil(n / min(shrink, max(1, n // SCENE))) for n in size)


def warps(size: Sequence[int]) -> Family:
    """The family that inputs of a size are warped by: affine maps, and smooth distortions of time before them.

    Example:
        >>> warps((28, 28)).dim, warps((128,)).dim, warps((8,)).dim
        (6, 9, 2)
    """
    return Compose(Affine(1), CPAB(8)) if len(size) == 1 and size[0] >= 16 else Affine(len(size))


def body(shape: Sequence[int], classes: int) -> nn.Module:
    """A classifier sized to its inputs: at most 100,000 parameters for series and small images.

    Series of any length: :func:`pstn.nets.scales.scales_classifier`. Images up to 64 pixels: convolutions with batch
    normalisation and a hidden layer; below 16, as in :func:`pstn.nets.classifier`. Larger ones: a narrow ResNet-18.

    Arguments:
        shape: One input's shape, (C, L) or (C, H, W).
        classes: How many classes.

    Example:
        >>> [sum(p.numel() for p in body(shape, 10).parameters()) for shape in ((1, 128), (1, 28, 28), (3, 64, 64))]
        [46682, 61242, 90522]
    """
    if len(shape) == 2:
        return scales_classifier(shape, classes)
    # a CPU is about twice as fast with the channels last in memory; torch's stubs do not know the argument
    return _image_body(shape, classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _image_body(shape: Sequence[int], classes: int) -> nn.Module:
    channels, *size = shape
    side = min(size)
    if side < 4:
        inputs = math.prod(shape)
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, classes))
    if side < 16:
        return nets.classifier(shape, classes, channels=(24,) if side < 10 else (16, 32), kernel=3, hidden=52)
    if max(size) > 64:
        return nets.resnet18(classes, channels=channels, width=16)
    # On held-out training images of MNIST, Fashion-MNIST, KMNIST and GTSRB-32, padding and batch normalisation are
    # worth five points of accuracy over the papers' classifier; without the hidden layer, signs lose ten.
    return nets.normed_classifier(
        shape, classes, channels=(16, 32, 64) if max(size) < 40 else (16, 32, 48, 48), hidden=64
    )


def settings(examples: int, ndim: int, *, warp: bool = True, steps: int | None = None, seed: int = 0) -> Train:
    """The settings of training for a number of examples: more steps for more examples, by the root.

    Arguments:
        examples: How many there are.
        ndim: 1 for series, 2 for images.
        warp: Whether there are warps.
        steps: How many steps instead.
        seed: Fixes everything drawn in training.

    Example:
        >>> settings(100, 2).steps, settings(10_000, 2).batch_size
        (1000, 64)
    """
    batch = 16 if examples <= 1000 else 32 if examples <= 5000 else 64
    if steps is None:  # series lose a tenth of a point with half the steps of images
        steps = round(min(max(100 * math.sqrt(examples), 500), 10_000) / (2 if ndim == 1 else 1))
    # The weights of the divergence are the best on average over held-out parts of training data: of four sets of images
    # (tried: 4, 7, 10) and of ten of series (0.3, 0.6, 1). Half or double costs a few tenths of a point. Digits alone
    # want a larger one, clothes and hours of the day a smaller one. Series started at a spread of 0.1 then; from 0.03,
    # nine networks on eight sets do not tell 0.3, 0.6 and 1.2 apart.
    config = Train(
        steps=steps,
        batch_size=min(batch, examples),
        drop_last=True,
        lr=3e-3 if ndim == 1 else 2e-3,
        weight_decay=0.01,
        schedule="cosine",
        samples=4 if warp else 1,
        kl_weight=0.6 if ndim == 1 else 7.0,
        kl_per="dataset",
        seed=seed,
    )
    return paced(config)


def share_of_steps(steps: int | None, examples: int, ndim: int) -> float:
    """The steps of a training, as a share of those that :func:`settings` has for so many examples.

    Example:
        >>> share_of_steps(250, 100, 2), share_of_steps(None, 100, 2)
        (0.25, 1.0)
    """
    usual = settings(examples, ndim).steps
    return steps / usual if steps and usual else 1.0


def paced(config: Train) -> Train:
    """The settings with a spread that can go as far in as many steps as they have.

    A spread's logarithm moves by at most its learning rate in a step: what is enough in ten thousand is not in one.
    """
    assert config.steps is not None
    return replace(config, localizer_lr=REACH / (config.lr * config.steps))


def affordable(model: nn.Module, data: Data, config: Train, seconds: float) -> int:
    """How many of the steps fit into so many seconds, at least one: three steps of a copy are timed."""
    if not seconds > 0:
        raise ValueError(f"time_budget is {seconds}; expected seconds, more than 0")
    assert config.steps is not None
    model = copy.deepcopy(model).to(data.x.device).train()
    optimizer = torch.optim.Adam(param_groups(model, config.lr, config.localizer_lr), fused=True)
    x, y = data.x[: config.batch_size], data.y[: config.batch_size]
    spent = []
    with seeded(0, data.x.device):
        for _ in range(3):
            start = time.perf_counter()
            elbo(model(x, samples=config.samples), y, kl_weight=0.0).backward()
            optimizer.step()
            optimizer.zero_grad()
            if data.x.is_cuda:
                torch.cuda.synchronize()
            spent.append(time.perf_counter() - start)
    left = seconds - sum(spent)
    return int(min(config.steps, max(1, 0.9 * left / min(spent))))


def find_background(x: Float[Tensor, "n c h w"]) -> float | None:
    """The value that most of the images' border pixels have, or None where they differ.

    Example:
        >>> find_background(torch.zeros(2, 1, 5, 5)), find_background(torch.rand(2, 1, 5, 5))
        (0.0, None)
    """
    edges = torch.cat([x[..., 0, :], x[..., -1, :], x[..., 0], x[..., -1]], dim=-1).flatten()
    common = float(edges.median())
    tolerance = 0.01 * float(x.max() - x.min())
    return common if float(((edges - common).abs() <= tolerance).float().mean()) > 0.6 else None


def _normalise(x: Tensor, background: float | None) -> Normalise:
    if x.ndim == 3:
        return Normalise.of(x)
    # one mean and one deviation for all channels, so that the background stays one number
    deviation, mean = torch.std_mean(x, correction=0)
    return Normalise(float(mean), float(deviation) or 1.0, background or 0.0)


def _words(data: Data, background: float | None, model: STN, config: Train) -> list[str]:
    channels, *size = data.x.shape[1:]
    series = len(size) == 1
    kind = f"series of {size[0]} points" if series else f"images of {size[0]}×{size[1]} pixels"
    counts = [count for count in data.counts if count]
    few, many = min(counts), max(counts)
    share = f"{few}" if few == many else f"{few} to {many}"
    lines = [
        f"{data.name}: {len(data)} {kind} and {channels} channel{'s' * (channels > 1)}, {share} of each of "
        f"{data.num_classes} classes."
    ]
    outside = "what a warp needs from outside"
    if not series and background is None:
        lines.append(f"The background differs, so {outside} continues the border.")
        if min(size) >= SCENE:
            lines.append("Each image is brought to the same brightness and contrast.")
    elif not series:
        lines.append(f"The background is {background:.3g}, so that is {outside}.")
    size_of_body = sum(p.numel() for p in model.body.parameters())
    which = "Shifts, stretches and smooth distortions of time" if series else "Affine maps"
    which = f"{which}, their spread learned from the data" if model.transformers else "No warps"
    lines.append(f"{which}; a classifier of {size_of_body:,} parameters.")
    lines.append(_steps(model, config))
    return lines


def _steps(model: STN, config: Train) -> str:
    copies = f", {config.samples} warps of each" if model.transformers else ""
    return f"{config.steps} steps of {config.batch_size} examples{copies}."
