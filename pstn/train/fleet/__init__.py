"""Training many networks of one architecture at once: a table's folds, seeds and settings in the time of a few.

A small network leaves a processor idle: most of a step is the cost of asking for it. A fleet asks once for all. The
networks share nothing but the asking: each has its own data, seed, learning rate, schedule, KL weight and weight decay,
its own order of examples and its own noise, and ends as if it had been trained alone.
"""

from pstn.train.fleet.fit import fit_fleet
from pstn.train.fleet.fleet import Fleet
from pstn.train.fleet.member import Member

__all__ = ["Fleet", "Member", "fit_fleet"]
