"""Members of one architecture, moved together: chunks of steps, with validation between two of them where it is due."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor
from torch.fx import GraphModule

from pstn.data import Data
from pstn.modes import Modes
from pstn.train.config import Train
from pstn.train.display import Display
from pstn.train.fleet.files import write_checkpoint, write_members
from pstn.train.fleet.lane import Lane
from pstn.train.fleet.member import Member
from pstn.train.fleet.noise import Request
from pstn.train.fleet.optimizer import BETAS, State, slots
from pstn.train.fleet.stack import Stack, Unit, unread
from pstn.train.log import fingerprint
from pstn.train.loop import SHOW_EVERY, Interrupted, Run, kl_weight
from pstn.train.schedule import factor
from pstn.train.signals import Signals
from pstn.train.step import SCORES, TERMS, check


class Fleet:
    """Members of one architecture and what moves them; :func:`pstn.train.fit_fleet` is the way to use it."""

    path: Path | None = None
    folders: Sequence[Path] = ()
    on_step: Callable[[int], object] | None = None

    def __init__(self, members: Sequence[Member], signals: Signals) -> None:
        self.members, self.signals, config = members, signals, members[0].config
        self.config = config
        self.device = torch.device(_accelerator(config))
        self.configs = [member.config for member in members]
        self.modes = [Modes(member.model) for member in members]
        for member in members:
            data = (member.train, member.validation)
            model = member.model.to(member.train.x.device)
            augment = member.augment and member.augment.to(member.train.x.device)
            check(model, *data, member.config, classifies=member.loss is None, augment=augment)
        self.units = [Unit(m.model, m.augment, m.config, m.loss) for m in members]
        self.pool, self.starts = _pool([m.train for m in members], self.device)
        batch = self.pool.x[: config.batch_size], self.pool.y[: config.batch_size]
        self.stack = Stack(self.units, self.device, unread(self.units[0], *batch))
        self.slots = slots(config, self.stack.weights)
        classifies = members[0].loss is None
        self.terms: tuple[str, ...] = TERMS if classifies else ("loss",)
        self.scores: tuple[str, ...] = SCORES if classifies else ("loss",)

        self.examples = len(members[0].train)
        self.per_epoch, self.total = config.per_epoch(self.examples), config.length(self.examples)
        if self.device.type == "cpu":
            self.stack.unit.train()
            self.stack.apart = len(members) > 1 and self.stack.large(*batch)
            held = members[0].validation
            some = None if held is None else (held.x[:2].to(self.device), held.y[:2].to(self.device))
            self.stack.try_out(self.mixed, batch, some)
        # Settings are worked out once for all members that share them: whatever a config says but for its seed.
        alike = [replace(c, seed=0) for c in self.configs]
        self.settings = list(dict.fromkeys(alike))
        self.kind = torch.tensor([self.settings.index(c) for c in alike])
        self.kl_weights = [kl_weight(c, self.examples, self.per_epoch) for c in self.settings]
        self.orders = [torch.Generator().manual_seed(c.seed) for c in self.configs]
        self.sources = [torch.Generator(self.device).manual_seed(c.seed) for c in self.configs]

        count = len(members)
        self.alive = torch.ones(count, dtype=torch.bool, device=self.device)
        self.sums = torch.zeros(count, len(self.terms), dtype=torch.float64, device=self.device)
        self.lanes: dict[int, Lane] = {}
        self.step = 0
        self.owed = False  # whether the last epoch is still to be validated
        self.ahead: list[Tensor] = []  # the batches left of the current epoch, (M, size) each
        self.closed: list[tuple[int, Tensor]] = []  # (epoch, sums) of epochs whose records are not written yet
        self.failures: list[str | None] = [None] * count
        self.histories: list[list[dict[str, Any]]] = [[] for _ in members]
        self.best: list[dict[str, Any] | None] = [None] * count
        self.best_weights = self.stack.weights.clone()
        self.best_still = {name: value.clone() for name, value in self.stack.still.items()}
        self.seconds = 0.0
        self.header: dict[str, Any] = {
            "kind": "fleet",
            "members": [
                {"config": asdict(m.config), "train": fingerprint(m.train), "validation": fingerprint(m.validation)}
                for m in members
            ],
        }

    def go(self, progress: bool | Progress) -> list[Run]:
        """Train to the end."""
        now = time.perf_counter()
        self.clock, self.due, self.show_due = now - self.seconds, now + self.config.checkpoint_every, now
        label = f"{len(self.members)} × {self.members[0].train.name}"
        self.display = Display(progress, self.total, self.step, label)
        try:
            while self.step < self.total or self.owed:
                if self.signals.received is not None:
                    raise Interrupted
                if not self.owed:  # a run may have been stopped in the midst of a validation
                    self.advance()
                if self.owed:
                    self.validate()
                now = time.perf_counter()
                if self.step < self.total and now >= self.due:
                    self.save(now)
                if now >= self.show_due or self.step == self.total:
                    self.show(now)
                if self.on_step is not None:
                    self.on_step(self.step)
            self.look()
            self.seconds = time.perf_counter() - self.clock
            return write_members(self)
        except Interrupted:
            self.signals.throw(self.leave())
            raise
        finally:
            self.display.close()
            for modes in self.modes:
                modes.restore()

    @property
    def mixed(self) -> bool:
        """Whether arithmetic is in 16 bits where that does no harm."""
        return self.config.precision != "32-true"

    def advance(self) -> None:
        """One chunk: as many steps as fit in the lanes, up to the next validation."""
        steps: list[tuple[int, Tensor]] = []  # (step, the batch of each network) of the chunk
        used: dict[int, int] = {}
        validate, validates = False, self.members[0].validation is not None
        ends: set[int] = set()
        while not validate and self.step + len(steps) < self.total:
            if not self.ahead:
                self.ahead = self.shuffled()
            size = self.ahead[0].shape[1]
            lane = self.lane(size)
            if used.get(size, 0) == lane.capacity:
                break
            used[size] = used.get(size, 0) + 1
            steps.append((self.step + len(steps), self.ahead.pop(0)))
            done = self.step + len(steps)
            if not self.ahead or done == self.total:
                ends.add(done)
                epoch = len(self.histories[0]) + len(self.closed) + len(ends)
                every = self.config.validate_every
                validate = validates and (done == self.total or (every > 0 and epoch % every == 0))
        fills = []
        for size, lane in self.lanes.items():
            mine = [(step, index) for step, index in steps if index.shape[1] == size]
            if mine:
                knobs = torch.tensor([self.knobs(step) for step, _ in mine])[:, self.kind]
                fills.append((lane, torch.stack([index for _, index in mine]), knobs))
        self.look()  # waits for the chunk before, beside which all of this was prepared
        self.stack.unit.train()
        for lane, index, knobs in fills:
            lane.fill(index, knobs)
            lane.prepare()
        for step, index in steps:
            self.lanes[index.shape[1]].step()
            if step + 1 in ends:
                self.closed.append((step + 1, self.sums.clone()))
                self.sums.zero_()
        self.step += len(steps)
        self.owed = validate

    def shuffled(self) -> list[Tensor]:
        """The batches of an epoch: positions in the pool, (M, size) each."""
        orders = [torch.randperm(self.examples, generator=order) for order in self.orders]
        index = torch.stack(orders) + self.starts[:, None]
        return list(index.split(self.config.batch_size, dim=1))[: self.per_epoch]

    def lane(self, size: int) -> Lane:
        """What takes steps of a batch size."""
        if size not in self.lanes:
            self.stack.unit.train()
            x, y = self.pool.x[:size], self.pool.y[:size]
            self.lanes[size] = Lane(self, size, self.stack.requests(x, y))
        return self.lanes[size]

    def knobs(self, step: int) -> list[list[float]]:
        """The settings of a step, (kinds, 6)."""
        corrections = [1 - BETAS[0] ** (step + 1), math.sqrt(1 - BETAS[1] ** (step + 1))]
        rows = []
        for config, weight in zip(self.settings, self.kl_weights, strict=True):
            lr = config.lr * factor(config, step, self.total, self.per_epoch)
            rows.append([lr, lr * config.localizer_lr, weight(step), config.weight_decay, *corrections])
        return rows

    @property
    def state(self) -> State:
        """What a step changes."""
        return State(self.stack.weights, self.slots, self.stack.still, self.alive, self.sums)

    def take(self, x: Tensor, y: Tensor, knobs: Tensor, noise: Sequence[Tensor], step: GraphModule | None) -> None:
        """One step of every network, in place, written down or not; nothing here waits for the device."""
        self.state.step(
            self.config,
            self.stack.localizer,
            knobs,
            x.shape[1],
            lambda: self.stack.differentiate(x, y, noise, knobs[:, 2], self.mixed, step),
        )

    def look(self) -> None:
        """Write the records of the epochs behind us, and note which networks have been left behind."""
        alive = self.alive.tolist()
        for index, good in enumerate(alive):
            if not good and self.failures[index] is None:
                lr = self.configs[index].lr
                self.failures[index] = (
                    f"the loss became NaN or infinite before step {self.step} of {self.total}: try a smaller lr "
                    f"(now {lr:g}), clip=1.0, warmup, or a larger kl_weight"
                )
        now = time.perf_counter() - self.clock
        for step, sums in self.closed:
            epoch = len(self.histories[0]) + 1
            batches = step - (epoch - 1) * self.per_epoch
            seen = min(batches * self.config.batch_size, self.examples)
            for config, history, row in zip(self.configs, self.histories, sums.tolist(), strict=True):
                record: dict[str, Any] = {"epoch": epoch, "step": step}
                record |= {name: total / seen for name, total in zip(self.terms, row, strict=True)}
                record["lr"] = config.lr * factor(config, step - 1, self.total, self.per_epoch)
                record["seconds"] = now / len(self.members)
                history.append(record)
        self.closed = []

    @torch.no_grad()
    def validate(self) -> None:
        """Add the validation's figures to the last records, and keep what is best so far."""
        self.look()
        config = self.config
        size = max(1, max(config.batch_size * config.samples, 512) // config.samples_validation)
        self.stack.unit.eval()
        pool, starts = _pool([m.validation for m in self.members], self.device)  # type: ignore[misc]
        count = len(self.members[0].validation)  # type: ignore[arg-type]
        # The same draws at each validation: epochs differ by their weights, and training by nothing.
        sources = [torch.Generator(self.device).manual_seed(c.seed) for c in self.configs]
        totals = torch.zeros(len(self.members), len(self.scores), dtype=torch.float64, device=self.device)
        requests: dict[int, list[Request]] = {}
        offsets = starts.to(self.device)[:, None]
        for chunk in torch.arange(count, device=self.device).split(size):
            if self.signals.received is not None:
                raise Interrupted
            index = offsets + chunk
            x, y = pool.x[index], pool.y[index]
            if len(chunk) not in requests:
                requests[len(chunk)] = self.stack.requests(x[0], y[0])
            noise = [
                torch.stack(numbers)
                for numbers in zip(*([r.draw(s) for r in requests[len(chunk)]] for s in sources), strict=True)
            ]
            with torch.autocast(self.device.type, torch.bfloat16, self.mixed):
                scores, _, _ = self.stack.run(self.stack.weights, self.stack.still, x, y, noise)
            totals += len(chunk) * scores.double()
        values = (totals / count).tolist()
        better = torch.zeros(len(self.members), dtype=torch.bool)
        for index, row in enumerate(values):
            record = self.histories[index][-1]
            record |= {f"validation_{name}": value for name, value in zip(self.scores, row, strict=True)}
            best = self.best[index]
            key = f"validation_{self.scores[0]}"
            if self.failures[index] is None and (best is None or record[key] < best[key] or math.isnan(best[key])):
                self.best[index], better[index] = record, True
        if config.keep == "best":
            better = better.to(self.device)
            self.best_weights = torch.where(better[:, None], self.stack.weights, self.best_weights)
            for name, value in self.stack.still.items():
                wide = better.view(-1, *[1] * (value.ndim - 1))
                self.best_still[name] = torch.where(wide, value, self.best_still[name])
        self.owed = False

    def save(self, now: float) -> None:
        """Write a checkpoint."""
        self.look()
        self.due = now + self.config.checkpoint_every
        self.seconds = now - self.clock
        write_checkpoint(self)

    def leave(self) -> str:
        """Save for an interruption; what to tell the user."""
        where = f"stopped after step {self.step} of {self.total}"
        if self.path is None:
            return f"{where}; nothing is saved, because fit_fleet(...) was given no directory"
        self.save(time.perf_counter())
        return f"{where}; call fit_fleet(...) again with the same arguments to go on from {self.path}"

    def show(self, now: float) -> None:
        """Update the display."""
        self.show_due = now + SHOW_EVERY
        last = [history[-1] for history, f in zip(self.histories, self.failures, strict=True) if history and not f]
        words = [f"loss {sum(r['loss'] for r in last) / len(last):.4f}"] if last else []
        lost = sum(failure is not None for failure in self.failures)
        words += [f"{lost} diverged"] if lost else []
        self.display.show(self.step, "  ".join(words))


def _pool(sets: Sequence[Data], device: torch.device) -> tuple[Data, Tensor]:
    """All examples in one data set, each set once, and where each member's begin in it."""
    places: dict[int, int] = {}
    each, start = [], 0
    for data in sets:
        if id(data) not in places:
            places[id(data)] = start
            start += len(data)
            each.append(data)
    whole = each[0]
    if len(each) > 1:
        classes = max((d.classes for d in each), key=len)  # in numbers; the names are each set's own
        whole = Data(torch.cat([d.x for d in each]), torch.cat([d.y for d in each]), classes, "all members' examples")
    return whole.to(device), torch.tensor([places[id(data)] for data in sets])


def _accelerator(config: Train) -> str:
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    return auto if config.accelerator == "auto" else config.accelerator
