"""The papers' distorted pictures by name, sums of two digits, digits to be found among clutter, and mnist-rot-12k."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.data.base import Data
from pstn.data.clutter import Fragments, Scene, Separately
from pstn.data.distorted import Elastic, Projected, Similar
from pstn.data.files import StrPath
from pstn.data.mnist import MNIST, Split, mnist
from pstn.data.moved import Moved, Place, Turn
from pstn.data.normalise import Normalise
from pstn.grid import check_choice

#: Mean and deviation of MNIST's training digits, each distorted once.
DISTORTED = {
    "placement20/R": Normalise(0.1306, 0.2898),
    "placement20/T": Normalise(0.0394, 0.1798),
    "placement20/S": Normalise(0.0426, 0.1773),
}
_ROT_TRAIN, _ROT_TEST = 12_000, 50_000


def _stn15(item: int, source: Tensor | None) -> dict[str, Callable[[], Scene]]:
    """STN'15: digits are not normalised."""
    clutter = {"item": item, "source": source}
    return {
        "stn15/R": lambda: Scene(Turn(math.pi / 2)),
        "stn15/RTS": lambda: Scene(Similar(item, 42, angle=math.pi / 4, scale=(0.7, 1.2))),
        "stn15/P": lambda: Scene(Projected(item)),
        "stn15/P-diagonal": lambda: Scene(Projected(item, along="diagonals")),
        "stn15/E": lambda: Scene(Elastic(item)),
        "stn15/TC": lambda: Scene(Place(item, 60), Fragments(6, 6, canvas=60, how="insert", **clutter)),  # type: ignore[arg-type]
        "stn15/addition": lambda: Scene(Separately(Similar(item, 42, angle=math.pi / 4, scale=(0.7, 1.2)), 2)),
        "stn15/colocalise-T": lambda: Scene(Place(item, 84)),
        "stn15/colocalise-TC": lambda: Scene(Place(item, 84), Fragments(16, 6, canvas=84, **clutter)),  # type: ignore[arg-type]
    }


def _placement20(item: int, source: Tensor | None) -> dict[str, Callable[[], Scene]]:
    """Placement'20: everything is normalised at last."""
    wide: tuple[float, float] = (0.5, 4.0)
    clutter = {"item": item, "source": source}
    scaled = Similar(item, 112, scale=wide, log=True, where="centre")
    return {
        "placement20/R": lambda: Scene(Turn(math.pi / 2), None, DISTORTED["placement20/R"]),
        "placement20/T": lambda: Scene(
            Place(item, 60),
            Fragments(6, 6, canvas=60, **clutter),  # type: ignore[arg-type]
            DISTORTED["placement20/T"],
        ),
        "placement20/S": lambda: Scene(
            scaled,
            Fragments(6, 6, canvas=112, scale=wide, **clutter),  # type: ignore[arg-type]
            DISTORTED["placement20/S"],
        ),
    }


#: The names that :func:`scene` knows.
SCENES = (*_stn15(28, None), *_placement20(28, None))


def scene(name: str, *, source: Float[Tensor, "n c h w"] | None = None, item: int = 28) -> Scene:
    """A paper's distortion by name, as an augmentation that draws anew for every batch; the pose is the truth.

    ============================  ====================================================================================
    name                          what
    ============================  ====================================================================================
    stn15/R, placement20/R        turned by up to 90° either way
    stn15/RTS                     turned by up to 45°, scaled by 0.7 to 1.2, anywhere on 42×42, all uniform
    stn15/P, -diagonal            scaled by 0.75 to 1, corners pulled by a deviation of 5 pixels, in both coordinates
                                  or along the diagonals
    stn15/E                       scaled by 0.75 to 1, sixteen points of a spline moved by a deviation of 1.5 pixels
    stn15/TC                      anywhere on 60×60, then six 6×6 pieces of other digits *inserted*
    placement20/T                 the same, with the pieces *added* (up to white)
    placement20/S                 scaled by 0.5 to 4 in the centre of 112×112, and six 6×6 pieces scaled likewise added;
                                  scales uniform in their logarithm
    stn15/addition                two channels, each as RTS by itself
    stn15/colocalise-T, -TC       anywhere on 84×84; with sixteen 6×6 pieces added
    ============================  ====================================================================================

    Both papers say the same of R and differ on clutter by a word; that word is taken as it stands. Where digits are
    placed is a whole pixel in T and TC. The scenes of ``placement20`` normalise their result to mean 0 and deviation 1
    over MNIST, those of ``stn15`` do not. Any other pictures can be moved by them, too.

    Arguments:
        name: Paper and distortion.
        source: Pictures to cut clutter from, (N, 1, item, item), such as the training digits for test data, too; by
            default the other pictures of the same batch.
        item: The side of a picture.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015; Finnveden et al., Understanding when spatial
        transformer networks do not support invariance, and what to do about it, ICPR 2020

    Example:
        >>> scene("stn15/RTS")(torch.rand(3, 1, 28, 28)).shape
        torch.Size([3, 1, 42, 42])
    """
    check_choice("name", name, SCENES)
    return {**_stn15(item, source), **_placement20(item, source)}[name]()


def addition(data: Data, count: int | None = None, seed: int = 0) -> Data:
    """Pairs of pictures as two channels (N, 2, H, W), labelled with the sum of their labels: 2K - 1 classes.

    The first picture of pair i is picture i, counted round in a new order each time; the second is drawn. What is drawn
    depends on the seed and the pair's number alone.

    Arguments:
        data: Grey pictures (N, 1, H, W) whose label is a number.
        count: How many pairs; as many as there are pictures by default. A label belongs to a pair, so pairs are not
            drawn anew while training: more of them are more to learn from.
        seed: Which draw.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015

    Example:
        >>> digits = Data(torch.rand(5, 1, 8, 8), torch.arange(5), tuple("01234"), "digits")
        >>> addition(digits)
        Data('digits + digits', 5 examples of (2, 8, 8), 9 classes)
    """
    count = len(data) if count is None else count
    if data.x.ndim != 4 or data.x.shape[1] != 1 or count < 1:
        raise ValueError(f"{count} pairs of {data!r}; expected at least one pair, of pictures with one channel")
    generator = torch.Generator().manual_seed(seed)
    rounds = math.ceil(count / len(data))
    first = torch.cat([torch.randperm(len(data), generator=generator) for _ in range(rounds)])[:count]
    second = torch.randint(len(data), (count,), generator=generator)
    first, second = first.to(data.y.device), second.to(data.y.device)
    x = torch.cat([data.x[first], data.x[second]], dim=1)
    classes = tuple(str(n) for n in range(2 * data.num_classes - 1))
    return Data(x, data.y[first] + data.y[second], classes, f"{data.name} + {data.name}")


def colocalisation(data: Data, label: int, *, clutter: bool, count: int = 100, seed: int = 0) -> Moved:
    """Pictures of one class, each somewhere on 84×84, with or without clutter; the pose is the window that holds it.

    Arguments:
        data: Pictures (N, 1, 28, 28), which the clutter is cut from, too.
        label: The class.
        clutter: Whether sixteen pieces are strewn over each canvas.
        count: How many pictures.
        seed: Which draw.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015
    """
    all_of_it = (data.y.cpu() == label).nonzero().squeeze(1)
    if not 0 < count <= len(all_of_it):
        raise ValueError(f"{count} pictures of class {label} of {data!r}; expected 1 to {len(all_of_it)}")
    chosen = all_of_it[torch.randperm(len(all_of_it), generator=torch.Generator().manual_seed(seed))[:count]]
    name = "stn15/colocalise-TC" if clutter else "stn15/colocalise-T"
    return scene(name, source=data.x if clutter else None).data(data.subset(chosen), seed)


def mnist_rot_12k(split: Split = "train", root: StrPath | None = None, seed: int = 0) -> Moved:
    """12,000 training or 50,000 test digits, each turned by one angle, of all the circle: mnist-rot-12k by a seed.

    As the published set was made: digits of MNIST's training and test files together, chosen and turned once. Which
    ones, and by which angles, is drawn here, so figures compare in distribution with the published set's, not digit by
    digit. The pose turns a digit back.

    Arguments:
        split: ``"train"`` (of which others use 2,000 for validation) or ``"test"``.
        root: The folder of all data sets, as for :func:`pstn.data.mnist`.
        seed: Which draw.

    References:
        H. Larochelle, D. Erhan, A. Courville, J. Bergstra and Y. Bengio, An empirical evaluation of deep architectures
        on problems with many factors of variation, ICML 2007.
    """
    check_choice("split", split, get_args(Split))
    parts = [mnist(part, root) for part in get_args(Split)]
    whole = Data(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), MNIST.classes)
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
    start, stop = (0, _ROT_TRAIN) if split == "train" else (_ROT_TRAIN, _ROT_TRAIN + _ROT_TEST)
    turned = Turn().data(whole.subset(order[start:stop]), seed)
    if len(turned) != stop - start:
        raise ValueError(f"MNIST has {len(whole)} digits here; mnist-rot-12k needs {_ROT_TRAIN + _ROT_TEST}")
    return replace(turned, name=f"mnist-rot-12k {split} (drawn by seed {seed})")
