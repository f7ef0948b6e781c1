"""The card of a model: what it is, what it was trained on, how good and how honest it is; in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pstn.report.units import rounded

#: What stands in a card for where its model is.
NAME = "FOLDER OR NAME"


def card(about: Mapping[str, Any]) -> str:
    """The model card, Markdown with the header that model hubs read.

    Arguments:
        about: What ``model.json`` holds.

    Example:
        >>> about = {"classes": ["a", "b"], "shape": [1, 8, 8], "data": {"name": "pets", "kind": "images"},
        ...          "measured": {}, "config": {}, "versions": {}}
        >>> card(about).splitlines()[9]
        '# pets'
    """
    data, measured = about["data"], about.get("measured") or {}
    images = data.get("kind") == "images"
    name = data.get("name", "a classifier")
    shape = "×".join(str(n) for n in about["shape"])
    lines = [
        *("---", "library_name: pstn", "tags:"),
        *("- spatial-transformer", "- uncertainty", f"- {'image' if images else 'time-series'}-classification"),
        f"pipeline_tag: {'image-classification' if images else 'other'}",
        *("---", "", f"# {name}", ""),
        f"A classifier of {data.get('kind', 'inputs')} with learned, probabilistic warps (pstn).",
        f"Inputs are {shape} (channels and size); classes: {', '.join(about['classes'])}.",
        "",
    ]
    if data.get("examples"):
        held = f"; {measured['examples']:,} others were kept for validation" if measured.get("examples") else ""
        lines += [f"Trained on {data['examples']:,} examples{held}.", ""]
    if "accuracy" in measured:
        lines += ["## Measured on validation data", "", "| | |", "|---|---|"]
        for key, words in (("accuracy", "accuracy"), ("nll", "NLL, nats"), ("brier", "Brier score"), ("ece", "ECE")):
            lines.append(f"| {words} | {measured[key]:.3f} |")
        if "selective" in measured:
            lines.append(f"| accuracy without the 10 % least sure | {measured['selective']:.3f} |")
        lines += ["", _calibration(measured), ""]
    if measured.get("strength"):
        lines += ["## Warps it learned to expect", "", "| parameter | typical strength |", "|---|---|"]
        lines += [f"| {row['name']} | ± {rounded(row['value'], 3)} {row['unit']} |" for row in measured["strength"]]
        lines += ["", "One standard deviation, as in training.", ""]
    lines += [
        *("## Use", "", "```python", "from pstn.apply import from_pretrained", ""),
        f'model = from_pretrained("{NAME}")',
        *("p = model.predict(x)  # p.probs, p.entropy, p.mutual_information", "```", ""),
    ]
    versions = about.get("versions", {}).get("versions", {})
    if versions:
        lines += ["Trained with " + ", ".join(f"{k} {v}" for k, v in versions.items()) + ".", ""]
    lines += ["What it says of inputs unlike its training data means little, however sure it is.", ""]
    return "\n".join(lines)


def _calibration(measured: Mapping[str, Any]) -> str:
    gap = measured["confidence"] - measured["accuracy"]
    if abs(gap) < 0.01:
        how = "as sure as it is right"
    else:
        how = f"{abs(gap):.1%} {'surer than it is right' if gap > 0 else 'more often right than it is sure'}"
    return f"On average it is {how} (mean confidence {measured['confidence']:.3f})."
