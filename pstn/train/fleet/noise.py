"""Random numbers taken out of a model, so that many copies of it can each be given their own.

Inside :class:`Record`, a model runs as ever, and what it draws is written down: what kind of numbers, of which shape,
in which order. :meth:`Request.draw` draws the same from a generator, and inside :class:`Feed` the model is handed these
numbers instead of drawing. What is not known here (a distribution with a sampler of its own) is left to torch, whose
``vmap`` refuses it by name, and so does :func:`undrawn` where a network runs without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Kind = Literal["uniform", "normal", "keep"]


@dataclass(frozen=True)
class Request:
    """What one call draws: uniform or normal numbers, or which features a dropout keeps."""

    kind: Kind
    shape: tuple[int, ...]
    dtype: torch.dtype
    drop: float = 0.0

    def draw(self, generator: torch.Generator) -> Tensor:
        """The numbers, from a generator, on its device."""
        return self.fill(torch.empty(self.shape, dtype=self.dtype, device=generator.device), generator)

    def fill(self, out: Tensor, generator: torch.Generator) -> Tensor:
        """Draw into a tensor; (count, *shape) are the numbers that many times over."""
        if self.kind == "uniform":
            return out.uniform_(generator=generator)
        if self.kind == "normal":
            return out.normal_(generator=generator)
        # What torch's own dropout multiplies with on the CPU, to the last bit.
        keep = 1 - self.drop
        return out.bernoulli_(keep, generator=generator).div_(keep or 1.0)


class Record(TorchFunctionMode):
    """Inside, calls that draw are written down in ``requests``."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the call, and note what it draws."""
        found = _request(function, args, kwargs or {})
        if found is not None:
            self.requests.append(found)
        with torch._C.DisableTorchFunction():  # a dropout is noted once, not again in the calls it is made of
            return function(*args, **(kwargs or {}))


class Feed(TorchFunctionMode):
    """Inside, calls that draw get the given numbers, one tensor after the other."""

    def __init__(self, noise: Sequence[Tensor]) -> None:
        super().__init__()
        self.noise = iter(noise)

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the call, or hand out the numbers in its place."""
        found = _request(function, args, kwargs or {}) if function in _READERS else None
        if found is None:
            return function(*args, **(kwargs or {}))
        numbers = next(self.noise, None)
        if numbers is None or tuple(numbers.shape) != found.shape:
            raise RuntimeError(
                f"the model draws other numbers than in its first step ({found.kind} of shape {found.shape}): a fleet "
                "needs a model whose draws do not depend on its input"
            )
        if found.kind == "keep":
            return args[0] * numbers
        return numbers


@contextmanager
def undrawn() -> Iterator[None]:
    """Inside, it is an error to draw numbers from torch's own generator of the CPU."""
    before = _drawn_so_far()
    yield
    if _drawn_so_far() != before:
        raise RuntimeError(
            "the model draws random numbers of a kind that a fleet cannot give to each network: draw them by "
            "torch.rand, torch.randn, rand_like, randn_like or dropout, and make others of these"
        )


def _drawn_so_far() -> bytes:
    return torch.default_generator.get_state().numpy().tobytes()


def _request(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request | None:
    """What a call draws, or None."""
    reader = _READERS.get(function)
    return None if reader is None or kwargs.get("generator") is not None else reader(args, kwargs)


def _sized(kind: Kind) -> Callable[[tuple[Any, ...], dict[str, Any]], Request]:
    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        size = kwargs.get("size", args)
        size = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        return Request(kind, tuple(size), kwargs.get("dtype") or torch.get_default_dtype())

    return read


def _like(kind: Kind) -> Callable[[tuple[Any, ...], dict[str, Any]], Request]:
    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
        return Request(kind, tuple(args[0].shape), kwargs.get("dtype") or args[0].dtype)

    return read


def _dropout(spatial: bool) -> Callable[[tuple[Any, ...], dict[str, Any]], Request | None]:
    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request | None:
        x, p, training = (*args, *(kwargs.get(name, default) for name, default in _DROPOUT[len(args) - 1 :]))[:3]
        if not training or p == 0:
            return None
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if spatial else tuple(x.shape)
        return Request("keep", shape, x.dtype, float(p))

    return read


_DROPOUT = (("p", 0.5), ("training", True))
_READERS: dict[Callable[..., Any], Callable[[tuple[Any, ...], dict[str, Any]], Request | None]] = {
    torch.rand: _sized("uniform"),
    torch.randn: _sized("normal"),
    torch.rand_like: _like("uniform"),
    torch.randn_like: _like("normal"),
    F.dropout: _dropout(spatial=False),
    F.dropout1d: _dropout(spatial=True),
    F.dropout2d: _dropout(spatial=True),
    F.dropout3d: _dropout(spatial=True),
}
