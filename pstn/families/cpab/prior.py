"""The smoothness prior: nearby velocities are alike."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.families.cpab.tessellation import Tessellation
from pstn.grid import check_choice

On = Literal["nodes", "cells"]


def covariance(
    mesh: Tessellation, basis: Float[Tensor, "d m k"], length_scale: float, variance: float, on: On, nugget: float
) -> Float[Tensor, "d d"]:
    r"""The covariance of the parameters, from a squared-exponential kernel over space.

    - ``on="nodes"``: the velocities at the nodes are a Gaussian process with :math:`\mathrm{cov}(v_i, v_j) =
      \sigma^2 e^{-|x_i - x_j|^2 / 2 \ell^2}`, each component by itself, seen through the basis.
    - ``on="cells"``: the paper's. The coefficients of the simplices' affine maps have that covariance over the
      simplices' centres, each coefficient by itself, and are projected onto the continuous fields. As in the paper,
      domain and velocities are measured on the unit cube.
    """
    check_choice("on", on, get_args(On))
    if min(length_scale, variance) <= 0 or nugget < 0:
        raise ValueError(
            f"length_scale {length_scale} and variance {variance} must be positive, nugget {nugget} not negative"
        )
    if on == "nodes":
        kernel = _kernel(mesh.nodes, length_scale)
        found = torch.einsum("dmk,mn,enk->de", basis, kernel, basis)
    else:
        inside = slice(mesh.inside)
        corners, gradients = mesh.corners[inside], mesh.gradients[inside]
        velocity = basis[:, mesh.simplices[inside]]
        slope = torch.einsum("dcja,cjb->dcab", velocity, gradients)
        # the constant of the affine map: the velocity at the corner of the unit cube, which is x = -1 here
        away = -1 - corners[:, 0]
        constant = (velocity[:, :, 0] + torch.einsum("dcab,cb->dca", slope, away)) / 2
        maps = torch.cat([slope, constant[..., None]], dim=-1)
        back = torch.linalg.pinv(maps.flatten(1).T).unflatten(1, maps.shape[1:])
        kernel = _kernel((corners.mean(1) + 1) / 2, length_scale)
        found = torch.einsum("dcab,ce,feab->df", back, kernel, back)
    found = variance * found
    return (found + found.T) / 2 + nugget * found.diagonal().mean() * torch.eye(len(found)).to(found)


def _kernel(x: Tensor, length_scale: float) -> Tensor:
    return (-(x[:, None] - x).square().sum(-1) / (2 * length_scale**2)).exp()
