"""Steps of a fleet that are written down, compiled or recorded are the same steps."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from subject import FIFTY, close, made, make_data, weights

from pstn.train import Member, fit_fleet
from pstn.train.fleet.lane import TOGETHER, Lane


@pytest.mark.parametrize(("kind", "count"), [("student", 2), ("point", 2), ("cnn", 1)])
def test_compiled_steps_are_the_same_steps(kind, count, monkeypatch):
    """As long runs on a GPU take them; here by the compiler's own interpreter, which needs no other compiler."""

    def train():
        configs = [replace(FIFTY, epochs=4, seed=i) for i in range(count)]
        members = [Member(made(i, kind), make_data(seed=i), None, config) for i, config in enumerate(configs)]
        return [weights(run.model) for run in fit_fleet(members, progress=False)]

    plain, compiled = train(), []
    compiler, prepare = torch.compile, Lane.__init__

    def compile_here(function, **options):
        compiled.append(function)
        return compiler(function, backend="aot_eager", **options)

    def long_run(lane, *arguments):
        prepare(lane, *arguments)
        lane.written = lane.compiled = True

    monkeypatch.setattr(torch, "compile", compile_here)
    monkeypatch.setattr(Lane, "__init__", long_run)
    for a, b in zip(plain, train(), strict=True):
        close(a, b)
    assert len(compiled) == 3  # the optimizer's step, and one for each size of batch


def test_a_compiler_that_fails_costs_speed_alone(monkeypatch):
    from torch._dynamo.exc import Unsupported

    def fail(*arguments):
        raise Unsupported("no such thing")

    def train():
        return weights(fit_fleet([Member(made(0, "student"), make_data(), None, FIFTY)], progress=False)[0].model)

    plain, prepare = train(), Lane.__init__

    def long_run(lane, *arguments):
        prepare(lane, *arguments)
        lane.written = lane.compiled = True

    monkeypatch.setattr(torch, "compile", lambda function, **options: fail)
    monkeypatch.setattr(Lane, "__init__", long_run)
    with pytest.warns(UserWarning, match="without torch.compile, which failed: no such thing"):
        close(plain, train())


@pytest.mark.parametrize("room", [1, TOGETHER, 3 * TOGETHER])
def test_recorded_steps_are_the_same_steps_whatever_the_room(monkeypatch, room):
    """As on a GPU, but that a replay is the step itself: rehearsals of it must stay within the room."""

    def train():
        config = replace(FIFTY, epochs=2, batch_size=2)
        members = [Member(made(i, "gaussian"), make_data(21, seed=i), None, config) for i in range(2)]
        return [weights(run.model) for run in fit_fleet(members, progress=False)]

    plain, prepare, record = train(), Lane.__init__, Lane._record
    stream = SimpleNamespace(wait_stream=lambda other: None)
    recorded, replays, together = [], [], False

    def narrow(lane, fleet, size, requests):
        prepare(lane, fleet, size, requests)
        lane.recorded, lane.capacity, lane.together = True, room, together
        lane.index, lane.knobs = lane.index[:room], lane.knobs[:room]
        lane.noise = [torch.zeros(fleet.stack.count, room, *r.shape, dtype=r.dtype) for r in requests]

    def replayed(lane):
        record(lane)
        lane.graph.replay = lane._try
        if lane.several is not None:
            lane.several.replay = lambda: replays.append([lane._try() for _ in range(TOGETHER)])
        recorded.append(lane)

    monkeypatch.setattr(Lane, "__init__", narrow)
    monkeypatch.setattr(Lane, "_record", replayed)
    monkeypatch.setattr("pstn.train.fleet.lane._unasked", nullcontext)
    for name in ("current_stream", "default_stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, lambda device: stream)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *arguments, **options: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    single = train()
    assert len(recorded) == 2  # one for each size of batch
    if room == 1:  # where there is more, numbers are drawn for several steps at once, and in another order
        for a, b in zip(plain, single, strict=True):
            close(a, b)
        return
    together = True
    for a, b in zip(single, train(), strict=True):
        close(a, b)
    assert len(replays) == (2 if room > TOGETHER else 0)  # one in each epoch of eleven steps, if it is laid out at once
