"""Many networks of one architecture as one: stacked weights, one forward and backward pass, one optimizer step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.fx import GraphModule
from torch.utils.flop_counter import FlopCounterMode

from pstn.train.config import Train
from pstn.train.fleet.channels import Channels
from pstn.train.fleet.convolve import Products
from pstn.train.fleet.copies import share_copies
from pstn.train.fleet.fewer import fewer_kernels
from pstn.train.fleet.noise import Feed, Record, Request, undrawn
from pstn.train.fleet.optimizer import Triple
from pstn.train.fleet.record import record
from pstn.train.fleet.sums import shorten_sums
from pstn.train.seed import seeded
from pstn.train.step import Loss, Step

#: Operations of a network's forward pass from which a CPU has enough to do with one: side by side, such networks are up
#: to four times as slow as one after the other, smaller ones up to three times as fast.
LARGE = 60_000_000

#: Examples and their labels.
Batch = tuple[Tensor, Tensor]


class Unit(nn.Module):
    """One network with all that a step does before the optimizer: augmentation, model, objective."""

    def __init__(self, model: nn.Module, augment: nn.Module | None, config: Train, loss: Loss | None) -> None:
        super().__init__()
        self.step = Step(model, config, loss)
        self.augment = augment

    def forward(self, x: Tensor, y: Tensor, kl_weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """In training the loss and its terms; in evaluation the scores, twice."""
        if not self.training:
            scores = torch.stack(self.step.scores(x, y))
            return scores, scores
        if self.augment is not None:
            x = self.augment(x)
        assert kl_weight is not None
        self.step.kl_weight = kl_weight  # type: ignore[assignment]
        loss = self.step.objective(x, y)
        terms, self.step.terms, self.step.kl_weight = self.step.terms, (), 0.0  # what is one network's is not kept
        return loss, torch.stack([term.float() for term in terms])


class Stack:
    """M units as one.

    The trainable weights of all are one matrix, a row a network, so that an optimizer step is a few operations on one
    tensor. Everything else that a network holds (frozen weights, batch statistics, constants) is stacked name by name.

    Arguments:
        units: The networks, of one :func:`signature`.
        device: Where to work.
        unread: The weights to leave alone, see :func:`unread`.
    """

    def __init__(self, units: Sequence[Unit], device: torch.device, unread: Set[str] = frozenset()) -> None:
        self.unit = copy.deepcopy(units[0]).to(device)
        self.device, self.count = device, len(units)
        self.faster = Products if device.type == "cuda" else Channels
        self.multiplies = False  # whether some convolutions have been matrix products
        self.apart = False  # whether networks take a step one after the other
        # An augmentation and a loss may have weights, too; as in a run of its own, the model's are trained.
        first = {name: p for name, p in units[0].named_parameters() if name.startswith("step.model.")}
        self.shapes = {name: p.shape for name, p in first.items() if p.requires_grad and name not in unread}
        if not self.shapes:
            raise ValueError("the models have no parameter that requires a gradient: there is nothing to train")
        self.sizes = [shape.numel() for shape in self.shapes.values()]
        rows = [dict(unit.named_parameters()) for unit in units]
        self.weights = torch.stack(
            [torch.cat([row[name].detach().flatten() for name in self.shapes]) for row in rows]
        ).to(device)
        still = [
            {**{n: p.detach() for n, p in row.items() if n not in self.shapes}, **dict(unit.named_buffers())}
            for unit, row in zip(units, rows, strict=True)
        ]
        # What all have in common (a frozen classifier, a family's tables) is kept once. Batch statistics and whatever
        # else a module may write to are in its saved state, and stacked even if they start alike.
        own = _remembered(self.unit)
        self.still, self.common = {}, {}
        for name, value in still[0].items():
            same = name not in own and all(torch.equal(s[name], value) for s in still[1:])
            if same:
                self.common[name] = value.to(device)
            else:
                self.still[name] = torch.stack([s[name] for s in still]).to(device)
        # A model that is no STN has no transformers, and one learning rate.
        inside = {id(p) for t in getattr(self.unit.step.model, "transformers", ()) for p in t.parameters()}
        named = dict(self.unit.named_parameters())
        flags = [torch.full((shape.numel(),), id(named[name]) in inside) for name, shape in self.shapes.items()]
        self.localizer = torch.cat(flags).to(device)
        with torch.no_grad():
            for name in self.shapes:
                named[name].fill_(torch.nan)  # which the stacked ones stand in for: nothing is to be made of it

    def named(self, weights: Tensor) -> dict[str, Tensor]:
        """The rows as weights by name, (M, *shape)."""
        parts = weights.split(self.sizes, dim=1)
        return {
            name: part.unflatten(1, shape) if shape else part.squeeze(1)
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }

    def run(
        self,
        weights: Tensor,
        still: dict[str, Tensor],
        x: Tensor,
        y: Tensor,
        noise: Sequence[Tensor],
        kl_weight: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """What the units return, (M, ...), each for its own batch (M, B, ...), labels (M, B) and noise (M, ...).

        And by name, what they have put in the place of what was still. What they write to is written to.
        """

        def one(named: dict, still: dict, x: Tensor, y: Tensor, kl_weight: Tensor | None, *noise: Tensor) -> Any:
            given = {**named, **still, **self.common}
            with Feed(noise), self.faster() as faster:
                out = functional_call(self.unit, given, (x, y, kl_weight))
            self.multiplies |= getattr(faster, "multiplied", False)
            return *out, {name: given[name].detach() for name, value in still.items() if given[name] is not value}

        if self.apart and len(weights) > 1:
            rows = []
            for m in range(len(weights)):
                own = {name: value[m : m + 1] for name, value in still.items()}
                drawn = [numbers[m : m + 1] for numbers in noise]
                weight = None if kl_weight is None else kl_weight[m : m + 1]
                rows.append(self.run(weights[m : m + 1], own, x[m : m + 1], y[m : m + 1], drawn, weight))
            first, second, put = zip(*rows, strict=True)
            return torch.cat(first), torch.cat(second), {n: torch.cat([each[n] for each in put]) for n in put[0]}

        if self.device.type == "cpu" and len(weights) == 1:  # the rules of vmap take some operations apart
            row = {name: _channels_last(value[0]) for name, value in self.named(weights).items()}
            own = {name: value[0] for name, value in still.items()}
            weight = None if kl_weight is None else kl_weight[0]
            with undrawn():
                loss, terms, put = one(row, own, x[0], y[0], weight, *(drawn[0] for drawn in noise))
            return loss[None], terms[None], {name: value[None] for name, value in put.items()}
        dims = (0, 0, 0, 0, None if kl_weight is None else 0, *[0] * len(noise))
        return vmap(one, in_dims=dims)(self.named(weights), still, x, y, kl_weight, *noise)

    def differentiate(
        self,
        x: Tensor,
        y: Tensor,
        noise: Sequence[Tensor],
        kl_weight: Tensor,
        autocast: bool = False,
        step: GraphModule | None = None,
    ) -> Triple:
        """The losses (M,), their terms (M, T), and the gradient of each row of weights by its own loss, (M, P).

        Arguments:
            x: Each network's batch.
            y: Their labels.
            noise: What they draw.
            kl_weight: How much their divergences count.
            autocast: Whether arithmetic is in 16 bits where that does no harm.
            step: The step as it is written down for such inputs, if it is.
        """
        # Its forward, not itself: the wrapper around a recorded module's call hides what goes wrong inside.
        go = self._gradient(autocast) if step is None else step.forward
        given = (self.weights, x, y, kl_weight, *self.still.values(), *noise)
        if not self.apart:
            return go(*given)
        each = [go(*(value[m : m + 1] for value in given)) for m in range(self.count)]
        losses, terms, gradients = (torch.cat(parts) for parts in zip(*each, strict=True))
        return losses, terms, gradients

    def write_down(
        self, x: Tensor, y: Tensor, noise: Sequence[Tensor], kl_weight: Tensor, autocast: bool, compiled: bool = False
    ) -> GraphModule:
        """A step for inputs of such shapes as a list of tensor operations: what Python costs in it is paid once.

        The inputs are those of :meth:`differentiate`; what is to be ``compiled`` is put in other words.
        """
        # recording takes a step, which is not to leave a trace in the batch statistics
        whole = (self.weights, x, y, kl_weight, *self.still.values(), *noise)
        inputs = [value[:1].clone() if self.apart else value.clone() for value in whole]
        step = share_copies(record(self._gradient(autocast), inputs))
        if self.device.type == "cuda":
            shorten_sums(step)
        return fewer_kernels(step) if compiled else step

    def _gradient(self, autocast: bool) -> Callable[..., Triple]:
        """A function of weights, batch, labels, weight of the divergence, what is still, and noise."""
        names = tuple(self.still)

        def go(weights: Tensor, x: Tensor, y: Tensor, kl_weight: Tensor, *rest: Tensor) -> Triple:
            still, noise = dict(zip(names, rest, strict=False)), rest[len(names) :]
            weights = weights.detach().requires_grad_()
            with torch.enable_grad(), torch.autocast(x.device.type, torch.bfloat16, autocast):
                loss, terms, put = self.run(weights, still, x, y, noise, kl_weight)
                (gradient,) = torch.autograd.grad(loss.sum(), weights)
            for name, value in put.items():  # not before the gradient, which may read what was there
                still[name].copy_(value)
            return loss.detach(), terms.detach(), gradient

        return go

    def try_out(self, autocast: bool, training: Batch, validation: Batch | None) -> None:
        """Raise unless a step and a validation can be taken, or let networks take them in turn; changes nothing.

        Side by side, there are layers that torch has no rule for, as recurrent ones, and others that look at a number
        to decide how to go on.
        """
        try:
            self._try(autocast, training, validation)
        except RuntimeError as error:
            if self.apart or self.count == 1:
                raise RuntimeError(f"a fleet cannot train these networks; fit(...) can, one by one: {error}") from error
            self.apart = True
            self.try_out(autocast, training, validation)
            warnings.warn(f"this fleet's networks take their steps one after the other: {error}", stacklevel=2)

    def _try(self, autocast: bool, training: Batch, validation: Batch | None) -> None:
        rows = 1 if self.apart else self.count
        source = torch.Generator(self.device).manual_seed(0)
        weights, still = self.weights[:rows], {name: value[:rows].clone() for name, value in self.still.items()}
        for learns, part in ((True, training), (False, validation)):
            if part is None:
                continue
            self.unit.train(learns)
            drawn = [request.draw(source) for request in self.requests(*part, still)]
            x, y, *noise = (value.expand(rows, *value.shape).clone() for value in (*part, *drawn))
            if not learns:
                with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, autocast):
                    self.run(weights, still, x, y, noise)
                continue
            weight = torch.zeros(rows, device=self.device)
            loss, _, gradient = self._gradient(autocast)(weights, x, y, weight, *still.values(), *noise)
            if loss.isfinite().all() and not gradient.isfinite().all(1).any():
                raise RuntimeError(
                    "the gradient of a finite loss is NaN; what a model computes again in the backward pass, as "
                    "torch.utils.checkpoint has it, is not of each network's own weights"
                )

    def requests(self, x: Tensor, y: Tensor, still: dict[str, Tensor] | None = None) -> list[Request]:
        """What one network draws for a batch, in order; changes nothing."""
        with Record() as record:
            self._once(x, y, self.still if still is None else still)
        return record.requests

    def large(self, x: Tensor, y: Tensor) -> bool:
        """Whether a batch is much work for one network alone; changes nothing."""
        with FlopCounterMode(display=False) as counter:
            self._once(x, y, self.still)
        return counter.get_total_flops() >= LARGE

    def _once(self, x: Tensor, y: Tensor, still: dict[str, Tensor]) -> None:
        """A batch through the first network."""
        still = {name: value[0].clone() for name, value in still.items()}
        named = {name: value[0] for name, value in self.named(self.weights).items()}
        with torch.no_grad(), seeded(0, self.device):
            functional_call(self.unit, (named, still, self.common), (x.clone(), y, torch.zeros((), device=self.device)))

    def write(self, row: int, unit: Unit, weights: Tensor, still: dict[str, Tensor]) -> None:
        """Copy one network's numbers into a unit."""
        state = {name: value[row] for name, value in self.named(weights).items()}
        state |= {name: value[row] for name, value in still.items()}
        with torch.no_grad():
            for name, value in (*unit.named_parameters(), *unit.named_buffers()):
                if name in state:
                    value.copy_(state[name])


def unread(unit: Unit, x: Tensor, y: Tensor) -> set[str]:
    """The weights that a batch's loss does not depend on: an optimizer that finds no gradient does not decay them."""
    unit = copy.deepcopy(unit).to(x.device).train()
    named = {name: p for name, p in unit.named_parameters() if p.requires_grad}
    with seeded(0, x.device):
        loss, _ = unit(x.clone(), y, torch.zeros((), device=x.device))
    gradients = torch.autograd.grad(loss, [*named.values()], allow_unused=True) if named else ()
    return {name for name, gradient in zip(named, gradients, strict=True) if gradient is None}


def _channels_last(weight: Tensor) -> Tensor:
    """The kernels of a convolution as CPUs are fast with, by which images between layers lie like that too."""
    return weight.contiguous(memory_format=torch.channels_last) if weight.ndim == 4 else weight


def _remembered(unit: nn.Module) -> set[str]:
    """The buffers that are part of the saved state."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in unit.named_modules()
        for name in module._buffers.keys() - module._non_persistent_buffers_set
    }
