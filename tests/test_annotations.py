"""The shapes in the signatures are true: the public API runs with every annotation checked at every call."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import jaxtyping
from pathlib import Path

root = Path.cwd().parent
files = [p for p in (root / "pstn").rglob("*.py") if p.name != "__init__.py"]
# torch reads the signatures of custom operators itself, and cannot read them through a decorator
checked = [p for p in files if "custom_op" not in p.read_text()]
modules = [".".join(p.relative_to(root).with_suffix("").parts) for p in checked]

with jaxtyping.install_import_hook(modules, "shape_checker.checked"):
    import pstn
    from pstn import grid, labels, metrics
    from pstn.data import cbf
    from pstn.train import Train, fit

import torch
from pstn import *

def parameters(family, *shape):
    return 0.1 * torch.randn(*shape, family.dim)

families = [
    Translation(1), Crop(1), Similarity(), Affine(), Rotation(), Projective(), TPS(3), Compose(Crop(), TPS(2)),
    Similarity(3), Affine(3, scale="linear"), CPAB(4), CPAB((2, 2)), CPAB((1, 2, 1)),
]
for family in families:
    x = torch.rand(3, 2, *[9] * family.ndim)
    for theta in (parameters(family, 3), parameters(family, 4, 3)):
        warp(x, family, theta, fill=torch.zeros(2), size=[5] * family.ndim)
        warp(x, family, theta, antialias=True, window=torch.tensor([0.5] + [0.0] * family.ndim))
    theta = parameters(family, 3)
    points = torch.rand(3, 6, family.ndim) - 0.5
    labels.unwarp_points(labels.warp_points(points, family, theta), family, theta)
    labels.unwarp_masks(labels.warp_masks(x > 0.5, family, theta), family, theta)
    if family.ndim == 2:
        labels.unwarp_boxes(labels.warp_boxes(torch.rand(3, 2, 4), family, theta), family, theta)
    if hasattr(family, "matrix"):
        family.from_matrix(family.matrix(family.compose(theta, family.inverse(theta))))

shape = (1, 20, 20)
for posterior in (Point(), Gaussian(), StudentT(), StudentT(per="input")):
    for placement in (C(0), SL(1), DL(1), C(0, iterations=2), C(0, parallel=2, tile=0.5)):
        depth = placement.depths[0]
        localizer = nets.localizer((4, 9, 9) if depth else shape, channels=(4,), kernel=3)
        body = nets.classifier((placement.parallel, 20, 20), 3, channels=(4, 4), kernel=3)
        model = STN(body, localizer, Similarity(), posterior, placement)
        x, y = torch.rand(4, *shape), torch.tensor([0, 1, 2, 0])
        for method in ("random", "antithetic", "sobol"):
            out = model(x, samples=3, method=method)
            elbo(out, y).backward()
            nll(out, y)
            elbo(out, y, bound="iw", kl_per="input")
        p = predict(model, x, samples=2)
        metrics.summary(p.probs, y)
        metrics.reliability(p.probs, y)
body = nets.classifier(shape, 3, channels=(4, 4), kernel=3)
predict(TTA(body, Similarity(), 0.1), torch.rand(4, *shape))
Augment(Similarity(), 0.1)(torch.rand(4, *shape))

series = cbf(12, seed=0)
model = STN(nets.classifier((1, 128), 3), nets.localizer((1, 128)), Crop(1), StudentT())
fit(model, series, series, Train(epochs=1, batch_size=4), progress=False)
print("checked")
"""


def test_annotations_hold():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.stdout.endswith("checked\n"), done.stderr[-3000:]
