"""What one batch costs in training, and what it scores in validation: the module that Fabric wraps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pstn.data import Data
from pstn.modes import evaluating, resting
from pstn.objectives import KLPer, elbo, log_likelihood, log_mean_exp, nll
from pstn.posterior import LearnedHead
from pstn.stn import Output
from pstn.train.config import Train
from pstn.train.seed import seeded

Loss = Callable[[Any, Tensor], Tensor]

#: What :class:`Step` measures, in order: while training, and in evaluation.
TERMS = ("loss", "nll", "kl")
SCORES = ("nll", "accuracy")


class Step(nn.Module):
    """A model with its objective: the loss of a batch in training, the :data:`SCORES` in evaluation.

    Wrapping the loss with the model gives Fabric (and DDP behind it) a module that returns plain numbers, whatever the
    model's own output is made of.

    Arguments:
        model: Called as ``model(x, samples=S)``, returns a :class:`pstn.stn.Output`.
        config: The number of samples and the settings of the bound.
        loss: ``loss(output, y)`` to minimise instead of the bound.

    Attributes:
        kl_weight: The KL divergence's weight at the next step.
        terms: The last batch's :data:`TERMS`, without gradient; with a loss of its own, the loss alone.
        mean: How the examples' numbers become one of the batch, where it is not the loss that is their mean.
        resting: The parts of the model that are in evaluation mode also in training.
    """

    def __init__(self, model: nn.Module, config: Train, loss: Loss | None = None) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.loss = loss
        self.kl_weight = config.kl_weight
        self.terms: tuple[Tensor, ...] = ()
        self.mean: Callable[[Tensor], Tensor] = torch.mean
        self.resting = resting(model)

    def train(self, mode: bool = True) -> Step:
        """Set training mode, except for what rests."""
        super().train(mode)
        for name in self.resting:
            self.model.get_submodule(name).training = False
        return self

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss, or the stacked scores: means over the batch."""
        return self.objective(x, y) if self.training else torch.stack(self.scores(x, y))

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss to minimise."""
        config = self.config
        out = self.model(x, samples=config.samples)
        if self.loss is not None:
            loss = self.loss(out, y)
            self.terms = (loss.detach(),)
            return loss
        per: KLPer = "dimension"
        weight: Tensor | float = self.kl_weight  # with one over the number of inputs in it, where that belongs
        if config.kl_per == "dataset":
            weight = weight * known(out, y, self.mean)
        else:
            per = config.kl_per
        loss = elbo(out, y, kl_weight=weight, kl_per=per, bound=config.bound)  # type: ignore[arg-type]
        with torch.no_grad():
            kl, total = out.kl.mean(), loss.detach()
            if config.bound == "iw":
                self.terms = (total, nll(out, y), kl)
            else:  # the bound is a sum, so what is not the one term is the other: cheaper than a second softmax
                size = sum(stage.posterior.event_shape[0] for stage in out.stages) if per == "dimension" else 1
                self.terms = (total, total - weight / max(size, 1) * kl, kl)
        return loss

    def scores(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """Negative log of the mean probability over the samples, and how often its largest is right."""
        out = self.model(x, samples=self.config.samples_validation)
        if self.loss is not None:
            return (self.loss(out, y),)
        right = (log_mean_exp(out.logits.float().log_softmax(-1)).argmax(-1) == y).float()
        return nll(out, y), right.mean()


@torch.no_grad()
def known(out: Output, y: Tensor, mean: Callable[[Tensor], Tensor] = torch.mean) -> Tensor:
    r"""How much of the labels the network knows: :math:`(1 - NLL / \log K)^2`, from 1 for all to 0 for guessing.

    A spread that is learned for the data set grows by its divergence. If that went on where the network is lost, the
    network would stay lost: then the spread has nothing to gain by being small.

    Example:
        >>> from pstn.stn import Output
        >>> y = torch.tensor([0, 1])
        >>> known(Output(torch.zeros(1, 2, 10)), y), known(Output(torch.eye(10)[None, :2] * 100), y)
        (tensor(0.), tensor(1.))
    """
    missing = -mean(log_likelihood(out.logits, y)) / math.log(out.logits.shape[-1])
    return (1 - missing).clamp(min=0).square()


def check(
    model: nn.Module,
    train: Data,
    validation: Data | None,
    config: Train,
    *,
    classifies: bool,
    augment: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Raise unless the model, the data and the settings fit together; draws nothing and changes nothing.

    An augmentation that is a module may change the shape of the examples: what it makes of one is what the model has to
    fit. Any other function is not asked, for what else it does is not known; nor is the model then.
    """
    if config.drop_last and len(train) < config.batch_size:
        raise ValueError(
            f"batch_size is {config.batch_size} and the {len(train)} examples of {train.name!r} do not fill one batch: "
            "with drop_last=True nothing is left; use a smaller batch_size or drop_last=False"
        )
    if config.keep == "best" and validation is None:
        raise ValueError("keep='best' needs validation data to tell which weights are best")
    shown = augment is None or isinstance(augment, nn.Module)  # what the model is given
    with torch.no_grad(), seeded(0, train.x.device):
        example = train.x[:1].clone()  # which a model may write to
        example = augment(example) if isinstance(augment, nn.Module) else example
    if shown and validation is not None and validation.x.shape[1:] != example.shape[1:]:
        raise ValueError(
            f"validation examples have shape {tuple(validation.x.shape[1:])}, training ones {tuple(example.shape[1:])}"
        )
    if not classifies:
        return
    spreads = [m.growth for m in model.modules() if isinstance(m, LearnedHead)]
    if config.kl_per != "dataset" and any(spread.requires_grad for spread in spreads):
        warnings.warn(
            f"a Learned spread is a property of the data set, and kl_per is {config.kl_per!r}: train it with "
            "Train(kl_per='dataset', kl_weight=18, samples=4)",
            stacklevel=3,
        )
    train.check_trainable()
    if not shown:
        return
    if config.precision == "64-true":  # training will make model and data so
        example = example.to(next((p.dtype for p in model.parameters()), example.dtype))
    with torch.no_grad(), seeded(0, train.x.device), evaluating(model):
        logits = model(example, samples=1).logits
    for data in (train, validation):
        if data is not None and int(data.y.max()) >= logits.shape[-1]:
            raise ValueError(
                f"{data.name!r} has label {int(data.y.max())}, but the model has {logits.shape[-1]} logits, for labels "
                f"0 to {logits.shape[-1] - 1}: give the model {int(data.y.max()) + 1} or more outputs"
            )
