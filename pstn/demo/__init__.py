"""The demonstration: what a probabilistic spatial transformer makes of 100 digits, against three other networks."""

from pstn.demo.settings import Demo

__all__ = ["Demo"]
