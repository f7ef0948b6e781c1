"""``pstn doctor``: the ways in which training a spatial transformer goes wrong, found by measuring, with what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from pstn.apply import measure
from pstn.apply.files import ABOUT, LOG, load, read_log
from pstn.apply.fit import SHORT, device_of, unseen
from pstn.apply.read import read_again
from pstn.apply.settings import Doctor
from pstn.apply.wrong import BadInput, given
from pstn.recipe import share_of_steps

#: A transformer that moves points by less than this share of a pixel does nothing.
STILL = 0.25
#: Draws that differ by less than this share of a pixel are one.
NARROW = 0.1
#: Draws that lie further apart than this share of half the input show something else each time.
WIDE = 1.0
#: More than this share of the content outside the frame is too much: of things on a background, and of what fills it.
LOST, LOST_WITHOUT_BACKGROUND = 0.25, 0.5
#: Training accuracy above, and accuracy on other data below it by more, chance apart, is learning by heart.
KNOWN, GAP = 0.99, 0.15
#: An ECE below this does not matter, however certain it is.
HONEST = 0.03
CUT_SHORT = "training cut short"


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Arguments:
        name: A word for it.
        what: What was measured, a sentence.
        advice: What to change, a sentence or two.
    """

    name: str
    what: str
    advice: str


def doctor(settings: Doctor, console: Console) -> int:
    """Examine a run, print what was found, and return the exit status: 1 if there is something."""
    folder = settings.run
    with given(settings.data):
        if not (folder / ABOUT).exists() and not (folder / LOG).exists():
            what = "does not exist" if not folder.exists() else f"has neither {ABOUT} nor {LOG}"
            raise BadInput(f"{folder} {what}; expected a folder that pstn fit or pstn.train.fit wrote")
        header, history = read_log(folder)
        measured: Mapping[str, Any] = {}
        examples = 0
        config, shape = header.get("config", {}), tuple(header.get("train", {}).get("shape", ())[1:])
        if (folder / ABOUT).exists():
            trained = load(folder, device=device_of(settings.device))
            measured, config, shape = trained.measured, trained.config, trained.shape
            examples = trained.data.get("examples", 0)
            if settings.data is not None:
                data = unseen(trained, read_again(settings.data, trained.data, trained.shape, trained.classes))
                train = measured.get("train_accuracy")
                measured = {**measure.measure(trained, data), **({} if train is None else {"train_accuracy": train})}
        elif settings.data is not None:
            raise BadInput(f"{folder} has no {ABOUT}, so its network cannot be built: --data needs a model folder")
    found = examine(measured, history, config, shape, examples)
    for finding in found:
        console.print(f"[bold]{finding.name}[/bold]", highlight=False)
        console.print(f"  {finding.what}\n  {finding.advice}", markup=False, highlight=False, soft_wrap=True)
    if examples and any(finding.name != CUT_SHORT for finding in found):
        console.print(
            "Names are those of pstn.train.Train and of the network's parts. pstn fit sets them by itself; "
            "pstn.recipe.recipe(data) gives its network and settings, to be changed and trained in Python.",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    if not measured:
        console.print(f"There is no {ABOUT} here: only the log was looked at.", highlight=False, soft_wrap=True)
    if not found:
        console.print("Nothing to complain about.", highlight=False)
    return 1 if found else 0


def examine(
    measured: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]] = (),
    config: Mapping[str, Any] | None = None,
    shape: Sequence[int] = (),
    examples: int = 0,
) -> list[Finding]:
    """What is wrong with a model, by what :func:`pstn.apply.measure.measure` found and by its log.

    Arguments:
        measured: What was measured; whatever is missing is not judged.
        history: A record an epoch.
        config: The settings of the training.
        shape: One input's shape, (C, *space).
        examples: How many it was trained on.

    Example:
        >>> [finding.name for finding in examine({"centre": 0.0, "spread": 0.0, "looks": True}, shape=(1, 28, 28))]
        ['identity collapse', 'collapsed spread']
    """
    checks = (_collapse, _leaving, _spread, _strong, _calibration)
    settings = config or {}
    found = [check(measured, history, settings, max(shape[1:], default=32) / 2) for check in checks]
    if examples and len(shape) > 1:
        found.insert(0, _cut_short(measured, share_of_steps(settings.get("steps"), examples, len(shape) - 1)))
    unit = "points" if len(shape) == 2 else "pixels"
    return [replace(one, what=one.what.replace("pixels", unit)) for one in found if one is not None]


def _cut_short(measured: Mapping[str, Any], share: float) -> Finding | None:
    known = measured.get("train_accuracy")
    if known is None or known >= KNOWN or share > SHORT:
        return None
    return Finding(
        CUT_SHORT,
        f"It was trained for {share:.0%} of the steps that so many examples ask for, and knows {known:.1%} of them.",
        "Train longer: pstn fit --again with a longer --time, or none.",
    )


def _collapse(
    measured: Mapping[str, Any], history: Sequence[Mapping[str, Any]], config: Mapping[str, Any], half: float
) -> Finding | None:
    if not measured.get("looks") or "centre" not in measured:
        return None  # a localizer that does not look is at the identity by design
    moves, varies = measured["centre"] * half, measured.get("varies", 0.0) * half
    if max(moves, varies) < STILL:
        rate = config.get("localizer_lr")
        advice = (
            f"Raise localizer_lr (now {rate:g})" if rate is not None else "Give the localizer a larger learning rate"
        )
        return Finding(
            "identity collapse",
            f"The transformer moves points by {moves:.2g} pixels: it stays at the identity for every input.",
            f"{advice}, train longer, or weaken the classifier (dropout, fewer channels) so that aligning inputs pays.",
        )
    if varies < STILL:
        return Finding(
            "identity collapse",
            f"The transformer moves every input alike, by {moves:.2g} pixels: it does not look at its input.",
            "Raise localizer_lr, give the localizer more channels, or use Learned() if inputs need no alignment.",
        )
    return None


def _leaving(
    measured: Mapping[str, Any], history: Sequence[Mapping[str, Any]], config: Mapping[str, Any], half: float
) -> Finding | None:
    share = measured.get("lost", 0.0)
    if share <= (LOST if measured.get("background", True) else LOST_WITHOUT_BACKGROUND):
        return None
    return Finding(
        "inputs leave the frame",
        f"{share:.0%} of the inputs' content lies outside of what the warps look at.",
        "Check that fill is the background after normalisation, lower localizer_lr or kl_weight, start with a smaller "
        "spread, or use a family without shifts.",
    )


def _spread(
    measured: Mapping[str, Any], history: Sequence[Mapping[str, Any]], config: Mapping[str, Any], half: float
) -> Finding | None:
    if "spread" not in measured:
        return None
    pixels, weight = measured["spread"] * half, config.get("kl_weight")
    now = f" (now {weight:g})" if weight is not None else ""
    if pixels < NARROW:
        return Finding(
            "collapsed spread",
            f"Draws of the posterior differ by {pixels:.2g} pixels: it looks once, and cannot be unsure of a pose.",
            f"Raise kl_weight{now} or the prior's scale, or start with a larger spread; Point() is cheaper.",
        )
    if measured["spread"] > WIDE:
        return Finding(
            "exploding spread",
            f"Draws of the posterior differ by {pixels:.1f} pixels, {measured['spread']:.0%} of half the input.",
            f"Lower kl_weight{now} or the prior's scale; StudentT with alpha=1 has heavy tails, Gaussian has not.",
        )
    return None


def _strong(
    measured: Mapping[str, Any], history: Sequence[Mapping[str, Any]], config: Mapping[str, Any], half: float
) -> Finding | None:
    train, other = measured.get("train_accuracy"), measured.get("accuracy")
    advice = (
        "Use a smaller body, more dropout or weight decay, more warps (samples=4), or a family that warps more; more "
        "data helps most."
    )
    error = 0.0 if other is None else 2 * math.sqrt(other * (1 - other) / max(measured.get("examples", 1), 1))
    if train is not None and other is not None and train >= KNOWN and train - other - error > GAP:
        return Finding(
            "over-strong classifier",
            f"It knows {train:.1%} of its training data by heart, and {other:.1%} of other data.",
            advice,
        )
    seen = [record["validation_nll"] for record in history if "validation_nll" in record]
    if len(seen) >= 4 and seen[-1] > 1.25 * min(seen) and seen[-1] > min(seen) + 0.05:
        return Finding(
            "over-strong classifier",
            f"The validation NLL was {min(seen):.3f} at best and is {seen[-1]:.3f} at the end: it learned too long.",
            f"{advice} keep='best' keeps the best weights.",
        )
    return None


def _calibration(
    measured: Mapping[str, Any], history: Sequence[Mapping[str, Any]], config: Mapping[str, Any], half: float
) -> Finding | None:
    ece, chance = measured.get("ece"), measured.get("ece_by_chance")
    if ece is None or chance is None or ece <= max(chance, HONEST):
        return None
    gap = measured["confidence"] - measured["accuracy"]
    temperature = measured.get("temperature", 1.0)
    kind = "overconfident" if gap > 0 else "underconfident"
    helps = "more warps in training and stronger regularisation help" if gap > 0 else "longer training helps"
    return Finding(
        "miscalibration",
        f"The ECE is {ece:.3f}; chance alone would give up to {chance:.3f} on so many examples. It is {kind}: mean "
        f"confidence {measured['confidence']:.1%}, accuracy {measured['accuracy']:.1%}.",
        "pstn.uncertainty.Temperature.fit on held-out data flattens or sharpens the answers (here "
        f"T = {temperature:.2f}); {helps}, too.",
    )
