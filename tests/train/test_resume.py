import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from subject import CONFIG, LONG, assert_same, make_data, make_model, weights
from torch import nn

from pstn import STN
from pstn.train import CheckpointError, fit, save_model

CHILD = """
import sys, torch
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(int(sys.argv[3]))
from subject import LONG, make_data, make_model
from pstn.train import fit
fit(make_model(), make_data(), make_data(15, seed=1), LONG, directory=sys.argv[2])
"""


class Crash(Exception):
    pass


def stop_at(step, what):
    """An augmentation that does something when the given batch comes."""
    seen = 0

    def augment(x):
        nonlocal seen
        seen += 1
        if seen == step:
            what()
        return x + 0.1 * torch.randn_like(x)

    return augment


def raise_crash():
    raise Crash


def untimed(history):
    return [{name: value for name, value in record.items() if name != "seconds"} for record in history]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    config = replace(CONFIG, keep="best", schedule="cosine", warmup=1.0, kl_warmup=1.0)
    run = fit(
        make_model(), make_data(), make_data(15, seed=1), config, directory=folder, augment=stop_at(0, raise_crash)
    )
    return config, run, weights(run.model)


@pytest.mark.parametrize("step", [1, 2, 5, 6, 9, 11, 15])
@pytest.mark.parametrize("every", [0.0, 1e-9, 1e9], ids=["each epoch", "each step", "never"])
def test_a_run_that_crashes_and_goes_on_is_the_run_that_did_not(tmp_path, whole, step, every):
    config, run, expected = whole
    config = replace(config, checkpoint_every=every)
    args = (make_data(), make_data(15, seed=1), config)
    with pytest.raises(Crash):
        fit(make_model(), *args, directory=tmp_path, augment=stop_at(step, raise_crash))
    again = fit(make_model(), *args, directory=tmp_path, augment=stop_at(0, raise_crash))
    assert_same(weights(again.model), expected)
    assert untimed(again.history) == untimed(run.history)
    assert again.best["epoch"] == run.best["epoch"]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[1:] == again.history


@pytest.mark.parametrize("step", [1, 3, 5, 6, 15])
def test_ctrl_c_saves_where_it_is_and_says_how_to_go_on(tmp_path, whole, step):
    config, run, expected = whole
    args = (make_data(), make_data(15, seed=1), config)
    interrupt = stop_at(step, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match=rf"after step {step} of 15; call fit\(\.\.\.\) again.*checkpoint"):
        fit(make_model(), *args, directory=tmp_path, augment=interrupt)
    taken = 0

    def count(x):
        nonlocal taken
        taken += 1
        return x + 0.1 * torch.randn_like(x)

    again = fit(make_model(), *args, directory=tmp_path, augment=count)
    assert taken == 15 - step  # not one step is taken twice
    assert_same(weights(again.model), expected)
    assert untimed(again.history) == untimed(run.history)


def test_ctrl_c_in_validation_loses_nothing(tmp_path, whole, monkeypatch):
    config, run, expected = whole
    args = (make_data(), make_data(15, seed=1), config)
    model = make_model()
    original = model.forward

    def forward(x, samples=1, **options):
        if not model.training and len(x) == 15:
            signal.raise_signal(signal.SIGINT)
        return original(x, samples=samples, **options)

    model.forward = forward
    with pytest.raises(KeyboardInterrupt):
        fit(model, *args, directory=tmp_path, augment=stop_at(0, raise_crash))
    again = fit(make_model(), *args, directory=tmp_path, augment=stop_at(0, raise_crash))
    assert_same(weights(again.model), expected)
    assert untimed(again.history) == untimed(run.history)


def test_ctrl_c_without_a_directory_says_that_nothing_is_saved(data, config):
    interrupt = stop_at(3, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match="nothing is saved"):
        fit(make_model(), data, config=config, augment=interrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_stops_at_once(data, config, tmp_path):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="stopped at once"):
        fit(make_model(), data, config=config, directory=tmp_path, augment=stop_at(3, twice))
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_sigterm_saves_and_exits_as_the_shell_expects(tmp_path, whole, capsys):
    config, _, expected = whole
    args = (make_data(), make_data(15, seed=1), config)
    terminate = stop_at(7, lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as caught:
        fit(make_model(), *args, directory=tmp_path, augment=terminate)
    assert caught.value.code == 143
    assert "after step 7 of 15" in capsys.readouterr().err
    again = fit(make_model(), *args, directory=tmp_path, augment=stop_at(0, raise_crash))
    assert_same(weights(again.model), expected)


def test_a_killed_process_goes_on_where_it_was(tmp_path):
    """SIGKILL at a random moment, most likely in the middle of writing a checkpoint: the weights end the same."""
    folder = tmp_path / "killed"
    checkpoint = folder / "checkpoint.safetensors"
    # sums are split between threads, so the last bit depends on how many there are
    threads = str(torch.get_num_threads())
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(folder), threads]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    while not checkpoint.exists():
        assert child.poll() is None, child.stderr.read().decode()
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.4))
    assert child.poll() is None, "the run was over before it could be killed"
    child.kill()
    child.communicate()
    args = (make_data(), make_data(15, seed=1), LONG)
    resumed = fit(make_model(), *args, directory=folder)
    assert_same(weights(resumed.model), weights(fit(make_model(), *args).model))
    assert [record["epoch"] for record in resumed.history] == list(range(1, 61))


def test_a_finished_run_is_not_run_again(tmp_path, data, validation, config):
    first = fit(make_model(), data, validation, config, directory=tmp_path)
    model = make_model(7)
    again = fit(model, data, validation, config, directory=tmp_path, augment=stop_at(1, raise_crash))
    assert_same(weights(first.model), weights(model))
    assert again.history == first.history
    assert again.steps == first.steps


@pytest.mark.parametrize("schedule", ["constant", "step"])
def test_ten_epochs_and_ten_more_are_twenty(tmp_path, data, config, schedule):
    config = replace(config, schedule=schedule, step_size=2)
    fit(make_model(), data, config=replace(config, epochs=3), directory=tmp_path)
    more = fit(make_model(), data, config=replace(config, epochs=5), directory=tmp_path)
    assert_same(weights(more.model), weights(fit(make_model(), data, config=replace(config, epochs=5)).model))


def test_starting_over_forgets_the_old_run(tmp_path, data, config):
    fit(make_model(), data, config=config, directory=tmp_path)
    other = replace(config, lr=0.02)
    with pytest.raises(Crash):
        fit(make_model(), data, config=other, directory=tmp_path, resume=False, augment=stop_at(1, raise_crash))
    assert not (tmp_path / "checkpoint.safetensors").exists()
    again = fit(make_model(), data, config=other, directory=tmp_path, resume=False)
    assert_same(weights(again.model), weights(fit(make_model(), data, config=other).model))


def test_settings_with_several_numbers_are_taken_up(tmp_path, data, validation, config):
    """A tuple is a list in a file."""
    config = replace(config, schedule="step", step_size=(1.0, 2.0), epochs=2)
    fit(make_model(), data, validation, config, directory=tmp_path, progress=False)
    assert fit(make_model(), data, validation, replace(config, epochs=4), directory=tmp_path, progress=False).steps > 0


def test_another_run_is_refused_and_told_why(tmp_path, data, validation, config):
    config = replace(config, schedule="cosine")
    fit(make_model(), data, validation, config, directory=tmp_path)

    def refused(match, *args, model=None):
        with pytest.raises(CheckpointError, match=match):
            fit(model or make_model(), *args, directory=tmp_path)

    other = replace(config, lr=0.5, kl_weight=0.1)
    refused(r"lr 0\.01 there, 0\.5 here; kl_weight 0\.01 there, 0\.1 here.*resume=False", data, validation, other)
    refused("epochs 3 there, 4 here", data, validation, replace(config, epochs=4))  # the cosine depends on them
    refused(r"train data dots \(22, .* there, dots \(21,", make_data(21), validation, config)
    refused(r"train data dots .* there, dots", make_data(22, seed=9), validation, config)
    refused(r"validation data .* there, none here", data, None, config)
    plain = STN(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))
    refused("does not fit this STN: .* is not in the model", data, validation, config, model=plain)
    again = replace(config, checkpoint_every=5.0, accelerator="auto")  # these do not matter
    assert fit(make_model(), data, validation, again, directory=tmp_path).steps == 15


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path, data, config):
    fit(make_model(), data, config=config, directory=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors is damaged"):
        fit(make_model(), data, config=config, directory=tmp_path)
    save_model(make_model(), path)
    with pytest.raises(CheckpointError, match="holds a model, not a run"):
        fit(make_model(), data, config=config, directory=tmp_path)


def test_a_full_disk_stops_the_run_and_keeps_the_old_checkpoint(tmp_path, data, config, monkeypatch):
    config = replace(config, checkpoint_every=0.0)
    original, calls = os.replace, 0

    def replace_(source, target):
        nonlocal calls
        calls += 1
        if calls == 4:  # the log, two epochs, and then no more
            raise OSError(28, "No space left on device")
        original(source, target)

    monkeypatch.setattr(os, "replace", replace_)
    with pytest.raises(OSError, match=r"No space left on device.*intact.*checkpoint\.safetensors"):
        fit(make_model(), data, config=config, directory=tmp_path)
    resumed = fit(make_model(), data, config=config, directory=tmp_path)
    assert_same(weights(resumed.model), weights(fit(make_model(), data, config=config).model))
