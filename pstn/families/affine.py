"""Families whose members are matrices: shifts, rotations, crops, similarities and affine maps, in 1-D, 2-D and 3-D.

Every one is assembled from the same few parts, :math:`T_\\theta(p) = R\\,U\\,S\\,p + t`: a rotation R, a shear U, a
scale S and a shift t.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from pstn.families.base import Family
from pstn.families.rotation import rotation_matrix, rotation_parameters
from pstn.grid import check_choice

Scale = Literal["exp", "linear"]

#: log-scales are clamped here: a zoom of exp(8), about 3,000.
LOG_SCALE_LIMIT = 8.0

AXES = ("x", "y", "z")


class MatrixFamily(Family):
    r"""A family of affine maps :math:`T_\theta(p) = A p + t`, given by its homogeneous matrix.

    A member is written by :meth:`to_matrix` (parameters to matrix) and :meth:`from_matrix` (back); composition and
    inverse follow from matrix algebra.
    """

    def __init__(self, ndim: int, names: Sequence[str]) -> None:
        super().__init__()
        if ndim not in (1, 2, 3):
            raise ValueError(f"ndim is {ndim}; expected 1 (series), 2 (images) or 3 (volumes)")
        self.ndim = ndim
        self.names = tuple(names)

    def to_matrix(self, theta: Tensor) -> Tensor:
        """The homogeneous matrix of checked, bounded parameters."""
        raise NotImplementedError(f"{type(self).__name__} must define to_matrix(theta)")

    def from_matrix(self, matrix: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b d"]:
        """The parameters of a homogeneous matrix (*b, k + 1, k + 1) that belongs to the family."""
        raise NotImplementedError(f"{type(self).__name__} must define from_matrix(matrix)")

    def matrix(self, theta: Float[Tensor, "*b d"]) -> Float[Tensor, "*b m m"]:
        r"""The homogeneous matrix of :math:`T_\theta`, with shape (*b, k + 1, k + 1).

        Convention: it acts on columns (x, y, 1) of normalised positions, from output to input.
        """
        return self.to_matrix(self.bounded(theta))

    def move(self, theta: Tensor, points: Tensor) -> Tensor:
        """The points :math:`A p + t`."""
        return self._mapped(self.to_matrix(theta), points)

    def _mapped(self, matrix: Tensor, points: Tensor) -> Tensor:
        # Multiply and add rather than matmul: a matrix product would drop to TF32 or bfloat16 when the rest of the
        # program asks for it, and a position is worth more than ten bits.
        moved = matrix[..., None, : self.ndim, self.ndim]
        for j in range(self.ndim):
            moved = torch.addcmul(moved, points[..., j, None], matrix[..., None, : self.ndim, j])
        return moved

    def compose(self, outer: Float[Tensor, "*b d"], inner: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        r"""The :math:`\theta` with :math:`T_\theta = T_{outer} \circ T_{inner}`.

        Example:
            >>> turn = torch.tensor([0.3, 0.0, 0.0, 0.0])
            >>> zoom = torch.tensor([0.0, 0.7, 0.0, 0.0])
            >>> Similarity().compose(turn, zoom)
            tensor([0.3000, 0.7000, 0.0000, 0.0000])
        """
        product = self.matrix(outer)[..., :, :, None] * self.matrix(inner)[..., None, :, :]
        return self.from_matrix(product.sum(dim=-2))

    def inverse(self, theta: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        r"""The :math:`\theta'` with :math:`T_{\theta'} = T_\theta^{-1}`; NaN where a map is flat and has none."""
        found, flat = torch.linalg.inv_ex(self.matrix(theta))
        return self.from_matrix(found).masked_fill(flat[..., None] != 0, torch.nan)

    def invert(self, theta: Float[Tensor, "*b d"], points: Float[Tensor, "*#b n k"]) -> Float[Tensor, "*b n k"]:
        r"""The points :math:`T_\theta^{-1}(p)`, in closed form; NaN where a map is flat."""
        # by the inverse matrix as it is: its parameters may lie beyond what parameters are clamped to
        found, flat = torch.linalg.inv_ex(self.matrix(theta))
        return self._mapped(found, points).masked_fill(flat[..., None, None] != 0, torch.nan)

    def _split(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        k = self.ndim
        if matrix.shape[-2:] != (k + 1, k + 1):
            raise ValueError(
                f"matrix has shape {tuple(matrix.shape)}; {self.label} needs homogeneous (..., {k + 1}, {k + 1})"
            )
        return matrix[..., :k, :k], matrix[..., :k, k]


class Translation(MatrixFamily):
    r"""Shifts :math:`T_\theta(p) = p + \theta`.

    Convention: one unit is half the array; a positive x looks further right, so the picture moves left.

    Arguments:
        ndim: 1, 2 or 3.

    Example:
        >>> Translation()(torch.tensor([0.5, 0.0]), torch.tensor([[0.0, 0.25]]))
        tensor([[0.5000, 0.2500]])
    """

    def __init__(self, ndim: int = 2) -> None:
        super().__init__(ndim, AXES[:ndim])

    def to_matrix(self, theta: Tensor) -> Tensor:
        """The matrix (I | t)."""
        return homogeneous(torch.eye(self.ndim, dtype=theta.dtype, device=theta.device), theta)

    def from_matrix(self, matrix: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b d"]:
        """The shift of a homogeneous matrix."""
        return self._split(matrix)[1]


class Crop(MatrixFamily):
    r"""Windows of any size and place, the attention of Jaderberg et al.: :math:`T_\theta(p) = s\,p + t`.

    In 1-D it is the scale-and-shift family of time series.

    Arguments:
        ndim: 1, 2 or 3.
        scale: ``"exp"`` for :math:`s = e^{\theta_1}`, ``"linear"`` for the papers' :math:`s = 1 + \theta_1`.

    References:
        Jaderberg et al., Spatial Transformer Networks, 2015, https://arxiv.org/abs/1506.02025

    Example:
        >>> Crop().names
        ('log-scale', 'x', 'y')
    """

    def __init__(self, ndim: int = 2, scale: Scale = "exp") -> None:
        super().__init__(ndim, (scale_name(scale), *AXES[:ndim]))
        self.scale = scale

    def to_matrix(self, theta: Tensor) -> Tensor:
        """The matrix (s I | t)."""
        eye = torch.eye(self.ndim, dtype=theta.dtype, device=theta.device)
        return homogeneous(to_scale(theta[..., 0], self.scale)[..., None, None] * eye, theta[..., 1:])

    def from_matrix(self, matrix: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b d"]:
        """Scale and shift of a homogeneous matrix."""
        linear, shift = self._split(matrix)
        scale = linear.diagonal(dim1=-2, dim2=-1).mean(-1)
        return torch.cat([from_scale(scale, self.scale)[..., None], shift], dim=-1)


class _Rotating(MatrixFamily):
    """What turns needs the array's shape: on a picture that is not square, normalised axes have different lengths."""

    extent: Tensor

    def __init__(self, ndim: int, names: Sequence[str], size: Sequence[int] | None) -> None:
        super().__init__(ndim, names)
        if size is not None and (len(size) != ndim or min(size) <= 0):
            raise ValueError(f"size is {tuple(size)}; expected {ndim} positive numbers, the array's spatial size")
        self.size = None if size is None else tuple(size)
        self.lay_tables()

    def tables(self) -> dict[str, Tensor | None]:
        """A linear map in pixels is E^-1 L E in normalised coordinates, entry by entry L_ij e_j / e_i."""
        extent = torch.tensor([1] * self.ndim if self.size is None else self.size[::-1], dtype=torch.float64)
        return {"extent": extent[None, :] / extent[:, None]}

    def _homogeneous(self, linear: Tensor, shift: Tensor) -> Tensor:
        return homogeneous(linear if self.size is None else linear * self.extent.to(linear), shift)

    def _split(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        linear, shift = super()._split(matrix)
        return linear if self.size is None else linear / self.extent.to(linear), shift


class Rotation(_Rotating):
    r"""Rotations about the centre: :math:`T_\theta(p) = R(\theta)\,p`, an angle in 2-D, a rotation vector in 3-D.

    Convention: radians; y points down, so a positive angle looks clockwise and turns the picture anticlockwise.

    Arguments:
        ndim: 2 or 3.
        size: The array's size, (H, W) or (D, H, W), to turn rigidly on arrays that are not square.

    Example:
        >>> Rotation()(torch.tensor([torch.pi / 2]), torch.tensor([[1.0, 0.0]]))
        tensor([[-0.0000,  1.0000]])
    """

    def __init__(self, ndim: int = 2, size: Sequence[int] | None = None) -> None:
        super().__init__(ndim, rotation_names(ndim), size)

    def to_matrix(self, theta: Tensor) -> Tensor:
        """The matrix (R | 0)."""
        return self._homogeneous(rotation_matrix(theta), theta.new_zeros(*theta.shape[:-1], self.ndim))

    def from_matrix(self, matrix: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b d"]:
        """The angle (or rotation vector) of a homogeneous matrix."""
        return rotation_parameters(self._split(matrix)[0])


class Similarity(_Rotating):
    r"""Rotation, one scale and shift, the family of the P-STN papers: :math:`T_\theta(p) = s\,R(r)\,p + t`.

    Arguments:
        ndim: 2 (rotation, log-scale, x, y) or 3 (three rotations, log-scale, x, y, z).
        scale: ``"exp"`` for :math:`s = e^{\theta}`, ``"linear"`` for the papers' :math:`s = 1 + \theta`.
        size: The array's size, to turn rigidly on arrays that are not square.

    References:
        Schwöbel et al., Probabilistic Spatial Transformer Networks, UAI 2022, eq. 1

    Example:
        >>> Similarity().names
        ('rotation', 'log-scale', 'x', 'y')
    """

    def __init__(self, ndim: int = 2, scale: Scale = "exp", size: Sequence[int] | None = None) -> None:
        super().__init__(ndim, (*rotation_names(ndim), scale_name(scale), *AXES[:ndim]), size)
        self.scale = scale

    def to_matrix(self, theta: Tensor) -> Tensor:
        """The matrix (s R | t)."""
        rotation, scale, shift = self._parts(theta)
        return self._homogeneous(scale[..., None] * rotation, shift)

    def compose(self, outer: Float[Tensor, "*b d"], inner: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        r"""The :math:`\theta` with :math:`T_\theta = T_{outer} \circ T_{inner}`, part by part.

        A matrix of scale zero has no angle to find, and next to it the slopes of the angle are without bound; linear
        scales come through zero.

        Example:
            >>> half, nothing = torch.tensor([[0.3, -0.5, 0.0, 0.0], [0.2, -1.0, 0.4, 0.0]])
            >>> Similarity(scale="linear").compose(half, nothing)
            tensor([ 0.5000, -1.0000,  0.1911,  0.0591])
        """
        outer, inner = self.bounded(outer), self.bounded(inner)
        (turn, scale, _), (first, small, shift) = self._parts(outer), self._parts(inner)
        rotation = rotation_parameters((turn[..., :, :, None] * first[..., None, :, :]).sum(dim=-2))
        shift = self.move(outer, shift[..., None, :]).squeeze(-2)
        return torch.cat([rotation, from_scale(scale * small, self.scale), shift], dim=-1)

    def _parts(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rotation's matrix, the scale and the shift."""
        rotation, scale, shift = theta.split([self.dim - self.ndim - 1, 1, self.ndim], dim=-1)
        return rotation_matrix(rotation), to_scale(scale, self.scale), shift

    def from_matrix(self, matrix: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b d"]:
        """Rotation, scale and shift of a homogeneous matrix."""
        linear, shift = self._split(matrix)
        scale = linear.square().sum(dim=(-2, -1)).div(self.ndim).sqrt()
        if self.ndim == 3:  # in 2-D, minus the identity is a rotation already
            scale = scale * torch.linalg.det(linear).sign()
        rotation = rotation_parameters(linear / scale[..., None, None])
        return torch.cat([rotation, from_scale(scale, self.scale)[..., None], shift], dim=-1)


class Affine(_Rotating):
    r"""All affine maps that keep orientation: :math:`T_\theta(p) = R\,U\,S\,p + t`, six numbers in 2-D.

    R is a rotation, U an upper triangular shear with ones on the diagonal and S a diagonal scale, so each parameter has
    a meaning of its own and no parameter folds the picture. ``scale="linear"`` gives the raw matrix of the papers
    instead, :math:`T_\theta(p) = (I + \Theta)\,p + t`.

    Arguments:
        ndim: 1, 2 or 3.
        scale: ``"exp"`` or ``"linear"``.
        size: The array's size, to turn rigidly on arrays that are not square (``"exp"`` only).

    References:
        Jaderberg et al., Spatial Transformer Networks, 2015, https://arxiv.org/abs/1506.02025

    Example:
        >>> Affine().names
        ('rotation', 'log-scale x', 'log-scale y', 'shear xy', 'x', 'y')
        >>> Affine(scale="linear").names
        ('xx', 'xy', 'yx', 'yy', 'x', 'y')
    """

    def __init__(self, ndim: int = 2, scale: Scale = "exp", size: Sequence[int] | None = None) -> None:
        axes = AXES[:ndim]
        if scale == "linear":
            if size is not None:
                raise ValueError("Affine(scale='linear') is the raw matrix: it has no rotation for size to keep rigid")
            names = [i + j for i in axes for j in axes]
        else:
            names = [
                *(rotation_names(ndim) if ndim > 1 else ()),
                *(f"{scale_name(scale)} {a}" for a in axes),
                *(f"shear {axes[i]}{axes[j]}" for i in range(ndim) for j in range(i + 1, ndim)),
            ]
        super().__init__(ndim, (*names, *axes), size)
        self.scale = scale

    def to_matrix(self, theta: Tensor) -> Tensor:
        """The matrix (R U S | t), or (I + Θ | t)."""
        k = self.ndim
        if self.scale == "linear":
            eye = torch.eye(k, dtype=theta.dtype, device=theta.device)
            return self._homogeneous(theta[..., : k * k].unflatten(-1, (k, k)) + eye, theta[..., k * k :])
        shears = k * (k - 1) // 2
        rotation, scale, shear, shift = theta.split([self.dim - 2 * k - shears, k, shears, k], dim=-1)
        scale = to_scale(scale, self.scale)
        upper = torch.diag_embed(scale)
        pairs = [(i, j) for i in range(k) for j in range(i + 1, k)]
        for n, (i, j) in enumerate(pairs):
            entry = torch.zeros(k, k, dtype=theta.dtype, device=theta.device)
            entry[i, j] = 1
            upper = upper + (shear[..., n] * scale[..., j])[..., None, None] * entry
        if k == 1:
            return self._homogeneous(upper, shift)
        linear = (rotation_matrix(rotation)[..., :, :, None] * upper[..., None, :, :]).sum(-2)
        return self._homogeneous(linear, shift)

    def from_matrix(self, matrix: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b d"]:
        """The parameters of a homogeneous matrix, by orthogonalising its columns one after the other."""
        k = self.ndim
        linear, shift = self._split(matrix)
        if self.scale == "linear":
            eye = torch.eye(k, dtype=matrix.dtype, device=matrix.device)
            return torch.cat([(linear - eye).flatten(-2), shift], dim=-1)
        if k == 1:
            return torch.cat([from_scale(linear[..., 0], self.scale), shift], dim=-1)
        columns: list[Tensor] = []
        scales: list[Tensor] = []
        projections: dict[tuple[int, int], Tensor] = {}
        for j in range(k):
            rest = linear[..., :, j]
            for i, unit in enumerate(columns):
                projections[i, j] = (unit * rest).sum(-1)
                rest = rest - projections[i, j][..., None] * unit
            scales.append(rest.square().sum(-1).sqrt())
            columns.append(rest / scales[-1][..., None])
        shears = [projections[i, j] / scales[j] for i in range(k) for j in range(i + 1, k)]
        rotation = rotation_parameters(torch.stack(columns, dim=-1))
        scale = from_scale(torch.stack(scales, dim=-1), self.scale)
        return torch.cat([rotation, scale, torch.stack(shears, dim=-1), shift], dim=-1)


def homogeneous(linear: Float[Tensor, "*#b k k"], shift: Float[Tensor, "*b k"]) -> Float[Tensor, "*b m m"]:
    """The matrix (linear | shift) with the row (0 … 0 1) below it."""
    k = shift.shape[-1]
    top = torch.cat([linear.expand(*shift.shape[:-1], k, k), shift[..., None]], dim=-1)
    last = torch.zeros(k + 1, dtype=shift.dtype, device=shift.device)
    last[k] = 1
    return torch.cat([top, last.expand(*shift.shape[:-1], 1, k + 1)], dim=-2)


def scale_name(kind: str) -> str:
    """What a scale parameter of this kind is called; raises for an unknown kind."""
    check_choice("scale", kind, get_args(Scale))
    return "log-scale" if kind == "exp" else "scale"


def rotation_names(ndim: int) -> tuple[str, ...]:
    """What the rotation parameters are called: an angle in 2-D, a rotation vector in 3-D."""
    if ndim not in (2, 3):
        raise ValueError(f"ndim is {ndim}; rotations need 2 or 3 dimensions")
    return ("rotation",) if ndim == 2 else tuple(f"rotation {a}" for a in AXES)


def to_scale(theta: Tensor, kind: Scale) -> Tensor:
    """The scale of a parameter: its exponential, or one more than it."""
    return theta.clamp(-LOG_SCALE_LIMIT, LOG_SCALE_LIMIT).exp() if kind == "exp" else 1 + theta


def from_scale(scale: Tensor, kind: Scale) -> Tensor:
    """The parameter of a scale: the inverse of :func:`to_scale`."""
    return scale.log() if kind == "exp" else scale - 1
