"""Training one model on Lightning Fabric: data on the device, exact resume, a log and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.progress import Progress
from torch import Tensor, nn

from pstn.data import Data
from pstn.modes import Modes
from pstn.objectives import KLWeight
from pstn.stn import param_groups
from pstn.train.checkpoint import save_model
from pstn.train.config import Train
from pstn.train.display import Display
from pstn.train.log import Log, environment, fingerprint
from pstn.train.schedule import factor
from pstn.train.seed import seeded
from pstn.train.signals import Signals
from pstn.train.state import State
from pstn.train.step import SCORES, TERMS, Loss, Step, check

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: Steps between two looks at the losses. A look waits for the device; a divergence is found no later than this.
LOOK_EVERY = 64
#: Seconds between two updates of the display.
SHOW_EVERY = 0.25

CHECKPOINT, MODEL, LOG = "checkpoint.safetensors", "model.safetensors", "log.jsonl"


@dataclass
class Run:
    """What :func:`fit` did."""

    model: nn.Module
    """The model itself, with the weights that ``config.keep`` asks for."""
    history: list[dict[str, Any]]
    """A record an epoch: epoch, step, loss, nll, kl, lr, seconds, and the validation's figures where there was one."""
    best: dict[str, Any] | None
    """The record with the least validation NLL; None without validation."""
    directory: Path | None
    """Where the checkpoint, the log and the final weights are."""
    seconds: float
    """Time spent in training and validation, over all sittings."""
    steps: int
    """Optimizer steps taken, over all sittings."""
    failure: str | None = None
    """Why training was given up, in a fleet that went on without this network; None where it was not."""


def fit(
    model: nn.Module,
    train: Data,
    validation: Data | None = None,
    config: Train = Train(),  # noqa: B008 - frozen
    *,
    directory: str | Path | None = None,
    resume: bool = True,
    progress: bool | Progress = True,
    on_epoch: Callable[[dict[str, Any]], object] | None = None,
    loss: Loss | None = None,
    augment: Callable[[Tensor], Tensor] | None = None,
    seconds: float | None = None,
) -> Run:
    r"""Minimise the negative bound :math:`-\log p(y|x,\theta) + w\,KL(q \| p)` over a data set held on the device.

    A run is a function of the model's weights, the data and the settings: everything drawn in it, dropout and
    augmentation included, comes from streams seeded by ``config.seed``, which are part of each checkpoint. A run that
    was killed and is started again with the same arguments goes on from its last checkpoint and, on the CPU with as
    many threads, ends in the same weights to the last bit. Ctrl-C and SIGTERM write a checkpoint first.

    Arguments:
        model: Called as ``model(x, samples=S)``, returns a :class:`pstn.stn.Output`; trained in place.
        train: The training data.
        validation: Data to measure NLL and accuracy on, with a random stream of its own: validating changes nothing.
        config: The settings.
        directory: Where to keep ``checkpoint.safetensors``, ``log.jsonl`` and, at the end, ``model.safetensors``.
        resume: Go on from the checkpoint in the directory, if there is one; False starts over.
        progress: Show progress on a terminal, or a ``rich`` display to add a line to.
        on_epoch: Called with each epoch's record.
        loss: ``loss(output, y)`` instead of the bound; validation then reports its mean, as ``validation_loss``.
        augment: Applied to each training batch; draws from torch's own generators only.
        seconds: How long training may take, over all sittings, on one device: where the steps of the settings would
            take longer, by the pace seen so far, fewer are taken, and the schedule of the learning rate ends with them.

    Returns:
        The history and the model. The model ends on the training device, in the mode it came in. Parts that are in
        evaluation mode in a model that is not, such as batch statistics that are to stay, are so in training, too.

    Raises:
        FloatingPointError: The loss or the weights became NaN or infinite.
        CheckpointError: The directory's checkpoint is damaged, or belongs to another run.

    Example:
        >>> from pstn.stn import STN
        >>> model = STN(nn.Sequential(nn.Flatten(), nn.Linear(8, 2)))
        >>> data = Data(torch.randn(6, 1, 8), torch.tensor([0, 1, 0, 1, 0, 1]), ("a", "b"))
        >>> run = fit(model, data, config=Train(epochs=2, batch_size=4), progress=False)
        >>> run.steps, [record["epoch"] for record in run.history]
        (4, [1, 2])
    """
    from lightning_fabric import Fabric  # here, because it takes longer to import than torch

    accelerator = config.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    fabric = Fabric(accelerator=accelerator, devices=config.devices, precision=config.precision)
    fabric.launch()
    modes = Modes(model)
    # Processes share the order of the examples but each draws its own noise.
    with Signals() as signals, seeded(config.seed + 7919 * fabric.global_rank, fabric.device):
        loop = Loop(fabric, signals, model, train, validation, config, loss, augment)
        loop.directory = None if directory is None else Path(directory)
        loop.on_epoch, loop.seconds = on_epoch, seconds
        try:
            loop.begin(resume)
            loop.go(progress)
        finally:
            modes.restore()
    state = loop.state
    return Run(model, state.history, state.best, loop.directory, state.seconds, state.step)


def kl_weight(config: Train, examples: int, per_epoch: int) -> KLWeight:
    """The KL divergence's weight for each input, over the steps."""
    share = config.kl_weight / math.sqrt(examples) if config.kl_per == "dataset" else config.kl_weight
    return KLWeight(share, round(config.kl_warmup * per_epoch))


def make_optimizer(groups: list[dict[str, Any]], config: Train) -> torch.optim.Optimizer:
    """The optimizer of the given settings, in torch's fused form.

    On the CPU a fused Adam step of a 24,000-parameter network takes 0.08 ms; foreach takes 0.22, a plain loop 0.28.
    """
    # The loss scaling of 16-bit floats unscales gradients before clipping, which a fused optimizer leaves no room for.
    options: dict[str, Any] = {"weight_decay": config.weight_decay, "fused": config.precision != "16-mixed"}
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.nesterov, **options)
    return (torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW)(groups, **options)


class Interrupted(Exception):
    """A signal came; the run stops between two steps."""


class Loop:
    """A run and what moves it; :func:`fit` is the way to use it."""

    directory: Path | None = None
    on_epoch: Callable[[dict[str, Any]], object] | None = None
    seconds: float | None = None

    def __init__(
        self,
        fabric: Fabric,
        signals: Signals,
        model: nn.Module,
        train: Data,
        validation: Data | None,
        config: Train,
        loss: Loss | None,
        augment: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self.fabric, self.signals, self.model, self.config, self.augment = fabric, signals, model, config, augment
        self.header = {
            "kind": "run",
            "config": asdict(config),
            "train": fingerprint(train),
            "validation": fingerprint(validation),
            "parameters": sum(p.numel() for p in model.parameters()),
        }
        fabric.to_device(model)
        if isinstance(augment, nn.Module):
            fabric.to_device(augment).train()
        self.train = train.to(fabric.device)
        self.validation = None if validation is None else validation.to(fabric.device)
        check(model, self.train, self.validation, config, classifies=loss is None, augment=augment)
        self.terms: tuple[str, ...] = TERMS if loss is None else ("loss",)
        self.scores: tuple[str, ...] = SCORES if loss is None else ("loss",)

        self.per_epoch, self.total = config.per_epoch(len(train)), config.length(len(train))
        self.planned, self.marks = self.total, [(0, 0.0)]  # steps, and the seconds that they had taken by then
        groups = param_groups(model, config.lr, config.localizer_lr)
        if not groups:
            raise ValueError("the model has no parameter that requires a gradient: there is nothing to train")
        self.rates = [group["lr"] for group in groups]
        # The wrappers cost 0.04 ms a step: little enough to have one path for one core and for many GPUs.
        self.cost = Step(model, config, loss)
        self.module, self.optimizer = fabric.setup(self.cost, make_optimizer(groups, config))
        self.kl_weight = kl_weight(config, len(train), self.per_epoch)

        self.order = torch.Generator().manual_seed(config.seed)
        self.state = State(self.order.get_state(), sums=[0.0] * len(self.terms))
        self.pending: list[tuple[float, tuple[Tensor, ...]]] = []  # losses that nobody has looked at yet
        self.factor: float | None = None
        self.log: Log | None = None

    @property
    def path(self) -> Path | None:
        """The checkpoint's file."""
        return None if self.directory is None else self.directory / CHECKPOINT

    def begin(self, resume: bool) -> None:
        """Take up an earlier sitting, or start a new run."""
        if self.directory is None or self.path is None:
            return
        if resume and self.path.exists():
            self.state, self.header = State.load(self.path, self.header, self.fabric, self.model, self.optimizer)
        else:
            self.header = {**self.header, **environment(self.fabric.device)}
            if self.fabric.is_global_zero:
                self.path.unlink(missing_ok=True)
        if self.fabric.is_global_zero:
            self.log = Log(self.directory / LOG, self.header, self.state.history)

    def go(self, progress: bool | Progress) -> None:
        """Train to the end."""
        now = time.perf_counter()
        self.clock = now - self.state.seconds
        self.checkpoint_due, self.display_due = now + self.config.checkpoint_every, now
        shown = progress if self.fabric.is_global_zero else False
        self.display = Display(shown, self.total, self.state.step, self.train.name)
        try:
            while self.state.step < self.total or self.state.batch:
                self.run_epoch()
                self.close_epoch()
            self.finish()
        except Interrupted:
            self.signals.throw(self.leave())
        finally:
            self.display.close()
            if self.log is not None:
                self.log.close()

    def run_epoch(self) -> None:
        """Take the steps of the current epoch that are not yet taken."""
        state, fabric = self.state, self.fabric
        self.order.set_state(state.order)
        order = torch.randperm(len(self.train), generator=self.order).to(fabric.device)
        batches = order.split(self.config.batch_size)
        x, y, alone = self.train.x, self.train.y, fabric.world_size == 1
        self.module.train()
        for index in batches[state.batch : self.per_epoch]:
            if state.step >= self.total:
                break
            count, weight = len(index), 1.0
            if not alone:
                index, weight = self.share(index)
            self.set_rates()
            inputs = x.index_select(0, index)
            if self.augment is not None:
                inputs = self.augment(inputs)
            loss = self.module(inputs, y.index_select(0, index))
            fabric.backward(loss if alone else loss * weight)
            if self.config.clip is not None:
                fabric.clip_gradients(self.module, self.optimizer, max_norm=self.config.clip, error_if_nonfinite=False)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.pending.append((count * weight, self.cost.terms))
            state.batch += 1
            state.step += 1
            state.seen += count
            if len(self.pending) >= LOOK_EVERY:
                self.look()
            if alone:
                self.pause(time.perf_counter())

    def share(self, index: Tensor) -> tuple[Tensor, float]:
        """This process's part of a batch, and the weight that makes the mean over processes the mean over the batch."""
        world = self.fabric.world_size
        mine = index[self.fabric.global_rank :: world]
        # A process without examples takes part with weight 0: the others wait for its gradient.
        return (mine, len(mine) * world / len(index)) if len(mine) else (index[:1], 0.0)

    def set_rates(self) -> None:
        """Set the learning rates and the KL weight for the next step."""
        self.cost.kl_weight = self.kl_weight(self.state.step)
        rate = factor(self.config, self.state.step, self.total, self.per_epoch)
        if rate != self.factor:
            self.factor = rate
            for group, base in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = base * rate

    def pause(self, now: float) -> None:
        """Between two steps: stop, save or show, if it is time to."""
        if self.signals.received is not None:
            raise Interrupted
        if now >= self.display_due:
            self.show()
            self.keep_time(time.perf_counter() - self.clock)
        if now >= self.checkpoint_due and self.config.checkpoint_every > 0:
            self.save()

    def keep_time(self, spent: float) -> None:
        """Plan as many steps as there is time for, by the pace of the latter half of those that were taken."""
        if self.seconds is None:
            return
        self.marks.append((self.state.step, spent))
        step, then = self.marks[len(self.marks) // 2]
        if self.state.step > step:
            pace = (spent - then) / (self.state.step - step)
            self.total = min(self.planned, self.state.step + max(0, int((self.seconds - spent) / pace)))

    def look(self) -> None:
        """Add up the losses since the last look, or stop at the first that is not finite."""
        if not self.pending:
            return
        state, pending = self.state, self.pending
        values = torch.stack([term.float() for _, terms in pending for term in terms]).view(len(pending), -1).tolist()
        self.pending = []
        first = state.step - len(pending)
        for offset, ((count, _), row) in enumerate(zip(pending, values, strict=True)):
            if not math.isfinite(row[0]):
                self.diverged(f"the loss became {row[0]}", first + offset)
            # One number at a time, so that the sum does not depend on when one looked.
            state.sums = [total + count * value for total, value in zip(state.sums, row, strict=True)]

    def close_epoch(self) -> None:
        """Validate, write the record and move on to the next epoch."""
        state, config = self.state, self.config
        self.look()
        if self.fabric.world_size > 1:
            totals = self.fabric.all_reduce(torch.tensor(state.sums, dtype=torch.float64), reduce_op="mean")
            state.sums = totals.tolist()  # type: ignore[union-attr]
        record: dict[str, Any] = {"epoch": state.epoch + 1, "step": state.step}
        record |= {name: total / state.seen for name, total in zip(self.terms, state.sums, strict=True)}
        record["lr"] = config.lr * factor(config, state.step - 1, self.total, self.per_epoch)
        last = state.step >= self.total
        due = last or (config.validate_every > 0 and (state.epoch + 1) % config.validate_every == 0)
        if self.validation is not None and due:
            record |= self.validate(self.validation)
        state.seconds = record["seconds"] = time.perf_counter() - self.clock
        state.history.append(record)
        value = record.get(f"validation_{self.scores[0]}")
        least = None if state.best is None else state.best[f"validation_{self.scores[0]}"]
        if value is not None and (least is None or value < least or math.isnan(least)):
            state.best = record
            if config.keep == "best":
                state.best_weights = {k: v.detach().to("cpu", copy=True) for k, v in self.model.state_dict().items()}
        state.epoch, state.batch, state.seen, state.sums = state.epoch + 1, 0, 0, [0.0] * len(self.terms)
        state.order = self.order.get_state()
        if self.log is not None:
            self.log.add(record)
        if self.fabric.broadcast(last or time.perf_counter() >= self.checkpoint_due):
            self.save()
        if last or time.perf_counter() >= self.display_due:
            self.show()
        if self.on_epoch is not None:
            self.on_epoch(record)
        stopping = self.signals.received is not None
        if self.fabric.world_size > 1:
            stopping = bool(self.fabric.all_reduce(torch.tensor(float(stopping)), reduce_op="sum"))
        if stopping:
            raise Interrupted

    @torch.no_grad()
    def validate(self, data: Data) -> dict[str, float]:
        """Means over the validation data, by probabilities averaged over the samples."""
        config = self.config
        # As much at once as a training step takes, or enough to keep a small network busy.
        size = max(1, max(config.batch_size * config.samples, 512) // config.samples_validation)
        totals = torch.zeros(len(self.scores), dtype=torch.float64)
        self.module.eval()
        # The same draws at each validation: epochs differ by their weights, and training by nothing.
        with seeded(config.seed, self.fabric.device):
            for x, y in zip(data.x.split(size), data.y.split(size), strict=True):
                if self.signals.received is not None and self.fabric.world_size == 1:
                    raise Interrupted
                scores = self.module(x.clone(), y)  # a model may write to what it is given
                totals += len(x) * scores.double().cpu()
        return {
            f"validation_{name}": value / len(data) for name, value in zip(self.scores, totals.tolist(), strict=True)
        }

    def show(self) -> None:
        """Update the display."""
        state = self.state
        self.display_due = time.perf_counter() + SHOW_EVERY
        self.look()
        shown = {"loss": state.sums[0] / state.seen} if state.seen else {}
        past = state.history[-1] if state.history else {}
        words = [f"epoch {min(state.epoch + 1, -(-self.total // self.per_epoch))}/{-(-self.total // self.per_epoch)}"]
        words += [f"loss {(shown or past)['loss']:.4f}"] if shown or past else []
        validated = next((r for r in reversed(state.history) if "validation_accuracy" in r), None)
        words += [f"validation {validated['validation_accuracy']:.1%}"] if validated else []
        self.display.show(state.step, "  ".join(words), self.total)

    def save(self) -> None:
        """Write a checkpoint, unless the run has diverged."""
        self.look()
        self.checkpoint_due = time.perf_counter() + self.config.checkpoint_every
        bad = next((name for name, p in self.model.named_parameters() if not p.detach().isfinite().all()), None)
        if bad is not None:
            self.diverged(f"the weights {bad} became NaN or infinite", self.state.step - 1)
        if self.path is None:
            return
        self.state.seconds = time.perf_counter() - self.clock
        self.state.save(self.path, self.header, self.fabric, self.model, self.optimizer)

    def leave(self) -> str:
        """Save for an interruption; what to tell the user."""
        state = self.state
        where = f"stopped in epoch {state.epoch + 1} after step {state.step} of {self.total}"
        if self.path is None:
            return f"{where}; nothing is saved, because fit(...) was given no directory"
        if self.fabric.world_size == 1:
            self.save()
        return f"{where}; call fit(...) again with the same arguments to go on from {self.path}"

    def diverged(self, what: str, step: int) -> None:
        """Raise the error of a run that has gone wrong."""
        kept = ""
        if self.path is not None and self.path.exists():
            kept = f"; {self.path} holds the last good state"
        raise FloatingPointError(
            f"{what} in epoch {step // self.per_epoch + 1} at step {step + 1} of {self.total}: try a smaller lr (now "
            f"{self.config.lr:g}), clip=1.0, warmup, or a larger kl_weight{kept}"
        )

    def finish(self) -> None:
        """Put the wanted weights in the model and write them on their own."""
        if self.config.keep == "best":
            self.model.load_state_dict(self.state.best_weights)
        if self.directory is not None and self.fabric.is_global_zero:
            best = self.config.keep == "best"
            meta = {**self.header, "kind": "model", "record": self.state.best if best else self.state.history[-1]}
            save_model(self.model, self.directory / MODEL, meta)
