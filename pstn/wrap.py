"""A transformer around a network that exists already, trained or not, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.distributions import Distribution

from pstn.distributions import Method, draw
from pstn.families.affine import Affine
from pstn.families.base import Family
from pstn.grid import Padding
from pstn.nets.pooled import Mean
from pstn.nets.small import Blind, Localizer
from pstn.placement import C
from pstn.posterior import Learned, Point, Posterior
from pstn.stn import Output, Stage, Transformer, answered, count_features
from pstn.warp import warp

Trained = Literal["localizer", "all"]


def wrap(
    model: nn.Module,
    family: Family | None = None,
    posterior: Posterior | None = None,
    *,
    at: str | None = None,
    reads: str | None = None,
    localizer: nn.Module | None = None,
    example: Tensor | None = None,
    train: Trained | Sequence[str] = "localizer",
    fill: float = 0.0,
    padding: Padding = "border",
) -> Wrapped:
    r"""Put a transformer before a network or behind one of its layers: :math:`p(y|x) = E_q\,p(y|x \circ T_\theta)`.

    At the start the network predicts exactly as before, with or without samples; once it has been trained, samples are
    drawn from the posterior. The network is used in place, not copied.

    Arguments:
        model: A network that maps inputs to logits (B, K), or to an object with ``logits``.
        family: The family of transformations; affine maps of images by default.
        posterior: What is known of the transformation; :class:`pstn.posterior.Learned` by default, one spread for all.
        at: The name of the layer whose output is warped, as in ``model.named_modules()``; the input by default.
        reads: The name of the layer whose output the localizer reads, which is then shared with the network. By default
            the localizer reads what is warped.
        localizer: What makes features of that. By default nothing for a posterior that is the same for all inputs,
            the mean over space of a layer that is read, else a small convolutional network.
        example: Some inputs, to find out the size of a layer or of the default localizer.
        train: What is trained: the ``"localizer"`` and its head alone, ``"all"``, or the localizer and layers by name.
            The rest is frozen, in evaluation mode also in training.
        fill: The value outside, with ``padding="fill"``.
        padding: What lies outside: the ``"border"`` continued, ``"fill"`` or ``"reflect"``.

    Returns:
        A module that is called, trained and asked like an :class:`pstn.stn.STN`.

    Example:
        >>> from pstn import nets, predict
        >>> network, x = nets.classifier((1, 28, 28), 10).eval(), torch.rand(3, 1, 28, 28)
        >>> wrapped = wrap(network)
        >>> torch.allclose(predict(wrapped, x).probs, network(x).softmax(-1))
        True
    """
    family = Affine() if family is None else family
    posterior = Learned() if posterior is None else posterior
    for name in filter(None, (at, reads)):
        _find(model, name)
    if localizer is None:
        blind = isinstance(posterior, Learned) and posterior.centred
        localizer = Blind() if blind else _localizer(model, reads or at, example, shared=reads is not None)
    transformer = Transformer(None, localizer, posterior.head(count_features(localizer), family.dim))
    return Wrapped(model, transformer, family, posterior, at, reads, train, {"fill": fill, "padding": padding})


class Wrapped(nn.Module):
    """A network with a transformer around it; made by :func:`wrap`."""

    woken: Tensor

    def __init__(
        self,
        body: nn.Module,
        transformer: Transformer,
        family: Family,
        posterior: Posterior,
        at: str | None,
        reads: str | None,
        trained: Trained | Sequence[str],
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        self.body = body
        self.transformers = nn.ModuleList([transformer])
        self.family, self.posterior, self.at, self.reads, self.options = family, posterior, at, reads, options
        self.placement = C(0)  # one look at a time, wherever it is
        #: Whether the transformer has been trained: before, there is nothing to draw.
        self.register_buffer("woken", torch.tensor(False))
        if isinstance(trained, str) and trained not in ("localizer", "all"):
            raise ValueError(f"train is {trained!r}; expected 'localizer', 'all' or a sequence of layers' names")
        self.trained: tuple[str, ...] | None = (
            None if trained == "all" else () if trained == "localizer" else (*trained,)
        )
        if self.trained is None:
            body.requires_grad_(True)
        else:
            chosen = [_find(body, name) for name in self.trained]
            body.requires_grad_(False)
            for layer in chosen:
                layer.requires_grad_(True)
        self.train(body.training)

    def forward(
        self,
        x: Float[Tensor, "b c *space"],
        samples: int = 1,
        *,
        method: Method = "random",
        generator: torch.Generator | None = None,
    ) -> Output:
        """Classify S warps of each input; 0 for the posterior's centre."""
        if self.training:
            self.woken.fill_(True)
        if isinstance(self.posterior, Point) or (samples and not (self.training or self._is_woken())):
            samples = 0
        seen = x if self.reads is None else _output(self.body, self.reads, x)
        if self.at is None:
            stage = self._stage(seen, x.shape[0], samples, method, generator)
            warped = self._warp(x, stage.theta)
            logits = answered(self.body(warped.flatten(0, 1)))
            return Output(logits.unflatten(0, stage.theta.shape[:2]), (stage,), stage.theta, warped)
        return self._inside(x, seen, samples, method, generator)

    def _inside(
        self, x: Tensor, seen: Tensor, samples: int, method: Method, generator: torch.Generator | None
    ) -> Output:
        """The network on S copies of the input, the output of one layer warped: right wherever the layer stands."""
        assert self.at is not None
        count, batch = max(samples, 1), x.shape[0]
        found: list[tuple[Stage, Tensor]] = []

        def look(layer: nn.Module, inputs: Any, output: Any) -> Tensor:
            _check_map(output, self.at, self.family)
            copies = output.unflatten(0, (count, batch))
            read = copies[0] if self.reads is None else seen
            stage = self._stage(read, batch, samples, method, generator)
            warped = torch.stack(
                [self._warp(part, one[None])[0] for part, one in zip(copies, stage.theta, strict=True)]
            )
            found.append((stage, warped))
            return warped.flatten(0, 1)

        with _hooked(self.body, self.at, look):
            logits = answered(self.body(x.repeat(count, *[1] * (x.ndim - 1))))
        if len(found) != 1:
            raise RuntimeError(f"the layer {self.at!r} ran {len(found)} times; expected once: choose another layer")
        stage, warped = found[0]
        return Output(logits.unflatten(0, (count, batch)), (stage,), stage.theta, warped)

    def _stage(
        self, seen: Tensor, batch: int, samples: int, method: Method, generator: torch.Generator | None
    ) -> Stage:
        transformer: Transformer = self.transformers[0]  # type: ignore[assignment]
        q = transformer(seen, (batch,))
        theta = q.mode.unsqueeze(0) if samples == 0 else self._draw(q, samples, method, generator)
        return Stage(theta, q, transformer.head.prior(q))

    def _draw(self, q: Distribution, samples: int, method: Method, generator: torch.Generator | None) -> Tensor:
        return draw(q, samples, method, generator)

    def _is_woken(self) -> bool:
        if torch.compiler.is_exporting():  # a graph has no values to ask
            return self._was_woken
        return is_batchedtensor(self.woken) or bool(self.woken)  # a fleet's networks are asked when they have trained

    def _warp(self, x: Tensor, theta: Tensor) -> Tensor:
        return warp(x, self.family, theta, **self.options)

    def train(self, mode: bool = True) -> Wrapped:
        """Set training mode, except for what is frozen."""
        super().train(mode)
        self._was_woken = not self.woken.is_meta and bool(self.woken)
        if self.trained is not None:
            self.body.eval()
            for name in self.trained:
                _find(self.body, name).train(mode)
        return self


class _Reached(Exception):
    """The layer that was wanted has answered; the rest need not run."""


def _output(model: nn.Module, name: str, x: Tensor) -> Tensor:
    """What a layer answers."""
    answers: list[Any] = []

    def stop(layer: nn.Module, inputs: Any, output: Any) -> None:
        answers.append(output)
        if not torch.compiler.is_exporting():  # a graph leaves out by itself what nobody reads
            raise _Reached

    with _hooked(model, name, stop), suppress(_Reached):
        model(x)
    if not answers:
        raise RuntimeError(f"the layer {name!r} did not run; choose one that does for every input")
    if not isinstance(answers[0], Tensor):
        raise ValueError(f"the layer {name!r} returns a {type(answers[0]).__name__}; choose one that returns a tensor")
    return answers[0]


@contextmanager
def _hooked(model: nn.Module, name: str, hook: Any) -> Iterator[None]:
    handle = _find(model, name).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _find(model: nn.Module, name: str) -> nn.Module:
    layers = dict(model.named_modules())
    if not name or name not in layers:
        known = ", ".join(repr(n) for n, _ in model.named_children()) or "none"
        raise ValueError(f"there is no layer {name!r} in {type(model).__name__}; the outermost are {known}")
    return layers[name]


def _localizer(model: nn.Module, name: str | None, example: Tensor | None, shared: bool) -> nn.Module:
    """A localizer for what is read: an input, or the output of a layer."""
    if example is None:
        raise ValueError("give wrap(...) a localizer=, or some inputs as example= to size one by, such as x[:2]")
    seen = example
    if name is not None:
        training = model.training
        with torch.no_grad():
            seen = _output(model.eval(), name, example)
        model.train(training)
    if shared:  # a layer of a trained network knows what is to be seen: a mean of its channels will do
        width = seen.flatten(2).shape[1] if seen.ndim > 2 else seen.shape[1]
        return Localizer(Mean() if seen.ndim > 2 else nn.Identity(), out_features=width)
    convolution = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[seen.ndim]
    layers = [
        nn.Sequential(convolution(before, width, 3, 2, 1), nn.ReLU())
        for before, width in ((seen.shape[1], 16), (16, 32), (32, 32))
    ]
    return Localizer(*layers, Mean(), out_features=32)


def _check_map(output: Any, name: str | None, family: Family) -> None:
    if not isinstance(output, Tensor) or output.ndim != family.ndim + 2:
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"the layer {name!r} returns {found}; to be warped by {family.label} it must return (B, C, *space) in "
            f"{family.ndim}-D"
        )
