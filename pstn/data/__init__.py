"""Data sets: readers for common formats, the papers' data by name, and small sets that need no download."""

from pstn.data.arrays import Layout, from_arrays
from pstn.data.base import Data
from pstn.data.catalogue import Available, available
from pstn.data.embedded import digits
from pstn.data.folder import read_folder, read_image
from pstn.data.idx import read_idx
from pstn.data.mnist import fashion_mnist, kmnist, mnist, mnist_subset
from pstn.data.normalise import Normalise
from pstn.data.npz import read_npz
from pstn.data.synthetic import cbf, two_patterns
from pstn.data.ts import read_ts
from pstn.data.tsv import read_tsv
from pstn.data.ucr import ucr

__all__ = [
    "Available",
    "Data",
    "Layout",
    "Normalise",
    "available",
    "cbf",
    "digits",
    "fashion_mnist",
    "from_arrays",
    "kmnist",
    "mnist",
    "mnist_subset",
    "read_folder",
    "read_idx",
    "read_image",
    "read_npz",
    "read_ts",
    "read_tsv",
    "two_patterns",
    "ucr",
]
