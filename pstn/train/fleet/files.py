"""What a fleet keeps: one file while it trains, a model and a log for each member in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from pstn.train.checkpoint import CheckpointError, check_fit, load, part, save, save_model
from pstn.train.log import Log, environment
from pstn.train.loop import LOG, MODEL, Run
from pstn.train.state import differences

if TYPE_CHECKING:
    from pstn.train.fleet.fleet import Fleet

#: What of a fleet is neither a tensor nor can be made again from its members.
PLAIN = ("step", "owed", "failures", "histories", "best", "seconds")
#: The tensors of a file that are no network's: where its random numbers are, and the batches left of an epoch.
OTHER = ("order", "source", "ahead")


def write_checkpoint(fleet: Fleet) -> None:
    """Write all that is needed to go on from here, if the fleet has a file to write to."""
    if fleet.path is None:
        return
    generators = {
        f"{group}.{i}": generator.get_state()
        for group, each in (("order", fleet.orders), ("source", fleet.sources))
        for i, generator in enumerate(each)
    }
    ahead = {f"ahead.{i}": index for i, index in enumerate(fleet.ahead)}
    plain = {name: getattr(fleet, name) for name in PLAIN}
    save(fleet.path, {**_tensors(fleet), **generators, **ahead}, {"header": fleet.header, "state": plain})


def take_up(fleet: Fleet, resume: bool = True) -> None:
    """Bring a fleet to where its file says it was, or remove the file."""
    if fleet.path is None or not fleet.path.exists():
        return
    if not resume:
        fleet.path.unlink()
        return
    tensors, meta = load(fleet.path)
    there, here = meta.get("header", {}).get("members", []), fleet.header["members"]
    wrong = [] if len(there) == len(here) else [f"{len(there)} networks there, {len(here)} here"]
    for old, new in zip(there, here, strict=False):
        wrong += differences(old, new)
    if wrong:
        raise CheckpointError(
            f"{fleet.path} belongs to a fleet with other settings: {'; '.join(wrong[:5])}. Use the same ones to go on, "
            "another directory, or resume=False to start over"
        )
    own = _tensors(fleet)
    found = {name: value for name, value in tensors.items() if name.partition(".")[0] not in OTHER}
    check_fit(own, found, f"{fleet.path} does not fit these networks")
    for name, value in own.items():
        value.copy_(tensors[name])
    for group, generators in (("order", fleet.orders), ("source", fleet.sources)):
        for number, state in part(tensors, group).items():
            generator = generators[int(number)]
            if state.shape == generator.get_state().shape:
                generator.set_state(state)
            elif meta["state"]["step"] < fleet.total:  # at the end, nothing is drawn any more
                raise CheckpointError(
                    f"{fleet.path} was begun on another kind of device, whose random numbers cannot be continued on "
                    f"{fleet.device.type}: go on there, use another directory, or resume=False to start over"
                )
    ahead = part(tensors, "ahead")
    fleet.ahead = [ahead[str(i)] for i in range(len(ahead))]
    for name in PLAIN:
        setattr(fleet, name, meta["state"][name])


def write_members(fleet: Fleet) -> list[Run]:
    """Put each network's weights in its model, and write them where there are folders for it."""
    best = fleet.config.keep == "best"
    weights = fleet.best_weights if best else fleet.stack.weights
    still = fleet.best_still if best else fleet.stack.still
    share = fleet.seconds / len(fleet.members)
    runs = []
    for row, (member, unit) in enumerate(zip(fleet.members, fleet.units, strict=True)):
        fleet.stack.write(row, unit, weights, still)
        unit.to(fleet.device)
        history, record = fleet.histories[row], fleet.best[row]
        folder, failure = fleet.folders[row] if fleet.folders else None, fleet.failures[row]
        if folder is not None:
            header = {**fleet.header["members"][row], **environment(fleet.device), "failure": failure}
            Log(folder / LOG, {"kind": "run", **header}, history).close()
            meta = {**header, "kind": "model", "record": record if best else history[-1]}
            save_model(member.model, folder / MODEL, meta)
        runs.append(Run(member.model, history, record, folder, share, fleet.step, failure))
    write_checkpoint(fleet)
    return runs


def _tensors(fleet: Fleet) -> dict[str, Tensor]:
    """Everything that changes in training and stays in its place, by name."""
    groups = {"still": fleet.stack.still, "slot": fleet.slots, "best_still": fleet.best_still}
    named = {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
    own = {name: getattr(fleet, name) for name in ("alive", "sums", "best_weights")}
    return {**named, **own, "weights": fleet.stack.weights}
