"""What the small tables are made of."""

from dataclasses import dataclass
from functools import cache

from torch import nn

from pstn import STN, Similarity, StudentT
from pstn.data import digits
from pstn.experiment import Split
from pstn.inference import Augment
from pstn.train import Train

TRAIN = Train(steps=6, batch_size=8, lr=1e-2, drop_last=True, accelerator="cpu", checkpoint_every=0.0)


@cache
def whole():
    return digits().balanced_subset(30, seed=1)


@dataclass(frozen=True)
class Few:
    """n digits to train on, 50 to choose by, 60 to test with; four folds."""

    n: int

    def __call__(self, fold):
        parts = whole().split((60, 50, *[self.n] * 4), seed=0)
        test, validation = parts[0].renamed("test"), parts[1].renamed("validation")
        return Split(parts[2 + fold].renamed(f"train {fold}"), validation, test)


def body():
    return nn.Sequential(nn.Conv2d(1, 3, 9, 4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(75, 10))


def localizer():
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(49, 4), nn.ReLU())


def cnn():
    return STN(body())


def pstn(spread=0.1):
    return STN(body(), localizer(), Similarity(), StudentT(spread=spread), features=4)


def frozen(pretrained):
    return STN(pretrained.body, localizer(), Similarity(), features=4, frozen=True)


def jitter(sigma):
    return Augment(Similarity(), sigma)
