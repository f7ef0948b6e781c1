"""Continuous piecewise-affine velocity fields, integrated exactly."""

from pstn.families.cpab.family import CPAB

__all__ = ["CPAB"]
