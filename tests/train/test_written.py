"""Steps of a fleet that are written down, compiled or recorded are the same steps."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from subject import FIFTY, assert_same, close, made, make_data, make_model, weights

from pstn.train import Member, fit_fleet
from pstn.train.fleet import lane, stack, sums
from pstn.train.fleet.lane import Lane
from pstn.train.fleet.record import record


@pytest.fixture
def long_run(monkeypatch):
    """Call it, and steps are written down and compiled as in a long run on a GPU; returns their lanes."""
    prepare, lanes = Lane.__init__, []

    def start():
        monkeypatch.setattr(Lane, "__init__", begin)
        return lanes

    def begin(lane, *arguments):
        prepare(lane, *arguments)
        lane.written = lane.compiled = True
        lanes.append(lane)

    return start


@pytest.mark.parametrize(("kind", "count"), [("student", 2), ("point", 2), ("cnn", 1)])
def test_compiled_steps_are_the_same_steps(kind, count, monkeypatch, long_run):
    """As long runs on a GPU take them; here by the compiler's own interpreter, which needs no other compiler."""

    def train():
        configs = [replace(FIFTY, epochs=4, seed=i) for i in range(count)]
        members = [Member(made(i, kind), make_data(seed=i), None, config) for i, config in enumerate(configs)]
        return [weights(run.model) for run in fit_fleet(members, progress=False)]

    plain, compiled, compiler = train(), [], torch.compile

    def compile_here(function, **options):
        compiled.append(function)
        return compiler(function, backend="aot_eager", **options)

    monkeypatch.setattr(torch, "compile", compile_here)
    long_run()
    for a, b in zip(plain, train(), strict=True):
        close(a, b)
    assert len(compiled) == 2  # one for each size of batch


@pytest.mark.parametrize("how", [{"clip": 1.0}, {"optimizer": "sgd", "momentum": 0.9, "nesterov": True}])
def test_compiled_networks_that_diverge_keep_their_last_good_numbers(how, monkeypatch, long_run):
    """Batch statistics, too; the others do not notice."""

    def train():
        configs = [replace(FIFTY, seed=i, kl_weight=w, **how) for i, w in enumerate((1e-2, 3e38, 1e-2))]
        members = [Member(make_model(i), make_data(seed=i), None, config) for i, config in enumerate(configs)]
        runs = fit_fleet(members, progress=False)
        assert [run.failure is None for run in runs] == [True, False, True]
        return [weights(run.model) for run in runs]

    plain, compiler = train(), torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: compiler(function, backend="aot_eager", **options)
    )
    lanes = long_run()
    found = train()
    assert all(lane.compiled for lane in lanes)
    for a, b in ((plain[0], found[0]), (plain[2], found[2])):
        close(a, b)
    assert_same(found[1], weights(make_model(1)))


def test_a_process_compiles_for_as_many_fleets_as_it_trains(monkeypatch, recwarn, long_run):
    """Dynamo gives up on a function after some shapes, by default eight."""
    import torch._dynamo

    compiler, compiled = torch.compile, long_run()

    monkeypatch.setattr(torch, "compile", lambda function, **options: compiler(function, backend="eager", **options))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=1):
        for count in (1, 2, 3):
            config = replace(FIFTY, epochs=1)
            fit_fleet([Member(made(i, "cnn"), make_data(), None, config) for i in range(count)], progress=False)
    assert compiled
    assert all(lane.compiled for lane in compiled)
    assert not [str(each.message) for each in recwarn if "torch.compile" in str(each.message)]


def unsupported(function, **options):
    """A compiler that refuses."""
    from torch._dynamo.exc import Unsupported

    def fail(*arguments):
        raise Unsupported("no such thing")

    return fail


def unfit(function, compiler=torch.compile, **options):
    """A compiler of kernels that do not run; torch's wrapper around a recorded module hides what is wrong with them."""

    def build(module, inputs):
        def run(*values):
            raise RuntimeError("no such thing")

        return run

    return compiler(function, **options, backend=build)


@pytest.mark.parametrize("compiler", [unsupported, unfit])
def test_a_compiler_that_fails_costs_speed_alone(compiler, monkeypatch, long_run):
    def train():
        return weights(fit_fleet([Member(made(0, "student"), make_data(), None, FIFTY)], progress=False)[0].model)

    plain = train()

    monkeypatch.setattr(torch, "compile", compiler)
    long_run()
    with pytest.warns(UserWarning, match="without torch.compile, which failed: no such thing"):
        close(plain, train())


def test_numbers_of_a_recorded_step_are_where_its_inputs_are():
    """A kernel that is compiled for a device reads them there, and cannot read those of the CPU."""
    step = record(lambda x: x / torch.tensor(2.0) + torch.ones(3, device=x.device), [torch.ones(3, device="meta")])
    read = [getattr(step, node.target) for node in step.graph.nodes if node.op == "get_attr"]
    assert [value.device.type for value in read] == ["meta", "meta"]
    step = record(lambda x: x / torch.tensor(2.0), [torch.ones(3)])
    torch.testing.assert_close(step(torch.ones(3)), torch.full((3,), 0.5))


def test_steps_with_shorter_sums_are_the_same_steps(monkeypatch):
    """As on a GPU, with sums so short that the layers of small networks have long ones."""
    plain, split = trained(), []

    def shorten(step):
        before = step.code
        split.append(sums.shorten_sums(step).code != before)
        return step

    monkeypatch.setattr(lane, "PATIENCE", 1)
    monkeypatch.setattr(sums, "LONG", 16)
    monkeypatch.setattr(sums, "PIECE", 5)
    monkeypatch.setattr(stack, "share_copies", shorten)
    for a, b in zip(plain, trained(), strict=True):
        close(a, b)
    assert split == [True, True]  # one for each size of batch


def trained():
    """The weights of a fleet of two, five steps of two sizes of batch an epoch."""
    members = [Member(made(i, "gaussian"), make_data(seed=i), None, replace(FIFTY, epochs=2)) for i in range(2)]
    return [weights(run.model) for run in fit_fleet(members, progress=False)]


def test_recorded_steps_are_the_same_steps_where_there_is_room_for_one(replayed):
    plain = trained()
    recorded = replayed(room=1)
    for a, b in zip(plain, trained(), strict=True):
        close(a, b)
    assert len(recorded) == 2  # one for each size of batch


@pytest.mark.parametrize("compiled", [True, False])
def test_a_step_that_asks_the_device_is_not_recorded(compiled, replayed, monkeypatch):
    """Without the compiler first: it may be the compiler's doing."""
    plain, recorded = trained(), replayed(room=1)
    prepare, tried = Lane.__init__, []

    @contextmanager
    def asked():
        yield
        tried.append(True)
        if len(tried) % 2 or not compiled:
            raise RuntimeError("called a synchronizing CUDA operation")

    def long_run(lane, *arguments):
        prepare(lane, *arguments)
        lane.compiled = compiled

    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(Lane, "__init__", long_run)
    monkeypatch.setattr("pstn.train.fleet.lane._unasked", asked)
    word = "without torch.compile, by which a step asks" if compiled else "step by step"
    with pytest.warns(UserWarning, match=word):
        found = trained()
    for a, b in zip(plain, found, strict=True):
        close(a, b)
    assert [lane.recorded for lane in recorded] == [compiled] * 2
    assert not any(lane.compiled for lane in recorded)
    assert len(tried) == (4 if compiled else 2)
