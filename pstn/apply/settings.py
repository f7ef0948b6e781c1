"""What can be set in ``pstn fit`` and its kin. Nothing heavy is imported here: ``pstn --help`` reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

Device = Literal["auto", "cpu", "cuda"]
Where = Annotated[Path, tyro.conf.Positional]


@dataclass(frozen=True)
class Fit:
    """Train a classifier on your own data: images in folders, npz, csv, tsv or ts.

    Says what it understood of the data, trains, and writes a folder with the model. After Ctrl-C, the same command goes
    on.
    """

    data: Annotated[Where, tyro.conf.arg(metavar="DATA")]
    """A folder with one folder of images a class, an npz file with x and y, or a csv, tsv or ts file of series."""
    out: Path | None = None
    """The folder to write; models/NAME by default, after the data's name."""
    time: str | None = None
    """How long to train at most: 90s, 5m, 1h; by default as long as the number of examples asks for."""
    seed: int = 0
    """Fixes the split, the initial weights and everything drawn in training."""
    device: Device = "auto"
    """Where to train; auto is cuda where there is one."""
    validation: float = 0.2
    """The share of the examples to measure on, and not to train on."""
    label: str | None = None
    """csv and tsv: the column of the labels, by name or by number (from 0; -1 is the last)."""
    classes: tuple[str, ...] = ()
    """Only these classes, in this order; all by default."""
    size: int | None = None
    """Bring images to this height and width, or series to this many points."""
    layout: str | None = None
    """npz: the order of x's axes, such as NHWC, NCHW, NHW or NCL, where it cannot be guessed."""
    again: bool = False
    """Start over where the folder holds a model already."""

    def __post_init__(self) -> None:
        if not 0 < self.validation < 1:
            raise ValueError(f"validation is {self.validation}; expected a share between 0 and 1, such as 0.2")
        if self.size is not None and self.size < 4:
            raise ValueError(f"size is {self.size}; expected at least 4")
        if self.time is not None:
            seconds(self.time)


@dataclass(frozen=True)
class Predict:
    """Classify files with a trained model: class, probability, and how sure it is.

    Entropy is the whole uncertainty, in nats; mutual information the part that comes from not knowing the pose.
    """

    model: Annotated[Where, tyro.conf.arg(metavar="MODEL")]
    """The folder that pstn fit wrote."""
    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILES")]
    """Images, folders of images, or npz, csv, tsv or ts files; labels in them are left alone."""
    csv: bool = False
    """Print comma-separated values, with the probability of every class."""
    jsonl: bool = False
    """Print a JSON object a line, with the probability of every class."""
    picture: Path | None = None
    """Draw where it looked to this PNG file."""
    samples: int = 16
    """How many transformations to average over."""
    device: Device = "auto"
    """Where to compute."""

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError("no FILES given; expected at least one")
        if self.csv and self.jsonl:
            raise ValueError("--csv and --jsonl are two forms of the same output; expected one of them")
        _check_samples(self.samples)


@dataclass(frozen=True)
class Report:
    """Measure a trained model on labelled data and write one HTML page about it."""

    model: Annotated[Where, tyro.conf.arg(metavar="MODEL")]
    """The folder that pstn fit wrote."""
    data: Annotated[Where, tyro.conf.arg(metavar="DATA")]
    """Labelled data of the same kind, best data that the model has never seen."""
    out: Path | None = None
    """The page to write; report.html in the model's folder by default."""
    samples: int = 16
    """How many transformations to average over."""
    device: Device = "auto"
    """Where to compute."""

    def __post_init__(self) -> None:
        _check_samples(self.samples)


@dataclass(frozen=True)
class Doctor:
    """Look for what goes wrong with spatial transformers, and say what to change.

    Exit status 0: nothing found; 1: something found.
    """

    run: Annotated[Where, tyro.conf.arg(metavar="RUN")]
    """The folder that pstn fit wrote, or one that pstn.train.fit wrote (its log alone is looked at then)."""
    data: Path | None = None
    """Labelled data to examine the model on; by default what was measured at the end of training is used."""
    device: Device = "auto"
    """Where to compute."""


@dataclass(frozen=True)
class Serve:
    """A page to play with: drop an image or draw one, and watch what the model makes of it."""

    model: Annotated[Where, tyro.conf.arg(metavar="MODEL")]
    """The folder that pstn fit wrote, of images."""
    host: str = "127.0.0.1"
    """The address to listen on; by default only this machine can reach it."""
    port: int = 8000
    """The port; 0 takes any that is free."""
    device: Device = "auto"
    """Where to compute."""


def _check_samples(samples: int) -> None:
    if samples < 1:
        raise ValueError(f"samples is {samples}; expected at least 1")


def seconds(text: str) -> float:
    """A time in words as seconds: a number with s, m or h behind it; a bare number is seconds.

    Example:
        >>> seconds("90s"), seconds("1.5m"), seconds("20")
        (90.0, 90.0, 20.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(s|m|h|min)?", text.strip())
    if found is None or float(found[1]) <= 0:
        raise ValueError(f"time is {text!r}; expected such as 90s, 5m or 1h")
    return float(found[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600}[found[2] or "s"]
