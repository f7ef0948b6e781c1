"""The velocities that the CPAB kernel reads, as a linear map of those at the nodes of the tessellation."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pstn.families.cpab import CPAB

_MAPS: dict[tuple[tuple[int, ...], torch.device], tuple[Tensor, Tensor]] = {}


def lattice(family: CPAB, theta: Float[Tensor, "s b d"]) -> Float[Tensor, "s b n"]:
    r"""What :mod:`pstn.kernels.cpab` needs to know of each field: the number of boxes, and velocities around them.

    The domain gets a rim of boxes, which stand for all that lie beyond: outside, the velocity is that of the nearest
    point of the border, so it is affine on the rim's triangles too. Velocities are in boxes per unit time, turned by an
    eighth: :math:`(v_x + v_y, v_x - v_y)`.

    Arguments:
        family: A family in two dimensions.
        theta: Its parameters.

    Returns:
        Two numbers, then the velocities of the boxes' centres, then of their corners, x fastest, in float32.

    Example:
        >>> lattice(CPAB((2, 1)), torch.zeros(1, 1, 6)).shape[-1] == 2 + 2 * (4 * 3 + 5 * 4)
        True
    """
    with torch.autocast(theta.device.type, enabled=False):
        nodal = family.nodal(family.bounded(theta)).flatten(-2)
        found = torch.nn.functional.linear(nodal, *_constants(family.cells, theta.device))
    return found.float()


@torch.compiler.assume_constant_result
def _constants(boxes: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    # of a function of its own: torch.compile would look into the cache
    key = (boxes, device)
    if key not in _MAPS:
        with torch.inference_mode(False), torch.no_grad():
            found = lattice_map(boxes, device)
        # tensors that belong to a transform, or are none, must not outlive it
        if any(type(t) is not Tensor or torch._C._functorch.is_functorch_wrapped_tensor(t) for t in found):
            return found
        if len(_MAPS) >= 64:
            _MAPS.clear()
        _MAPS[key] = found
    return _MAPS[key]


def lattice_map(boxes: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """The map from nodal velocities to :func:`lattice`: a matrix, and the two numbers that do not depend on them."""
    n, m = boxes
    node = np.eye((n + 1) * (m + 1) + n * m)
    corners, centres = node[: (n + 1) * (m + 1)].reshape(m + 1, n + 1, -1), node[(n + 1) * (m + 1) :]
    corners = np.pad(corners, ((1, 1), (1, 1), (0, 0)), mode="edge")
    # a box of the rim is cut by no node of its own: at its centre is the mean of its corners
    around = (corners[1:, 1:] + corners[1:, :-1] + corners[:-1, 1:] + corners[:-1, :-1]) / 4
    around[1:-1, 1:-1] = centres.reshape(m, n, -1)
    rows = np.concatenate([around.reshape(-1, len(node)), corners.reshape(-1, len(node))])
    turn = np.array([[1.0, 1.0], [1.0, -1.0]]) * np.array([n / 2, m / 2])
    matrix = np.einsum("ij,ac->iajc", rows, turn).reshape(2 * len(rows), -1)
    start = np.concatenate([[n, m], np.zeros(len(matrix))])
    matrix = np.concatenate([np.zeros((2, matrix.shape[1])), matrix])
    return torch.from_numpy(matrix).to(device), torch.from_numpy(start).to(device)
