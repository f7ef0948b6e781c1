from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from subject import CONFIG, make_data, make_model

from pstn.train.fleet.lane import Lane


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def data():
    return make_data()


@pytest.fixture
def validation():
    return make_data(15, seed=1, name="more dots")


@pytest.fixture
def config():
    return CONFIG


@pytest.fixture
def replayed(monkeypatch):
    """Call it with how many steps there is to be room for, and steps are recorded as on a GPU, but that a replay is the
    step itself; the lanes that were recorded."""
    prepare, write, recorded = Lane.__init__, Lane._record, []
    stream = SimpleNamespace(wait_stream=lambda other: None)

    def start(room=None):
        def begin(lane, fleet, size, requests):
            prepare(lane, fleet, size, requests)
            lane.recorded, lane.capacity = True, room or lane.capacity
            lane.index, lane.knobs = lane.index[: lane.capacity], lane.knobs[: lane.capacity]
            count = fleet.stack.count
            lane.noise = [torch.zeros(count, lane.capacity, *r.shape, dtype=r.dtype) for r in requests]

        monkeypatch.setattr(Lane, "__init__", begin)
        return recorded

    def record(lane):
        write(lane)
        if lane.graph is not None:
            lane.graph.replay = lane._try
        recorded.append(lane)

    monkeypatch.setattr(Lane, "_record", record)
    monkeypatch.setattr("pstn.train.fleet.lane._unasked", nullcontext)
    for name in ("current_stream", "default_stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, lambda device, **options: stream)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *arguments, **options: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    return start
