"""Probabilities to act on: learned augmentation, averaging over transformations, and what to hand to a person.

    python docs/tutorials/uncertainty_and_tta.py [figure.png]

With a hundred labelled digits, a network is often wrong, and it matters to know when. Three ways to average over
transformations are compared: none, test-time augmentation (TTA) of a plain network, and a probabilistic transformer
whose spread was learned from the data. Then the probabilities are put to use. A quarter of a minute on one core. The
digits need the extra ``demo``, drawing the extra ``plot``.
"""

import sys
import tempfile
from pathlib import Path

import torch
from matplotlib.figure import Figure

from pstn import STN, TTA, Affine, Learned, nets, predict
from pstn.data import Normalise, digits
from pstn.metrics import summary
from pstn.report.units import plain_units
from pstn.train import Train, fit
from pstn.uncertainty import Temperature, conformal, risk_coverage, selective_accuracy

# %% A hundred digits to train on, 500 to fit thresholds on, 1000 to measure with.

normalise = Normalise(mean=0.1307, std=0.3081)
train, held, test = (part.normalised(normalise) for part in digits().split((100, 500, 1000), seed=0))
SHAPE, BACK = (1, 28, 28), normalise.fill  # black, after normalisation: that is what lies outside an image

# %% A plain network, and the same behind affine maps θ ~ N(0, σ²) with one σ for each parameter. `Learned` learns σ
# with the weights; its divergence counts once for the data set (kl_per="dataset"), and a weight of 18
# suits digits of MNIST.


def body():
    torch.manual_seed(0)
    return nets.classifier(SHAPE, 10, channels=(12, 24), hidden=52)


usual = {"steps": 600, "batch_size": 16, "weight_decay": 0.01, "schedule": "cosine", "accelerator": "cpu"}
plain = STN(body())
fit(plain, train, None, Train(lr=1e-3, **usual), progress=False)
learned = STN(body(), nets.blind(), Affine(), Learned(), fill=BACK)
config = Train(lr=1e-3, localizer_lr=0.5, samples=4, kl_weight=18, kl_per="dataset", **usual)
fit(learned, train, None, config, progress=False)

with torch.no_grad():
    sigma = learned.train()(test.x[:1], samples=0).posterior.stddev[0]
values, units = plain_units(learned.family, sigma, SHAPE[1:])
print("learned:", ", ".join(f"{n} ± {v:.2g}{u}" for n, v, u in zip(Affine().names, values, units, strict=True)))

# %% Predictions. `predict` averages probabilities over samples and says how sure it is: the entropy is all of the
# uncertainty, the mutual information the part that comes from not knowing the transformation.

models = {
    "plain network": (plain, 1),
    "with TTA": (TTA(plain.body, Affine(), 0.05, fill=BACK), 16),
    "learned spread": (learned, 16),
}
found = {}
for name, (model, samples) in models.items():
    torch.manual_seed(1)
    found[name] = predict(model, test.x, samples=samples)
    scores = summary(found[name].probs, test.y)
    print(f"{name:15}" + "  ".join(f"{key} {value:.3f}" for key, value in scores.items()))

# %% What to do with them. Hand the least sure to a person; answer with sets that hold the right class as often as
# asked; or correct the temperature, the usual remedy, for comparison. What is fitted is fitted on the held-out digits.

for name, p in found.items():
    rest = selective_accuracy(p.probs, test.y, handed=0.1, uncertainty=p.entropy)
    print(f"{name:15}without the 10 % least sure: {rest:.1%}")
p, q = found["learned spread"], predict(learned, held.x, samples=16)
sets = conformal(q.probs, held.y, coverage=0.95)(p.probs)
covered = sets[torch.arange(len(test)), test.y].float().mean()
print(
    f"sets that shall hold the right class in 95 %: {covered:.1%}, {sets.sum(1).float().mean():.2f} classes on average"
)
flat = Temperature.fit(predict(plain, held.x).log_probs, held.y)
error = summary(flat(found["plain network"].log_probs), test.y)["ece"]
print(f"the plain network at temperature {flat.value:.2f}: ece {error:.3f}")

# %% Errors against how many digits are answered, the surest first.

figure = Figure(figsize=(6, 3.6), layout="constrained")
panel = figure.subplots()
for name, p in found.items():
    curve = risk_coverage(p.probs, test.y, p.entropy)
    panel.plot(100 * curve.coverage.numpy(), 100 * curve.risk.numpy(), label=name)
panel.set(xlabel="digits answered, %", ylabel="errors among them, %", xlim=(0, 100), ylim=(0, None))
panel.legend()

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "uncertainty.png"
figure.savefig(path, dpi=110)
print(f"figure: {path}")
