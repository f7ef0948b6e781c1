"""Your own family of transformations: a swirl, its laws, and a network that undoes it.

    python docs/tutorials/your_own_family.py [figure.png]

A family is pure geometry: a map from parameters and points to points that is the identity at zero. Everything else
(warping, posteriors, placements, training, export) works with whatever map you write. A quarter of a minute on one
core. The digits need the extra ``demo``, drawing the extra ``plot``.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

from pstn import STN, Family, Gaussian, nets, predict, warp
from pstn.data import digits
from pstn.metrics import rank_correlation
from pstn.testing import assert_family
from pstn.train import Train, fit

# %% The family. A swirl turns every point about the centre by an angle that fades with its distance r from there:
# T(p) = R(θ exp(-r²/w²)) p. Distances do not change, so two swirls make a third, θ adds up, and -θ is the inverse.


class Swirl(Family):
    """Turns by θ exp(-r²/w²) about the centre."""

    ndim, names = 2, ("swirl",)

    def __init__(self, width=0.6):
        super().__init__()
        self.width = width

    def move(self, theta, points):
        fade = torch.exp(-points.square().sum(-1) / self.width**2)
        angle = theta * fade  # (*b, 1) and (n,) make (*b, n)
        sine, cosine, (x, y) = angle.sin(), angle.cos(), points.unbind(-1)
        return torch.stack([cosine * x - sine * y, sine * x + cosine * y], dim=-1)

    def compose(self, outer, inner):
        return outer + inner

    def inverse(self, theta):
        return -theta


# %% The laws. One call checks identity, gradients, inverse, composition, batches, precision, and what happens far out
# (every θ must give finite points, NaN included). It would also check torch.compile, which takes a while.

family = Swirl()
assert_family(family, compiles=False)
print("Swirl keeps the laws")

# %% It warps like any other.

train, test = digits().split((2000, 500), seed=0)
generator = torch.Generator().manual_seed(0)
angles = {name: 1.5 * torch.randn(n, 1, generator=generator) for name, n in (("train", 2000), ("test", 500))}
train = replace(train, x=warp(train.x, family, angles["train"]))
test = replace(test, x=warp(test.x, family, angles["test"]))

# %% And it is learned like any other: here with a Gaussian posterior, so that the network says how sure it is of θ.
# Nobody tells it the angle.

SHAPE = (1, 28, 28)
torch.manual_seed(0)
model = STN(nets.classifier(SHAPE, 10), nets.localizer(SHAPE), family, Gaussian(prior_scale=1.0, spread=0.3))
config = Train(
    steps=450, batch_size=64, lr=3e-3, localizer_lr=0.3, kl_weight=0.003, schedule="cosine", accelerator="cpu"
)
fit(model, train, None, config, progress=False)
p = predict(model, test.x, samples=8)
print(f"{(p.labels == test.y).float().mean():.1%} of {len(test)} swirled digits right")

with torch.no_grad():
    out = model.eval()(test.x, samples=0)
theta = out.theta[0, :, 0]
rank = rank_correlation(theta, -angles["test"][:, 0])
print(f"what it turns back follows what was turned: rank correlation {rank:.2f}")

# %% Swirled digits, what the network makes of them, and how its angle follows the true one.

figure = Figure(figsize=(9, 3), layout="constrained")
left, right = figure.subplots(1, 2, width_ratios=(2.6, 1))
rows = (test.x[:10, 0], out.warped[0, :10, 0])
left.imshow(torch.cat([torch.cat(list(row), dim=1) for row in rows]).numpy(), cmap="gray")
left.set(xticks=[], yticks=[14, 42], yticklabels=["swirled", "seen"])
right.plot((-angles["test"][:, 0]).numpy(), theta.numpy(), ".", markersize=2)
right.set(xlabel="what undoes the swirl", ylabel="what the network chose")

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "swirl.png"
figure.savefig(path, dpi=110)
print(f"figure: {path}")
