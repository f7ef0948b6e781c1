"""Joint alignment of series and images: warps that bring each to the mean of its group."""

from pstn.align.choose import Choice, choose
from pstn.align.joint import Alignment, Match, align

__all__ = ["Alignment", "Choice", "Match", "align", "choose"]
