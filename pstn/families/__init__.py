"""Families of transformations: pure geometry, the identity at zero."""

from pstn.families.affine import Affine, Crop, MatrixFamily, Rotation, Similarity, Translation
from pstn.families.base import Family
from pstn.families.compose import Compose
from pstn.families.cpab import CPAB
from pstn.families.projective import Projective
from pstn.families.tps import TPS

__all__ = [
    "CPAB",
    "TPS",
    "Affine",
    "Compose",
    "Crop",
    "Family",
    "MatrixFamily",
    "Projective",
    "Rotation",
    "Similarity",
    "Translation",
]
