"""Runs that are stopped, killed, or fail in part: what was done is kept, and they end the same."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from toy_runs import TRIALS, counting, essence, go

import pstn.experiment.work as work
from pstn.experiment import Results, Table, find, run_all
from pstn.experiment.network import DataError, Network
from pstn.experiment.plan import Plan


def test_an_interrupted_run_goes_on_and_ends_the_same(table, done, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        sizes = counting(patch)
        real = work.fit_fleet

        def fit(members, **options):
            if len(sizes) == 2:
                raise KeyboardInterrupt
            return real(members, **options)

        patch.setattr(work, "fit_fleet", fit)
        with pytest.raises(KeyboardInterrupt):
            go(table, tmp_path)
    sizes_after = counting(monkeypatch)
    go(table, tmp_path)
    assert essence(tmp_path) == essence(done)
    assert sum(sizes) + sum(sizes_after) == 20, "no network is trained twice"


def test_a_job_that_fails_leaves_the_others_alone(table, done, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        real = Network.member

        def member(network, device):
            if network.row.name == "fast":
                raise MemoryError("too fast")
            return real(network, device)

        patch.setattr(Network, "member", member)
        names = ["fast", "jitter"]
        with pytest.raises(MemoryError, match="too fast"):
            go(replace(table, rows=[table.row(n) for n in names], quick=(), claims=()), tmp_path)
    assert {r["row"] for r in essence(tmp_path).values()} == {"jitter"}
    go(table, tmp_path)
    assert essence(tmp_path) == essence(done)


def test_a_row_whose_data_cannot_be_had_leaves_the_others_alone(table, tmp_path, capsys):
    asked = []

    def download(fold):
        asked.append(fold)
        raise ConnectionError("could not download digits.gz")

    good = table.row("fast")
    lost = [replace(good, name=name, data=download, column="extra") for name in ("one", "two")]
    starts = replace(table.row("frozen"), needs=lost[0])
    options = {
        "device": "cpu",
        "runs": tmp_path / "runs",
        "results": tmp_path / "results",
        "console": Console(width=200),
    }
    with pytest.raises(DataError, match="could not download"):
        run_all([Table("toy/mixed", "", [starts, *lost, good]), Table("toy/lost", "", lost)], **options)
    said = capsys.readouterr().out
    assert "toy/mixed: without one, frozen, two: could not download digits.gz" in said
    assert "toy/lost: without one, two: could not download digits.gz" in said
    assert {r["row"] for r in essence(tmp_path, "toy/mixed").values()} == {"fast"}
    assert asked == [0, 0], "once for each table"


def test_two_runs_do_not_train_the_same_fleet(table, done, tmp_path):
    one = replace(table, rows=[table.row("fast"), table.row("jitter")], quick=(), claims=())
    plan = Plan(one, one.rows[:1], (tmp_path / "runs").absolute(), Results(tmp_path / "none"))
    (job,) = plan.jobs()
    with work._held(job.folder), pytest.raises(BlockingIOError, match="another run is training these networks"):
        go(one, tmp_path)
    assert {r["row"] for r in essence(tmp_path).values()} == {"jitter"}
    go(one, tmp_path)
    assert essence(tmp_path) == {key: r for key, r in essence(done).items() if r["row"] in ("fast", "jitter")}


def test_a_fleet_that_another_process_finishes_meanwhile_is_no_error(table, tmp_path, monkeypatch):
    """Workers clear away the folders of finished fleets while the next jobs are looked for."""
    folder, real = tmp_path / "runs/fleets/finished", Path.read_bytes
    folder.mkdir(parents=True)
    (folder / work.MEMBERS).write_text("[]")

    def read(path):
        if path.parent == folder and folder.exists():
            shutil.rmtree(folder)
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    plan = Plan(table, table.rows[:1], tmp_path / "runs", Results(tmp_path / "none"))
    assert [len(job.networks) for job in plan.jobs()] == [2]
    assert not folder.exists()


def test_a_lost_gpu_ends_the_run_at_once(table, tmp_path, monkeypatch):
    asked, real = [], Network.member

    def member(network, device):
        asked.append(network.row.name)
        if network.row.name == "fast":
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        return real(network, device)

    monkeypatch.setattr(Network, "member", member)
    rows = [table.row(n) for n in ("fast", "jitter")]
    with pytest.raises(RuntimeError, match="the same command goes on from there") as caught:
        go(replace(table, rows=rows, quick=(), claims=()), tmp_path)
    assert isinstance(caught.value.__cause__, torch.AcceleratorError)
    assert set(asked) == {"fast"}


def test_a_network_of_two_tables_that_fails_is_not_tried_for_ever(table, tmp_path, monkeypatch):
    def member(network, device):
        raise MemoryError("too fast")

    monkeypatch.setattr(Network, "member", member)
    options = {"device": "cpu", "runs": tmp_path / "runs", "results": tmp_path / "results", "rows": ["fast"]}
    with pytest.raises(MemoryError, match="too fast"):
        run_all([table, replace(table, id="toy/again")], **options)


def test_a_fleet_killed_while_its_networks_are_kept_is_taken_up_as_it_was(table, done, tmp_path, monkeypatch):
    """Companions decide a network's last digits: those of a begun fleet stay together."""
    with monkeypatch.context() as patch:
        real, kept = Network.finish, []

        def finish(network, *args):
            if len(kept) == 2:
                raise KeyboardInterrupt
            kept.append(network.key)
            return real(network, *args)

        patch.setattr(Network, "finish", finish)
        with pytest.raises(KeyboardInterrupt):
            go(table, tmp_path)
    assert len(list((tmp_path / "runs/networks").iterdir())) == 2
    sizes = counting(monkeypatch)
    go(table, tmp_path)
    assert sizes[0] == 4
    assert essence(tmp_path) == essence(done)
    assert not list((tmp_path / "runs/fleets").iterdir())


def test_a_killed_process_loses_one_checkpoint_at_most_and_ends_the_same(tmp_path, monkeypatch):
    fuse, journal = tmp_path / "fuse", tmp_path / "journal.txt"
    command = [sys.executable, "-m", "pstn", "reproduce", "toy/fused", "--device", "cpu", "--experiments", TRIALS]
    command += ["--runs", tmp_path / "runs", "--results", tmp_path / "results"]
    environment = {**os.environ, "TOY_FUSE": str(fuse), "TOY_JOURNAL": str(journal), "OMP_NUM_THREADS": "1"}

    def process():
        ran = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, timeout=200)
        return ran.returncode, ran.stderr

    assert process()[0] == -signal.SIGKILL
    assert not essence(tmp_path, "toy/fused")
    assert process() == (0, "")
    begun = [int(line.split()[-1]) for line in journal.read_text().splitlines()]
    assert begun == [0, 64, 0, 0], "the first fleet goes on where its checkpoint is"
    monkeypatch.setenv("TOY_FUSE", str(fuse))  # it has blown: a run that nobody disturbs
    go(find("toy/fused", TRIALS), tmp_path / "whole")
    assert essence(tmp_path, "toy/fused") == essence(tmp_path / "whole", "toy/fused")
