"""Codes that do not care where a picture's content is: a variational autoencoder with a spatial transformer in front.

    python docs/tutorials/invariant_vae.py [figure.png]

An autoencoder of digits that are shifted, turned and scaled a little spends much of its code on where they are. Put a
transformer in front, let the decoder draw the digit in whatever pose it likes, and warp the drawing back to where the
digit was seen: what the warp explains, the code need not hold. Nobody tells the transformer which pose is the right
one. A quarter of a minute on one core. The digits need the extra ``demo``, drawing the extra ``plot``.
"""

import sys
import tempfile
from pathlib import Path

import torch
from matplotlib.figure import Figure

from pstn import Similarity, nets
from pstn.data import digits
from pstn.train import Train, fit
from pstn.vae import VAE, Bound, Nudge, fit_probe, front, invariance

# %% Two sets: digits as they are, and the same digits nudged, each by a draw of its own that is fixed by a seed: up to
# 10 degrees, 4 pixels and 20 %, each with probability one half.

SHAPE = (1, 28, 28)
train, test = digits().split((2500, 1000), seed=0)
nudge = Nudge(SHAPE[1:])
moved_train, moved_test = nudge.data(train, seed=1), nudge.data(test, seed=2)

# %% Two autoencoders, which see nudged digits only. `front` is any STN: here a point in the space of rotations, scales
# and shifts; `Gaussian(...)` in its place would give it a distribution over them. The bound is the squared error a
# pixel plus 0.0001 times the divergence of the code. The objective is the same for both, and knows no labels and no
# poses.

config = Train(steps=200, batch_size=64, lr=3e-3, localizer_lr=1.0, optimizer="adamw", accelerator="cpu")
bound = Bound(kl_weight=1e-4)
models = {}
for name in ("plain", "with transformer"):
    torch.manual_seed(0)
    before = front(SHAPE, Similarity(), localizer=nets.localizer(SHAPE)) if name == "with transformer" else None
    models[name] = VAE(SHAPE, latent=10, hidden=(8, 16, 32), front=before)
    run = fit(models[name], moved_train, None, config, loss=bound, progress=False)
    models[name].eval()
    print(f"{name}: loss {run.history[0]['loss']:.4f} in the first epoch, {run.history[-1]['loss']:.4f} in the last")

# %% What the codes are good for. A linear classifier is trained on codes of nudged digits, and asked about both sets.
# `invariance` is how far a code moves when its digit does, relative to how far apart codes of two digits are.

with torch.no_grad():
    for name, model in models.items():
        codes, moved = model.features(test.x), model.features(moved_test.x)
        probe = fit_probe(model.features(moved_train.x), moved_train.y, 10)
        right, right_moved = ((probe(z) == test.y).float().mean() for z in (codes, moved))
        far = invariance(codes, moved)
        print(f"{name}: {right:.1%} of digits, {right_moved:.1%} of nudged digits; invariance {far:.2f}")

# %% What happens on the way: the nudged digit, what the transformer makes of it, what the decoder draws, and that
# drawing put back. The pose of the third line is the network's own choice: all that matters is that twins share it.

model = models["with transformer"]
some = torch.stack([(test.y == digit).nonzero()[0, 0] for digit in range(10)])
with torch.no_grad():
    out = model(moved_test.x[some], samples=0)
lines = {
    "digit": test.x[some],
    "nudged": moved_test.x[some],
    "seen": out.pose.warped[0],
    "drawn": out.canonical[0],
    "put back": out.drawn[0],
    "new": model.sample(10, torch.Generator().manual_seed(0)),
    "between two": model.interpolate(test.x[some[2:3]], test.x[some[7:8]], steps=10)[:, 0],
}
figure = Figure(figsize=(8, 5.6), layout="constrained")
panel = figure.subplots()
sheet = torch.cat([torch.cat(list(line[:, 0]), dim=1) for line in lines.values()])
panel.imshow(1 - sheet.numpy(), cmap="gray", vmin=0, vmax=1)
panel.set_xticks([])
panel.set_yticks([14 + 28 * i for i in range(len(lines))], list(lines))

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "invariant.png"
figure.savefig(path, dpi=100)
print(f"figure: {path}")
