"""MNIST, Fashion-MNIST and KMNIST as published, and the small subsets of MNIST that the P-STN papers train on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from pstn.data.base import Data, shuffled_by_class
from pstn.data.download import fetch
from pstn.data.files import StrPath, cache_dir, md5_of, roots
from pstn.data.idx import read_idx
from pstn.data.npz import read_arrays
from pstn.grid import check_choice

Split = Literal["train", "test"]

_PREFIX = {"train": "train", "test": "t10k"}
_FOLDS = 5
_VALIDATION = 10_000


@dataclass(frozen=True)
class Published:
    """A data set of idx files with known checksums.

    Arguments:
        name: What to call it.
        folder: Where its files lie below a root of data.
        classes: The names of its classes.
        md5: The files and what their md5 must be.
        mirrors: Addresses of folders that hold the files.
    """

    name: str
    folder: str
    classes: tuple[str, ...]
    md5: Mapping[str, str]
    mirrors: tuple[str, ...] = ()

    def files(self, split: Split) -> tuple[str, str]:
        """The names of the files of images and of labels."""
        check_choice("split", split, get_args(Split))
        return f"{_PREFIX[split]}-images-idx3-ubyte.gz", f"{_PREFIX[split]}-labels-idx1-ubyte.gz"

    def find(self, split: Split, root: StrPath | None = None) -> tuple[Path, Path] | None:
        """Where the images and labels lie, if both do in one place."""
        for place in roots(root):
            images, labels = (place / self.folder / file for file in self.files(split))
            if images.is_file() and labels.is_file():
                return images, labels
        return None

    def load(self, split: Split, root: StrPath | None = None) -> Data:
        """The images (N, 1, H, W) from 0 to 1 with their labels, downloaded to the cache if they lie nowhere."""
        found = self.find(split, root) or self._download(split)
        for path in found:
            md5 = md5_of(path)
            if md5 != self.md5[path.name]:
                raise ValueError(
                    f"{path} has md5 {md5}, the published file {self.md5[path.name]}: it is damaged or another file; "
                    "remove it and it is downloaded again"
                )
        images, labels = (read_idx(path) for path in found)
        return Data(images[:, None].float() / 255, labels.long(), self.classes, f"{self.name} {split}")

    def _download(self, split: Split) -> tuple[Path, Path]:
        folder = cache_dir() / self.folder
        images, labels = (
            fetch([mirror + file for mirror in self.mirrors], folder / file, self.md5[file])
            for file in self.files(split)
        )
        return images, labels


MNIST = Published(
    "MNIST",
    "MNIST/raw",
    tuple("0123456789"),
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
)
FASHION_MNIST = Published(
    "FashionMNIST",
    "FashionMNIST/raw",
    ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
)
KMNIST = Published(
    "KMNIST",
    "KMNIST/raw",
    ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    {
        "train-images-idx3-ubyte.gz": "bdb82020997e1d708af4cf47b453dcf7",
        "train-labels-idx1-ubyte.gz": "e144d726b3acfaa3e44228e80efcd344",
        "t10k-images-idx3-ubyte.gz": "5c965bf0a639b31b8f53240b1b52f4d7",
        "t10k-labels-idx1-ubyte.gz": "7320c461ea6c1c855c0b718fb2a4b134",
    },
    ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
)
#: The first 7,011 training images only.
KMNIST_7K = Published(
    "KMNIST-7k",
    "KMNIST/raw_train_subset_7011",
    KMNIST.classes,
    {
        "train-images-idx3-ubyte.gz": "d655e31fcf6c0c2ce2ffbb9ad5974a04",
        "train-labels-idx1-ubyte.gz": "f416e798347e5f54d99c444a93b21b19",
    },
)


def mnist(split: Split = "train", root: StrPath | None = None) -> Data:
    """MNIST: 60,000 training and 10,000 test images (N, 1, 28, 28) of handwritten digits, from 0 to 1.

    The files are looked for in ``root`` or ``$PSTN_DATA`` (as ``MNIST/raw/*.gz``) and in the cache, and else downloaded
    to the cache; wherever they are from, their checksums must be right.

    Arguments:
        split: ``"train"`` or ``"test"``.
        root: The folder of all data sets.

    References:
        Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, Gradient-based learning applied to document recognition, 1998.
    """
    return MNIST.load(split, root)


def fashion_mnist(split: Split = "train", root: StrPath | None = None) -> Data:
    """Fashion-MNIST: 60,000 training and 10,000 test images (N, 1, 28, 28) of clothes; as :func:`mnist` otherwise.

    References:
        H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST, 2017.
    """
    return FASHION_MNIST.load(split, root)


def kmnist(split: Split = "train", root: StrPath | None = None) -> Data:
    """KMNIST: 60,000 training and 10,000 test images (N, 1, 28, 28) of cursive hiragana; as :func:`mnist` otherwise.

    Where the training images are not at hand but their first 7,011 are (``KMNIST/raw_train_subset_7011``), it is these,
    under the name KMNIST-7k.

    References:
        T. Clanuwat et al., Deep learning for classical Japanese literature, 2018.
    """
    check_choice("split", split, get_args(Split))
    if split == "train" and not KMNIST.find("train", root) and KMNIST_7K.find("train", root):
        return KMNIST_7K.load("train", root)
    return KMNIST.load(split, root)


def mnist_subset(
    n: int,
    fold: int = 0,
    split: Literal["train", "validation"] = "train",
    root: StrPath | None = None,
    seed: int | None = None,
    whole: Data | None = None,
) -> Data:
    """One of several disjoint class-balanced sets of n training digits of MNIST, or digits to choose settings by.

    The first five folds are the P-STN papers' where their file (``MNIST/subset_folds.npz``) is at hand and has n, and
    drawn by a seed otherwise; the name of the result says which. The validation digits are up to 10,000, drawn from
    what five folds leave; that is balanced only as far as MNIST is. Further folds are drawn from what is left then, as
    many as there are: ten of 3,000 digits, none of 10,000.

    Arguments:
        n: How many digits; the papers' are 10, 30, 100, 1000, 3000 and 10000.
        fold: Which fold, from 0; of no effect on the validation digits.
        split: ``"train"`` or ``"validation"``.
        root: The folder of all data sets, as for :func:`mnist`.
        seed: Draw the folds by this seed even if the papers' are at hand. Seed 0 is the default where they are not.
        whole: MNIST's training digits, where they are read already.

    References:
        P. Schwöbel, F. Warburg, M. Jørgensen, K. H. Madsen and S. Hauberg, Probabilistic spatial transformer networks,
        UAI 2022.
    """
    check_choice("split", split, ("train", "validation"))
    if fold < 0:
        raise ValueError(f"fold is {fold}; expected 0 or more")
    whole = mnist("train", root) if whole is None else whole

    def digits(fold: int, split: str) -> tuple[torch.Tensor, str]:
        papers = None if seed is not None else _papers_fold(n, fold, split, root)
        if papers is not None:
            return papers, "papers' folds"
        return _seeded_fold(whole, n, fold, split, seed or 0), f"folds by seed {seed or 0}"

    if split == "train" and fold >= _FOLDS:
        taken = [digits(each, "train") for each in range(_FOLDS)] + [digits(0, "validation")]
        indices = _further_fold(whole, n, fold, torch.cat([each for each, _ in taken]), seed or 0)
        how = f"beyond the {taken[0][1]}"
    else:
        indices, how = digits(fold, split)
    which = f"fold {fold}" if split == "train" else "validation"
    return whole.subset(indices, f"{MNIST.name}-{n} {which} ({how})")


def _papers_fold(n: int, fold: int, split: str, root: StrPath | None) -> torch.Tensor | None:
    key = f"train_{n}_fold_{fold}" if split == "train" else f"validation_{n}"
    for place in roots(root):
        path = place / "MNIST" / "subset_folds.npz"
        if path.is_file():
            folds = read_arrays(path)
            return torch.from_numpy(folds[key]).long() if key in folds else None
    return None


def _seeded_fold(whole: Data, n: int, fold: int, split: str, seed: int) -> torch.Tensor:
    most = min(whole.counts) // _FOLDS * whole.num_classes
    if n % whole.num_classes or not 0 < n <= most:
        raise ValueError(f"n is {n}; {_FOLDS} balanced folds need a multiple of {whole.num_classes}, at most {most}")
    generator = torch.Generator().manual_seed(seed)
    order, rank = shuffled_by_class(whole.y, generator)
    share = n // whole.num_classes
    if split == "train":
        return order[rank // share == fold]
    rest = order[rank >= _FOLDS * share]
    return rest[torch.randperm(len(rest), generator=generator)[:_VALIDATION]]


def _further_fold(whole: Data, n: int, fold: int, taken: torch.Tensor, seed: int) -> torch.Tensor:
    left = torch.ones(len(whole), dtype=torch.bool)
    left[taken] = False
    rest = left.nonzero().flatten()
    order, rank = shuffled_by_class(whole.y[rest], torch.Generator().manual_seed(seed))
    share = n // whole.num_classes
    most = int(whole.y[rest].bincount(minlength=whole.num_classes).min()) // share
    if fold >= _FOLDS + most:
        raise ValueError(f"fold is {fold}; there are {_FOLDS + most} folds of {n} digits, from 0")
    return rest[order[rank // share == fold - _FOLDS]]
