"""The laws, for everybody's families, warps and posteriors: each function raises with the law that is broken."""

from pstn.testing.families import assert_family
from pstn.testing.posteriors import assert_posterior
from pstn.testing.warps import assert_integer_shift, assert_warp

__all__ = ["assert_family", "assert_integer_shift", "assert_posterior", "assert_warp"]
