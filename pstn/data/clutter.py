"""Clutter: small pieces of other pictures, strewn over a canvas; and scenes, which are moved, cluttered, normalised."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pstn.data.base import Data
from pstn.data.distorted import drawn
from pstn.data.moved import CHUNK, Move, Moved
from pstn.data.normalise import Normalise
from pstn.grid import check_choice

How = Literal["add", "insert"]


class Fragments(nn.Module):
    r"""Square pieces, cut at random from other pictures, at random places on each canvas.

    A piece is cut at whole pixels. Unscaled, it is put at whole pixels, too; scaled (uniformly on a logarithmic scale),
    it is put anywhere where it fits, its pixels interpolated linearly. All draws are one call of ``torch.rand``.

    Arguments:
        count: Pieces on each canvas.
        side: The side of a piece before scaling, in pixels.
        item: The side of a picture. Of larger inputs, the top left corner of this size is the picture.
        canvas: The side of the canvas.
        scale: The least and the greatest scale of a piece.
        how: Whether pieces ``"add"`` to what is there, up to ``most``, or are an ``"insert"`` in its place.
        most: The greatest value of a pixel.
        source: Pictures to cut from, (N, C, item, item); by default the other pictures of the same batch.

    References:
        Jaderberg et al., Spatial Transformer Networks, supplement, 2015 (inserted); Finnveden et al., ICPR 2020 (added)

    Example:
        >>> fragments = Fragments(count=2, side=3, item=8, canvas=20)
        >>> x = torch.ones(4, 1, 8, 8)
        >>> int(fragments(torch.zeros(4, 1, 20, 20), x).sum((1, 2, 3)).max()) <= 2 * 9
        True
    """

    source: Tensor | None

    def __init__(
        self,
        count: int = 6,
        side: int = 6,
        *,
        item: int = 28,
        canvas: int = 60,
        scale: tuple[float, float] = (1.0, 1.0),
        how: How = "add",
        most: float = 1.0,
        source: Float[Tensor, "n c h w"] | None = None,
    ) -> None:
        super().__init__()
        check_choice("how", how, get_args(How))
        if count < 1 or not 1 <= side <= item or not 0 < scale[0] <= scale[1] or side * scale[1] > canvas:
            raise ValueError(
                f"{count} pieces of {side} pixels from pictures of {item}, scaled by {scale[0]} to {scale[1]}, on a "
                f"canvas of {canvas}; expected at least one piece, no larger than the pictures, that fits on the canvas"
            )
        self.count, self.side, self.item, self.canvas = count, side, item, canvas
        self.scale, self.how, self.most = scale, how, most
        self.register_buffer("source", source, persistent=False)

    def forward(
        self,
        canvas: Float[Tensor, "b c n n"],
        x: Float[Tensor, "b c h w"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b c n n"]:
        """The canvases with pieces on them.

        Arguments:
            canvas: What to strew pieces on.
            x: The pictures that are on the canvases, in the same order.
            generator: The source of randomness; torch's own by default.
        """
        count = len(x)
        which, cut, put, size = drawn("uniform", (count, self.count, 6), x.device, generator).split([1, 2, 2, 1], dim=2)
        pieces = self._cut(x, which[..., 0], cut)
        low, high = self.scale
        scale = low * (high / low) ** size
        room = self.canvas - self.side * scale
        corner = room * put if high > low else _floor(put, self.canvas - round(self.side * high) + 1)
        down, across = (self._spread(corner[..., axis], scale[..., 0]) for axis in (1, 0))
        with torch.autocast(x.device.type, enabled=False):  # pixels keep their bits
            if self.how == "add":
                strewn = (down[:, :, None] @ pieces.to(down) @ across[:, :, None].mT).sum(1)
                return (canvas + strewn).clamp(max=self.most)
            for n in range(self.count):
                piece, rows, columns = pieces[:, n].to(down), down[:, n, None], across[:, n, None]
                covered = rows.sum(-1, keepdim=True) * columns.sum(-1)[..., None, :]
                canvas = canvas * (1 - covered) + rows @ piece @ columns.mT
        return canvas

    def _cut(self, x: Tensor, which: Tensor, corner: Tensor) -> Tensor:
        """The pieces, (B, K, C, side, side)."""
        if self.source is None:  # anyone but oneself, in a batch of several
            others = max(len(x) - 1, 1)
            index = torch.arange(len(x), device=x.device)[:, None] + 1 + _floor(which, others).long()
            pictures = x[:, :, : self.item, : self.item][index % len(x)]
        else:
            pictures = self.source.to(x)[_floor(which, len(self.source)).long()]
        corner = _floor(corner, self.item - self.side + 1).long()
        steps = torch.arange(self.side, device=x.device)
        rows, columns = (corner[..., axis, None] + steps for axis in (1, 0))
        wide = rows[:, :, None, :, None].expand(-1, -1, pictures.shape[2], -1, pictures.shape[-1])
        some = pictures.gather(3, wide)
        return some.gather(4, columns[:, :, None, None, :].expand(-1, -1, pictures.shape[2], self.side, -1))

    def _spread(self, corner: Tensor, scale: Tensor) -> Tensor:
        """How much of each of a piece's pixels is in each of the canvas's, along an axis: (B, K, canvas, side)."""
        along = torch.arange(self.canvas, device=corner.device) + 0.5 - corner[..., None]
        inside = (along >= 0) & (along < self.side * scale[..., None])
        where = (along / scale[..., None] - 0.5).clamp(0, self.side - 1)
        near = 1 - (where[..., None] - torch.arange(self.side, device=corner.device)).abs()
        return near.clamp(min=0) * inside[..., None]

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"{self.count} of {self.side}×{self.side} on {self.canvas}, scale={self.scale}, {self.how}"


class Scene(Move):
    """A move with clutter strewn over its result, normalised at last: what a paper calls a data set.

    Arguments:
        moves: The move.
        clutter: The pieces, or None.
        normalise: What the canvases are normalised by, or None. The inputs are not normalised.

    Example:
        >>> from pstn.data.moved import Place
        >>> scene = Scene(Place(8, 20), Fragments(2, 3, item=8, canvas=20), Normalise(0.1, 0.5))
        >>> data = Data(torch.rand(6, 1, 8, 8), torch.arange(6) % 2, ("a", "b"))
        >>> scene.data(data, seed=1, repeats=2)
        Data('data, moved by seed 1', 12 examples of (1, 20, 20), 2 classes)
    """

    mean: Tensor
    std: Tensor

    def __init__(self, moves: Move, clutter: Fragments | None = None, normalise: Normalise | None = None) -> None:
        super().__init__()
        self.moves, self.clutter, self.normalise = moves, clutter, normalise
        self.family = moves.family
        # On the device, once: a step that is recorded cannot fetch numbers from elsewhere.
        how = Normalise() if normalise is None else normalise
        for name, value in (("mean", how.mean), ("std", how.std)):
            self.register_buffer(name, torch.tensor(value).reshape(-1, 1, 1), persistent=False)

    def draw(
        self, count: int, device: torch.device | str | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "b d"]:
        """Random poses of the move."""
        return self.moves.draw(count, device, generator)

    def move(self, x: Float[Tensor, "b c h w"], pose: Float[Tensor, "b d"]) -> Float[Tensor, "b c h2 w2"]:
        """The inputs moved and normalised, without clutter."""
        return self._normalised(self.moves.move(x, pose))

    def show(
        self, x: Float[Tensor, "b c h w"], pose: Float[Tensor, "b d"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "b c h2 w2"]:
        """The inputs moved, cluttered and normalised."""
        if self.clutter is None:
            return self.move(x, pose)
        return self._normalised(self.clutter(self.moves.move(x, pose), x, generator))

    def _normalised(self, x: Tensor) -> Tensor:
        return x if self.normalise is None else (x - self.mean.to(x)) / self.std.to(x)

    def forward(
        self, x: Float[Tensor, "b c h w"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "b c h2 w2"]:
        """The inputs, each moved and cluttered by its own draw."""
        return self.show(x, self.draw(len(x), x.device, generator), generator)

    def data(self, data: Data, seed: int = 0, repeats: int = 1) -> Moved:
        """A data set shown once, or several times by different draws, with its poses; the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        pose = self.draw(repeats * len(data), generator=generator).to(data.x)
        chunks = [part for _ in range(repeats) for part in data.x.split(CHUNK)]
        ends = torch.tensor([0, *map(len, chunks)]).cumsum(0).tolist()
        parts = zip(chunks, ends[:-1], ends[1:], strict=True)
        x = torch.cat([self.show(some, pose[start:end], generator) for some, start, end in parts])
        name = f"{data.name}, moved by seed {seed}"
        return Moved(x, data.y.repeat(repeats), data.classes, name, pose=pose)

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return "" if self.normalise is None else repr(self.normalise)


class Separately(Move):
    """Each channel moved by a draw of its own.

    Convention: the pose holds the poses of the channels one after the other, (B, channels · d); ``family`` is that of
    one channel.

    Arguments:
        moves: The move of one channel.
        channels: How many channels.

    Example:
        >>> from pstn.data.moved import Turn
        >>> Separately(Turn(), 2).draw(3).shape
        torch.Size([3, 2])
    """

    def __init__(self, moves: Move, channels: int) -> None:
        super().__init__()
        self.moves, self.channels, self.family = moves, channels, moves.family

    def draw(
        self, count: int, device: torch.device | str | None = None, generator: torch.Generator | None = None
    ) -> Float[Tensor, "b d"]:
        """Random poses of all channels."""
        return self.moves.draw(count * self.channels, device, generator).reshape(count, -1)

    def move(self, x: Float[Tensor, "b c h w"], pose: Float[Tensor, "b d"]) -> Float[Tensor, "b c h2 w2"]:
        """Each channel moved."""
        if x.shape[1] != self.channels:
            raise ValueError(f"x has {x.shape[1]} channels; expected {self.channels}")
        each = pose.unflatten(1, (self.channels, -1)).flatten(0, 1)
        return self.moves.move(x.flatten(0, 1)[:, None], each).squeeze(1).unflatten(0, (-1, self.channels))


def _floor(uniform: Tensor, count: int) -> Tensor:
    """Numbers from 0 to 1 as 0, 1, ... count - 1, all equally likely; a draw that was rounded up to 1 is the last."""
    return (uniform * count).floor().clamp(max=count - 1)
