"""How well poses are undone: what is left of them after alignment, class by class; and windows that hit or miss.

Convention: all matrices map output to input, as :meth:`pstn.families.affine.MatrixFamily.matrix` gives them. The truth
is the map that shows an example as it was (the pose of :class:`pstn.data.moved.Moved`), so a network that aligns a
class perfectly answers the truth times something that is the same for the whole class, and what is measured is how far
that something is from being the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from pstn.grid import check_choice

Measure = Literal["angle", "shift", "scale"]


@dataclass(frozen=True)
class Spread:
    """How far final poses lie apart."""

    per_class: Float[Tensor, " k"]
    """The standard deviation within each class; NaN for a class without examples."""

    @property
    def mean(self) -> float:
        """The mean over the classes, which the placement paper's Table I reports."""
        return float(self.per_class[~self.per_class.isnan()].mean())


@dataclass(frozen=True)
class Line:
    """A line through points."""

    slope: float
    """Its slope: -1 or 1 where poses are undone, 0 where they are left alone."""
    intercept: float
    """Its height at 0."""


def similarity_angle(matrix: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b"]:
    r"""The angle of the similarity nearest to a matrix: :math:`\varphi = \mathrm{atan2}(a_{21} - a_{12}, a_{11} +
    a_{22})`, in radians.

    The paper writes an arctangent and leaves half turns open; the signs of both sums settle them.

    Arguments:
        matrix: Linear maps (*b, 2, 2), or homogeneous ones (*b, 3, 3).

    References:
        Finnveden et al., ICPR 2020, equation 14

    Example:
        >>> similarity_angle(torch.tensor([[0.0, -2.0], [2.0, 0.0]]))  # a quarter turn, twice the size
        tensor(1.5708)
    """
    return torch.atan2(matrix[..., 1, 0] - matrix[..., 0, 1], matrix[..., 0, 0] + matrix[..., 1, 1])


def pixel_unit(size: int, stride: int = 1, *, corners: bool = False) -> float:
    """How many pixels of the input a shift of 1 is: half the width of what is warped.

    For features, one step is ``stride`` pixels of the input. The papers' PyTorch put -1 and 1 on the *centres* of the
    border pixels (``align_corners=True``): there the width was one step less, and the placement paper's factors are
    29.5 for the 60×60 input and 25 for the 26×26 features behind a pooling by two. Here, they are 30 and 26.

    Arguments:
        size: The side of what is warped, in pixels or features.
        stride: How far apart neighbours are, in pixels of the input.
        corners: The papers' convention instead of this library's.

    Example:
        >>> pixel_unit(60), pixel_unit(26, 2), pixel_unit(60, corners=True), pixel_unit(26, 2, corners=True)
        (30.0, 26.0, 29.5, 25.0)
    """
    if size < 1 or stride < 1:
        raise ValueError(f"size is {size} and stride {stride}; expected positive numbers")
    return (size - corners) * stride / 2


def final_pose(
    found: Float[Tensor, "n m m"],
    true: Float[Tensor, "n m m"],
    measure: Measure,
    *,
    unit: float = 1.0,
    true_unit: float | None = None,
) -> Float[Tensor, "n k"]:
    r"""What is left of each pose after alignment, in degrees, pixels or :math:`\log_2` of an area.

    * ``"angle"``: the angle of the nearest similarity less the true one, (N, 1), in degrees, from -180 to 180.
    * ``"shift"``: where the output's centre looks less where the example's centre is, (N, 2), in pixels.
    * ``"scale"``: :math:`\log_2 |\det A|` less the true one, (N, 1).

    Arguments:
        found: The maps that a network answered, homogeneous, (N, 3, 3).
        true: The maps that undo what was done, (N, 3, 3).
        measure: Which of the three.
        unit: Pixels that a shift of 1 is where the network warps; see :func:`pixel_unit`.
        true_unit: The same for the truth; ``unit`` by default. A network that warps features has another one.

    Returns:
        The rest, (N, 1) or (N, 2).

    Example:
        >>> from pstn.families import Rotation
        >>> true = Rotation().matrix(torch.tensor([[0.5], [1.0]]))
        >>> final_pose(Rotation().matrix(torch.tensor([[0.7], [1.2]])), true, "angle").squeeze()  # 0.2 rad, both
        tensor([11.4592, 11.4592])
    """
    check_choice("measure", measure, get_args(Measure))
    if found.shape != true.shape or found.ndim != 3 or found.shape[1:] != (3, 3):
        raise ValueError(f"got maps of shape {tuple(found.shape)} and {tuple(true.shape)}; expected (N, 3, 3) twice")
    if measure == "angle":
        turned = similarity_angle(found) - similarity_angle(true)
        return torch.rad2deg(torch.remainder(turned + math.pi, 2 * math.pi) - math.pi)[:, None]
    if measure == "shift":
        return unit * found[:, :2, 2] - (unit if true_unit is None else true_unit) * true[:, :2, 2]
    tiny = torch.finfo(found.dtype).tiny
    areas = (torch.linalg.det(maps[:, :2, :2]).abs().clamp_min(tiny).log2() for maps in (found, true))
    first, second = areas
    return (first - second)[:, None]


def pose_spread(
    rest: Float[Tensor, "n k"], y: Integer[Tensor, " n"], *, classes: int | None = None, circular: bool = False
) -> Spread:
    r"""The standard deviation of final poses within each class, :math:`\sqrt{\frac1n \sum_i \|r_i - \bar r\|^2}`.

    For poses of two numbers it is the standard distance. The placement paper's formulas for the mean and for the
    deviation lack their 1/n; its figures, of about a pixel over thousands of digits, do not.

    Arguments:
        rest: What :func:`final_pose` gives, (N, k).
        y: The classes, (N,).
        classes: How many classes; as many as occur by default.
        circular: Whether the rest is an angle in degrees, of which whole turns do not count: each is measured on the
            near side of its class's mean direction.

    References:
        Finnveden et al., ICPR 2020, Table I

    Example:
        >>> rest = torch.tensor([[10.0], [12.0], [-7.0], [-7.0]])
        >>> pose_spread(rest, torch.tensor([0, 0, 1, 1])).per_class
        tensor([1., 0.], dtype=torch.float64)
    """
    if rest.ndim != 2 or y.shape != rest.shape[:1]:
        raise ValueError(f"got poses {tuple(rest.shape)} and classes {tuple(y.shape)}; expected (N, k) and (N,)")
    if circular and rest.shape[1] != 1:
        raise ValueError(f"an angle is one number; the poses have {rest.shape[1]}")
    values, labels = rest.detach().double().cpu(), y.cpu()
    count = int(labels.max()) + 1 if classes is None else classes
    found = []
    for label in range(count):
        own = values[labels == label]
        if circular:
            angles = torch.deg2rad(own)
            middle = torch.rad2deg(torch.atan2(angles.sin().mean(), angles.cos().mean()))
            own = torch.remainder(own - middle + 180, 360) - 180
        found.append((own - own.mean(0)).square().sum(1).mean().sqrt())
    return Spread(torch.stack(found))


def middle_run(values: Sequence[float]) -> int:
    """Which of several networks is the middle one: of ten the fifth best, as the paper takes for its figures.

    Example:
        >>> middle_run([0.3, 0.1, 0.5, 0.2])
        3
    """
    if not values:
        raise ValueError("there is no network to choose from")
    return sorted(range(len(values)), key=lambda i: values[i])[(len(values) - 1) // 2]


def orthogonal_line(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Line:
    r"""The line with the least sum of squared distances *at right angles*, where both coordinates are uncertain.

    Its direction is the first principal axis: :math:`(s_{yy} - s_{xx} + \sqrt{(s_{yy} - s_{xx})^2 + 4 s_{xy}^2}) /
    2 s_{xy}`. A vertical line has an infinite slope, and points without a direction have none (NaN).

    Arguments:
        x: One coordinate, such as the angle by which each digit was turned.
        y: The other, such as the angle that a network found.

    References:
        Finnveden et al., ICPR 2020, Figure 6

    Example:
        >>> orthogonal_line(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 3.0, 5.0]))
        Line(slope=2.0, intercept=1.0)
    """
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
        raise ValueError(f"got {tuple(x.shape)} and {tuple(y.shape)} numbers; expected two lists of the same length")
    a, b = x.detach().double(), y.detach().double()
    dx, dy = a - a.mean(), b - b.mean()
    apart, both = float(dy.square().mean() - dx.square().mean()), float((dx * dy).mean())
    if both == 0:
        slope = math.nan if apart == 0 else (math.inf if apart > 0 else 0.0)
    else:
        slope = (apart + math.hypot(apart, 2 * both)) / (2 * both)
    return Line(slope, float(b.mean()) - slope * float(a.mean()))


def window_box(theta: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b 4"]:
    """The box (x1, y1, x2, y2), in normalised coordinates, that an upright window (a map s p + t) looks at.

    Example:
        >>> from pstn.families import Crop
        >>> window_box(Crop(scale="linear").matrix(torch.tensor([-0.5, 0.25, 0.0])))
        tensor([-0.2500, -0.5000,  0.7500,  0.5000])
    """
    half = torch.stack([theta[..., 0, 0], theta[..., 1, 1]], dim=-1).abs()
    return torch.cat([theta[..., :2, 2] - half, theta[..., :2, 2] + half], dim=-1)


def box_iou(a: Float[Tensor, "*b 4"], b: Float[Tensor, "*b 4"]) -> Float[Tensor, "*b"]:
    """The intersection over union of upright boxes (x1, y1, x2, y2).

    Example:
        >>> box_iou(torch.tensor([0.0, 0.0, 2.0, 2.0]), torch.tensor([1.0, 0.0, 3.0, 2.0]))
        tensor(0.3333)
    """
    common = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp_min(0).prod(-1)
    areas = sum((box[..., 2:] - box[..., :2]).clamp_min(0).prod(-1) for box in (a, b))
    return common / (areas - common).clamp_min(torch.finfo(common.dtype).tiny)


def localised(found: Float[Tensor, "n 4"], true: Float[Tensor, "n 4"], threshold: float = 0.5) -> float:
    """The share of boxes whose intersection over union with the true one is more than a threshold.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015: co-localisation

    Example:
        >>> box = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
        >>> localised(box, box), localised(box, box / 2)
        (1.0, 0.0)
    """
    return float((box_iou(found, true) > threshold).double().mean())
