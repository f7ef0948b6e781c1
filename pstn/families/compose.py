"""Several families as one: their maps one after the other, their parameters side by side."""

from __future__ import annotations

from torch import Tensor, nn

from pstn.families.base import Family


class Compose(Family):
    r"""The maps of several families, chained: :math:`T_\theta = T^1_{\theta_1} \circ T^2_{\theta_2} \circ \dots`.

    Convention: the first family acts on the picture first. ``Compose(Similarity(), CPAB((3, 3)))`` straightens the
    picture, then bends what it sees; one interpolation does both.

    Example:
        >>> from pstn.families import Rotation, Translation
        >>> both = Compose(Translation(), Rotation())
        >>> both.names
        ('x', 'y', 'rotation')
    """

    def __init__(self, *families: Family) -> None:
        super().__init__()
        if not families:
            raise ValueError("Compose needs at least one family")
        dims = {f.ndim for f in families}
        if len(dims) > 1:
            raise ValueError(f"Compose got families of {sorted(dims)} dimensions; they must all act on the same space")
        self.families = nn.ModuleList(families)
        self.ndim = families[0].ndim
        self.names = tuple(name for f in families for name in f.names)

    def _parts(self, theta: Tensor) -> list[tuple[Family, Tensor]]:
        families: list[Family] = list(self.families)  # type: ignore[arg-type]
        return list(zip(families, theta.split([f.dim for f in families], dim=-1), strict=True))

    def move(self, theta: Tensor, points: Tensor) -> Tensor:
        """The points through the last family first."""
        for family, part in reversed(self._parts(theta)):
            points = family(part, points)
        return points

    def invert(self, theta: Tensor, points: Tensor) -> Tensor:
        """The points through the inverses, the first family first."""
        for family, part in self._parts(self.bounded(theta)):
            points = family.invert(part, points)
        return points
