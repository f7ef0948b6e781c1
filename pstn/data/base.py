"""What a data set is: arrays, labels and the names of the classes, whole and on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from pstn.data.normalise import Normalise
from pstn.grid import check_array


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Labelled series (N, C, L), images (N, C, H, W) or volumes (N, C, D, H, W), checked when made.

    A data set is held whole, as two tensors on one device: there is no loader and no worker. NaN or infinite values,
    labels out of range and lengths that disagree are errors here, so that nothing later needs to look for them.

    Arguments:
        x: The examples, (N, C, *space), floating point and finite.
        y: The labels, (N,), int64, from 0 to K - 1.
        classes: The K names of the classes. A class may be without examples.
        name: What to call the set in tables.

    Example:
        >>> data = Data(torch.rand(6, 1, 8, 8), torch.tensor([0, 0, 0, 1, 1, 1]), ("cat", "dog"), "pets")
        >>> data
        Data('pets', 6 examples of (1, 8, 8), 2 classes)
        >>> train, test = data.split((4, 2), seed=0)
        >>> train.counts, test.counts
        ((2, 2), (1, 1))
    """

    x: Float[Tensor, "n c *space"]
    y: Int64[Tensor, " n"]
    classes: tuple[str, ...]
    name: str = "data"

    def __post_init__(self) -> None:
        check_array(self.x)
        if len(self.x) == 0:
            raise ValueError(f"data set {self.name!r} is empty; expected at least one example")
        if self.y.dtype != torch.int64:
            raise TypeError(f"y is {self.y.dtype}; expected int64: convert it first, e.g. y.long()")
        if self.y.shape != (len(self.x),):
            raise ValueError(f"y has shape {tuple(self.y.shape)}; {len(self.x)} examples need ({len(self.x)},)")
        if self.y.device != self.x.device:
            raise ValueError(f"x is on {self.x.device} and y on {self.y.device}; expected one device")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError(f"classes are {self.classes}; expected a different name for each")
        low, high = (int(v) for v in torch.aminmax(self.y))
        if low < 0 or high >= self.num_classes:
            raise ValueError(
                f"y has labels from {low} to {high}; {self.num_classes} classes need labels from 0 to "
                f"{self.num_classes - 1}"
            )
        # The extremes are NaN if anything is: one pass and no copy, where isfinite would copy the whole set.
        if not torch.stack(torch.aminmax(self.x)).isfinite().all():
            bad = (~self.x.isfinite()).nonzero()
            raise ValueError(
                f"x has {len(bad)} values that are NaN or infinite, in {len(bad[:, 0].unique())} of {len(self.x)} "
                f"examples, the first at index {tuple(bad[0].tolist())}; fill them in or drop these examples"
            )

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Data({self.name!r}, {len(self)} examples of {tuple(self.x.shape[1:])}, {self.num_classes} classes)"

    @property
    def num_classes(self) -> int:
        """How many classes there are, with or without examples."""
        return len(self.classes)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many examples each class has."""
        return tuple(torch.bincount(self.y, minlength=self.num_classes).tolist())

    def to(self, device: torch.device | str) -> Data:
        """The same data on another device."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def renamed(self, name: str) -> Data:
        """The same data under another name."""
        return replace(self, name=name)

    def normalised(self, how: Normalise) -> Data:
        """The data with every channel shifted and scaled; ``how.fill`` is what the background has become.

        Example:
            >>> data = Data(torch.tensor([[[0.0, 4.0]], [[8.0, 0.0]]]), torch.tensor([0, 1]), ("a", "b"))
            >>> how = Normalise(mean=2.0, std=4.0)
            >>> data.normalised(how).x.flatten().tolist(), how.fill
            ([-0.5, 0.5, 1.5, -0.5], -0.5)
        """
        return replace(self, x=how(self.x))

    def subset(self, indices: Tensor | np.ndarray | Sequence[int], name: str | None = None) -> Data:
        """The examples at the given indices, in that order.

        Arguments:
            indices: Integers from -N to N - 1, or N booleans.
            name: What to call the subset; the set's own name by default.
        """
        chosen = torch.as_tensor(indices, device=self.x.device)
        if chosen.dtype == torch.bool:
            if chosen.shape != (len(self),):
                raise ValueError(f"mask has shape {tuple(chosen.shape)}; {len(self)} examples need ({len(self)},)")
            chosen = chosen.nonzero().squeeze(1)
        if chosen.numel() == 0:
            raise ValueError(f"no index given: a subset of {self.name!r} needs at least one example")
        if chosen.is_floating_point() or chosen.ndim != 1:
            raise TypeError(f"indices are {chosen.dtype} of shape {tuple(chosen.shape)}; expected a list of integers")
        low, high = (int(v) for v in torch.aminmax(chosen))
        if low < -len(self) or high >= len(self):
            raise IndexError(f"indices run from {low} to {high}; {self.name!r} has {len(self)} examples")
        chosen = chosen.long()
        return replace(self, x=self.x[chosen], y=self.y[chosen], name=name or self.name)

    def split(self, parts: Sequence[float] | Sequence[int], seed: int = 0) -> tuple[Data, ...]:
        """Disjoint random parts that each hold the classes in the same proportions, as nearly as whole examples allow.

        Arguments:
            parts: Fractions of the whole (floats that sum to 1 or less) or counts (integers that sum to N or less).
            seed: Which random split; the same on every device.

        Returns:
            One data set a part.

        Example:
            >>> data = Data(torch.rand(100, 1, 4), torch.arange(100) % 5, tuple("abcde"))
            >>> [len(part) for part in data.split((0.75, 0.25), seed=1)]
            [75, 25]
        """
        if all(isinstance(part, (int, np.integer)) for part in parts):
            ends = np.cumsum(parts).tolist()
        elif sum(parts) <= 1 + 1e-9:
            ends = np.rint(np.cumsum(parts) * len(self)).astype(int).tolist()
        else:
            raise ValueError(f"parts are {tuple(parts)}; expected fractions that sum to 1 or less, or whole counts")
        starts = [0, *ends[:-1]]
        if not ends or ends[-1] > len(self) or any(end <= start for start, end in zip(starts, ends, strict=True)):
            raise ValueError(
                f"cannot split {len(self)} examples into parts {tuple(parts)}: each part needs at least one example, "
                "and together no more than there are"
            )
        generator = torch.Generator().manual_seed(seed)
        order, rank = shuffled_by_class(self.y, generator)
        label = self.y.cpu()[order]
        # Systematic sampling: a class of n sits at (rank + u)/n on [0, 1], so an interval holds its share within one.
        offset = torch.rand(self.num_classes, generator=generator, dtype=torch.float64)
        order = order[((rank + offset[label]) / torch.tensor(self.counts)[label]).argsort(stable=True)]
        return tuple(self.subset(order[start:end]) for start, end in zip(starts, ends, strict=True))

    def balanced_subset(self, per_class: int, seed: int = 0) -> Data:
        """A random subset with exactly ``per_class`` examples of every class.

        Arguments:
            per_class: How many of each class.
            seed: Which random subset; the same on every device.

        Returns:
            ``per_class`` times K examples, the classes taking turns.
        """
        fewest = min(self.counts)
        if not 0 < per_class <= fewest:
            raise ValueError(
                f"cannot take {per_class} examples of every class: {self.name!r} allows 1 to {fewest}, as many as it "
                f"has of {self.classes[self.counts.index(fewest)]!r}"
            )
        order, rank = shuffled_by_class(self.y, torch.Generator().manual_seed(seed))
        return self.subset(order[rank.argsort(stable=True)][: per_class * self.num_classes])

    def check_trainable(self) -> None:
        """Raise unless at least two classes have examples: from one class there is nothing to learn."""
        present = [name for name, count in zip(self.classes, self.counts, strict=True) if count]
        if len(present) < 2:
            raise ValueError(
                f"data set {self.name!r} has one class only ({present[0]!r}); a classifier needs examples of at least "
                "two"
            )


def shuffled_by_class(
    y: Int64[Tensor, " n"], generator: torch.Generator
) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"]]:
    """Indices sorted by class and shuffled within each, and the place of each in its class: 0, 1, 2, ...

    Example:
        >>> y = torch.tensor([1, 0, 1])
        >>> order, rank = shuffled_by_class(y, torch.Generator().manual_seed(0))
        >>> y[order].tolist(), rank.tolist()
        ([0, 1, 1], [0, 0, 1])
    """
    y = y.cpu()
    order = torch.randperm(len(y), generator=generator)
    order = order[y[order].argsort(stable=True)]
    counts = torch.bincount(y)
    first = counts.cumsum(0) - counts
    return order, torch.arange(len(y)) - first[y[order]]
