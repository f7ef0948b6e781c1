"""A first spatial transformer: digits that are turned, scaled and shifted, and a network that puts them upright.

    python docs/tutorials/first_stn.py [figure.png]

A convolutional network sees a digit lying on its side as a new digit. A spatial transformer network (STN) looks at the
image first, decides on a transformation, warps the image by it, and classifies what comes out. Nobody tells it which
transformation is right: it learns what helps to classify. A quarter of a minute on one core. The digits need the extra
``demo``, drawing the extra ``plot``.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

from pstn import STN, Point, Similarity, nets, predict, warp
from pstn.data import digits
from pstn.train import Train, fit

# %% The data: digits of MNIST, each warped by rotation, log-scale and shift of its own. `warp` is the one function that
# transforms an image: the output at p takes its value from the input at T(p). θ = 0 is the identity for every family.

family = Similarity()
print("parameters:", ", ".join(family.names))
generator = torch.Generator().manual_seed(0)


def moved(data):
    theta = torch.randn(len(data), 4, generator=generator) * torch.tensor([0.5, 0.15, 0.25, 0.25])
    return replace(data, x=warp(data.x, family, theta))


train, test = map(moved, digits().split((2000, 500), seed=0))

# %% Two networks with the same classifier: alone, and behind a transformer. The localizer reads the image; the
# posterior says what is made of its features: `Point()` is a single θ. Every transformer starts at the identity.

SHAPE = (1, 28, 28)
torch.manual_seed(0)
models = {
    "CNN": STN(nets.classifier(SHAPE, 10)),
    "STN": STN(nets.classifier(SHAPE, 10), nets.localizer(SHAPE), family, Point()),
}

# %% Training. `fit` is a plain loop with schedules, checkpoints and exact resume; `elbo` and `param_groups` are there
# for a loop of your own. The localizer learns more slowly than the classifier: a factor of 0.3 here.

config = Train(steps=500, batch_size=64, lr=3e-3, localizer_lr=0.3, schedule="cosine", accelerator="cpu")
for name, model in models.items():
    fit(model, train, None, config, progress=False)
    p = predict(model, test.x)
    print(f"{name}: {(p.labels == test.y).float().mean():.1%} of {len(test)} moved digits right")

# %% What the transformer does. `warped` is what the classifier saw. To see that it aligns digits, average all images of
# a class: the sharper the mean, the better they agree.

with torch.no_grad():
    out = models["STN"].eval()(test.x)
seen = out.warped[0]
rotation = out.theta[0, :, 0]
print(f"it turns digits by {rotation.std() * 57.3:.0f} degrees (standard deviation)")

figure = Figure(figsize=(9, 4), layout="constrained")
lines = {
    "input": test.x[:10, 0],
    "seen": seen[:10, 0],
    "mean input": torch.stack([test.x[test.y == k, 0].mean(0) for k in range(10)]),
    "mean seen": torch.stack([seen[test.y == k, 0].mean(0) for k in range(10)]),
}
panel = figure.subplots()
panel.imshow(torch.cat([torch.cat(list(line), dim=1) for line in lines.values()]).numpy(), cmap="gray")
panel.set_xticks([])
panel.set_yticks([14 + 28 * i for i in range(len(lines))], list(lines))

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "first.png"
figure.savefig(path, dpi=110)
print(f"figure: {path}")
