"""Rotations of the plane and of space, as matrices and back."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def rotation_matrix(theta: Float[Tensor, "*b r"]) -> Float[Tensor, "*b k k"]:
    r"""The matrix of an angle (*b, 1) in 2-D or of a rotation vector (*b, 3) in 3-D (Rodrigues' formula).

    Example:
        >>> rotation_matrix(torch.zeros(1))
        tensor([[1., 0.],
                [0., 1.]])
    """
    if theta.shape[-1] == 1:
        angle = theta[..., 0]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    square = theta.square().sum(-1)
    small = square < 1e-4  # the series' next terms are below 1e-16 there
    angle = torch.where(small, 1.0, square).sqrt()
    # sin a / a and (1 - cos a) / a², each as a smooth function of a²
    first = torch.where(small, 1 - square / 6 * (1 - square / 20 * (1 - square / 42)), angle.sin() / angle)
    second = torch.where(
        small, 0.5 - square / 24 * (1 - square / 30 * (1 - square / 56)), 2 * ((angle / 2).sin() / angle).square()
    )
    x, y, z = theta.unbind(-1)
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
    outer = theta[..., :, None] * theta[..., None, :]
    eye = torch.eye(3, dtype=theta.dtype, device=theta.device)
    first, second, square = first[..., None, None], second[..., None, None], square[..., None, None]
    return eye + first * cross + second * (outer - square * eye)


def rotation_parameters(matrix: Float[Tensor, "*b k k"]) -> Float[Tensor, "*b r"]:
    r"""The angle in (-π, π], or the rotation vector no longer than π, of a rotation matrix.

    In 3-D through the unit quaternion, taken from its largest component, so that half turns lose no digits.
    """
    if matrix.shape[-1] == 2:
        return torch.atan2(matrix[..., 1, 0] - matrix[..., 0, 1], matrix[..., 0, 0] + matrix[..., 1, 1])[..., None]
    m = matrix
    a, b, c = m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]
    x, y, z = (m[..., i, j] - m[..., j, i] for i, j in ((2, 1), (0, 2), (1, 0)))
    p, q, r = (m[..., i, j] + m[..., j, i] for i, j in ((2, 1), (0, 2), (1, 0)))
    rows = torch.stack(
        [
            torch.stack([1 + a + b + c, x, y, z], -1),
            torch.stack([x, 1 + a - b - c, r, q], -1),
            torch.stack([y, r, 1 - a + b - c, p], -1),
            torch.stack([z, q, p, 1 - a - b + c], -1),
        ],
        dim=-2,
    )
    best = rows.diagonal(dim1=-2, dim2=-1).argmax(-1)[..., None, None].expand(*rows.shape[:-2], 1, 4)
    quaternion = rows.gather(-2, best).squeeze(-2)
    quaternion = quaternion / quaternion.square().sum(-1, keepdim=True).sqrt()
    quaternion = torch.where(quaternion[..., :1] < 0, -quaternion, quaternion)
    cos, axis = quaternion[..., :1], quaternion[..., 1:]
    square = axis.square().sum(-1, keepdim=True)
    small = square < 1e-12
    sin = torch.where(small, 1.0, square).sqrt()
    return axis * torch.where(small, 2 / cos.clamp_min(0.5), 2 * torch.atan2(sin, cos) / sin)
