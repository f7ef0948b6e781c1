"""Data sets: readers for common formats, the papers' data by name, and small sets that need no download."""

from pstn.data.arrays import Layout, from_arrays
from pstn.data.base import Data
from pstn.data.catalogue import Available, available
from pstn.data.celeba import celeba, celeba_attributes, celeba_images
from pstn.data.clutter import Fragments, Scene, Separately
from pstn.data.cub import Cut, cub, cub_files, ten_crops
from pstn.data.distorted import Elastic, Projected, Similar
from pstn.data.embedded import digits
from pstn.data.folder import read_folder, read_image
from pstn.data.gtsrb import Boxed, gtsrb, on_clutter
from pstn.data.idx import read_idx
from pstn.data.mnist import fashion_mnist, kmnist, mnist, mnist_subset
from pstn.data.mtsd import lone_signs, mtsd
from pstn.data.normalise import Normalise
from pstn.data.npz import read_npz
from pstn.data.pairs import Pairs, pair
from pstn.data.plankton import Drift, plankton
from pstn.data.scenes import SCENES, addition, colocalisation, mnist_rot_12k, scene
from pstn.data.svhn import Numbers, read_right, svhn, svhn_normalised, svhn_photographs
from pstn.data.synthetic import cbf, two_patterns
from pstn.data.ts import read_ts
from pstn.data.tsv import read_tsv
from pstn.data.ucr import ucr

__all__ = [
    "SCENES",
    "Available",
    "Boxed",
    "Cut",
    "Data",
    "Drift",
    "Elastic",
    "Fragments",
    "Layout",
    "Normalise",
    "Numbers",
    "Pairs",
    "Projected",
    "Scene",
    "Separately",
    "Similar",
    "addition",
    "available",
    "cbf",
    "celeba",
    "celeba_attributes",
    "celeba_images",
    "colocalisation",
    "cub",
    "cub_files",
    "digits",
    "fashion_mnist",
    "from_arrays",
    "gtsrb",
    "kmnist",
    "lone_signs",
    "mnist",
    "mnist_rot_12k",
    "mnist_subset",
    "mtsd",
    "on_clutter",
    "pair",
    "plankton",
    "read_folder",
    "read_idx",
    "read_image",
    "read_npz",
    "read_right",
    "read_ts",
    "read_tsv",
    "scene",
    "svhn",
    "svhn_normalised",
    "svhn_photographs",
    "ten_crops",
    "two_patterns",
    "ucr",
]
