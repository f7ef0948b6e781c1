"""Parameters of a transformation in the units that people think in: degrees, per cent and pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.families import Family

_AXES = ("x", "y", "z")


def rounded(value: float, digits: int = 2) -> str:
    """A number to so many digits, written out.

    Example:
        >>> rounded(132.7), rounded(0.0414)
        ('130', '0.041')
    """
    return f"{float(f'{value:.{digits}g}'):g}"


def plain_units(
    family: Family, theta: Float[Tensor, "*b d"], size: Sequence[int]
) -> tuple[Float[Tensor, "*b d"], tuple[str, ...]]:
    r"""Rotations in degrees, scales in per cent, :math:`100(e^\theta - 1)`, shifts in pixels, :math:`\theta n/2`.

    Convention: as everywhere; the numbers say where the output *looks*: a positive scale looks at more of the input, a
    positive x further right.

    Arguments:
        family: The family, whose parameters' names say what they are.
        theta: The parameters, (*b, d).
        size: The array's spatial size, (L,), (H, W) or (D, H, W).

    Returns:
        The values, (*b, d), and the unit of each parameter; a parameter of another kind stays as it is, with unit "".

    Example:
        >>> from pstn.families import Similarity
        >>> values, units = plain_units(Similarity(), torch.tensor([0.1, 0.1, 0.1, -0.1]), (28, 28))
        >>> values, units
        (tensor([ 5.7296, 10.5171,  1.4000, -1.4000]), ('°', '%', 'px', 'px'))
    """
    columns, units = [], []
    for name, value in zip(family.names, theta.unbind(-1), strict=True):
        kind = name.split()[0]
        if kind == "rotation":
            value, unit = value * (180 / math.pi), "°"
        elif kind == "log-scale":
            value, unit = 100 * torch.expm1(value), "%"
        elif kind == "scale":
            value, unit = 100 * value, "%"
        elif name in _AXES[: family.ndim]:
            value, unit = value * (list(size)[::-1][_AXES.index(name)] / 2), "px"
        else:
            unit = ""
        columns.append(value)
        units.append(unit)
    return torch.stack(columns, dim=-1), tuple(units)
