"""Align time series to their mean: one class of a UCR set, before and after.

    python docs/tutorials/align_time_series.py [figure.png]

Series of one kind rarely keep time with each other. Averaging them as they are smears whatever happens a little earlier
in one and a little later in another. Here each series gets its own warp of the time axis, a CPAB diffeomorphism, such
that the warped series agree with their common mean and no warp is wilder than it needs to be. Half a minute at most on
one core. Drawing needs the extra ``plot``.
"""

import sys
import tempfile
from pathlib import Path

import torch

from pstn.align import align
from pstn.data import cbf, ucr
from pstn.report.geometry import plot_series

# %% The series. Trace is a set of the UCR archive (PSTN_DATA names the folder that holds UCR/): readings of a plant's
# instruments, simulated, in which a transient starts sooner or later and takes shorter or longer. Without the archive,
# the bells of the classic generator will do: a ramp between two jumps whose times are random.

try:
    data = ucr("Trace", "train")
    kind = data.classes[0]
except FileNotFoundError as error:
    print(f"{error}\nso this is about generated series instead")
    data = cbf(60, seed=0)
    kind = "bell"
series = data.x[data.y == data.classes.index(kind)]
print(f"{len(series)} series of class {kind!r} of {data.name}, each {tuple(series.shape[1:])}: channels, time")

# %% Alignment. The family of warps is CPAB with 16 cells unless another is given, `weight` says how much smoothness
# counts, and nothing in it is random. Several channels are aligned by one warp, series of several lengths come as a
# list, and with labels, `align(x, y=y)`, each class is aligned to its own mean.

found = align(series, weight=0.1)
before, after = found.variance
print(found)
print(f"the variance around the mean fell by a factor of {before / after:.0f}")

# %% The warps. `warping()` says where on its own axis [-1, 1] each series is read: aligned(p) = series(T(p)). A warp is
# a diffeomorphism: time never runs backwards, and the inverse is as easy as the warp itself.

paths = found.warping()[..., 0]
assert (paths.diff(dim=1) > 0).all()
there = torch.tensor([[0.0]])
back = found.family(found.theta, found.warping(there, inverse=True))
print(f"to common time and back, the middle of each series is off by {(back - there).abs().max():.1g} at most")

# %% New series are aligned to the mean that was learned.

new = found.transform(series[:3] + 0.05 * torch.randn(series[:3].shape, generator=torch.Generator().manual_seed(0)))
print(f"noisy copies of three of the series are within {(new - found.means).abs().mean():.2f} of the mean")

# %% Before, the warps, and after; the mean in black.

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "aligned.png"
plot_series(found.series, found.aligned, found.warping()).savefig(path, dpi=120)
print(f"figure: {path}")
