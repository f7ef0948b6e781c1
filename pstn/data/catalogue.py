"""What data there is to work with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pstn.data.embedded import find_digits
from pstn.data.files import StrPath
from pstn.data.mnist import FASHION_MNIST, KMNIST, KMNIST_7K, MNIST, Split
from pstn.data.ucr import find_ucr, ucr_names


@dataclass(frozen=True)
class Available:
    """A data set that can be loaded without a download.

    Arguments:
        name: What it is called.
        splits: Which of its splits are there; none if it is not split.
        folder: Where it lies; nowhere if it is generated.
    """

    name: str
    splits: tuple[str, ...] = ()
    folder: Path | None = None


def available(root: StrPath | None = None) -> tuple[Available, ...]:
    """The data sets at hand: found in ``root`` or ``$PSTN_DATA`` and the cache, embedded, or generated.

    Files are looked for, not opened.

    Example:
        >>> [found.name for found in available("no such folder") if found.folder is None]
        ['CBF (generated)', 'TwoPatterns (generated)']
    """
    found = []
    for known in (MNIST, FASHION_MNIST, KMNIST, KMNIST_7K):
        files = {split: known.find(split, root) for split in get_args(Split)}
        found.append(_entry(known.name, {split: paths and paths[0] for split, paths in files.items()}))
    for name in ucr_names(root):
        found.append(_entry(f"UCR/{name}", {split: find_ucr(name, split, root) for split in get_args(Split)}))
    digits = find_digits()
    if digits is not None:
        found.append(Available("digits", folder=digits.parent))
    found += [Available("CBF (generated)"), Available("TwoPatterns (generated)")]
    return tuple(entry for entry in found if entry is not None)


def _entry(name: str, files: dict[str, Path | None]) -> Available | None:
    present = {split: path for split, path in files.items() if path is not None}
    return Available(name, tuple(present), next(iter(present.values())).parent) if present else None
