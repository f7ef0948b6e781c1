"""Several processes do what one does, to the last digit; one that dies or fails costs its own fleet alone."""

import atexit
import multiprocessing
import os
import queue
import re
import signal
import stat
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from torch import nn
from toy_runs import TRIALS, essence, go
from trials.shared import TRAIN, Few

from pstn import STN
from pstn.experiment import Split, Table, find, share
from pstn.experiment.parcel import Parcel
from pstn.experiment.work import Job
from pstn.experiment.workers import Processes, Reported, _begin


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    """The table with the fuse, run by one process that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "blown").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_FUSE", str(folder / "blown"))
        go("toy/fused", folder)
    return folder


def test_results_are_those_of_one_process(finished, tmp_path):
    go("toy/few_digits", tmp_path, jobs=2, rows=["cnn", "frozen"])  # one of them starts from the other
    found, expected = (essence(folder, "toy/few_digits") for folder in (tmp_path, finished))
    assert found == {key: record for key, record in expected.items() if record["row"] in ("cnn", "frozen")}


def test_a_process_that_is_killed_costs_its_own_fleet_alone(fused, tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_FUSE", str(tmp_path / "fuse"))
    monkeypatch.setenv("TOY_JOURNAL", str(tmp_path / "journal.txt"))
    with pytest.raises(ChildProcessError, match=r"the process that was training 2 of .* died"):
        go("toy/fused", tmp_path, jobs=2)
    assert (tmp_path / "fuse").exists()
    # six networks by twos; another fleet may have been at the fuse when it blew
    assert len(essence(tmp_path, "toy/fused")) >= 2
    go("toy/fused", tmp_path)
    begun = [int(line.split()[-1]) for line in (tmp_path / "journal.txt").read_text().splitlines()]
    assert 64 in begun, "from its checkpoint on"
    assert essence(tmp_path, "toy/fused") == essence(fused, "toy/fused")


def test_ctrl_c_is_passed_on_and_what_was_begun_is_saved(fused, tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_FUSE", str(fused / "blown"))
    monkeypatch.setenv("TOY_STOP", str(tmp_path / "stop"))
    sent, tell = [], Processes._signal
    monkeypatch.setattr(Processes, "_signal", lambda self, number: (sent.append(number), tell(self, number)))
    with pytest.raises(KeyboardInterrupt, match="goes on from there"):
        go("toy/fused", tmp_path, jobs=2)
    assert sent == [signal.SIGTERM], "they end by themselves; killed, they would leave semaphores behind"
    assert list(tmp_path.glob("runs/fleets/*/*checkpoint*"))
    assert len(essence(tmp_path, "toy/fused")) < 6
    go("toy/fused", tmp_path)
    assert essence(tmp_path, "toy/fused") == essence(fused, "toy/fused")


def test_what_fails_is_told_and_the_rest_is_done(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setenv("TOY_TROUBLE", "1")
        with pytest.raises(Exception, match=r"device-side|strange"):
            go("toy/troubled", tmp_path, jobs=2, console=Console(width=200))
    told = capsys.readouterr().out
    assert re.search("training 2 of gpu failed: .*device-side", told)
    assert re.search("training 2 of odd failed: RuntimeError.*strange", told), "an error that cannot travel, in words"
    assert {r["row"] for r in essence(tmp_path, "toy/troubled").values()} == {"good"}


class Large:
    """Digits of four times the pixels."""

    def __call__(self, fold):
        return Split(*(replace(part, x=part.x.repeat(1, 1, 2, 2)) for part in Few(40)(fold)))


@pytest.fixture
def begun(monkeypatch):
    """The names of rows in the order in which they would be begun, if there were workers enough."""
    names = []

    class Crew:
        at_once = 9

        def start(self, job, table):
            names.append(job.networks[0].row.name)

        def finish(self):
            raise KeyboardInterrupt

    monkeypatch.setattr("pstn.experiment.engine.Processes", lambda *options: nullcontext(Crew()))
    return names


def test_what_takes_longest_is_begun_first(tmp_path, begun):
    """Steps of a large fleet take longer."""
    base = find("toy/few_digits", TRIALS).row("cnn")  # 2 networks, 6 steps of 8 digits
    rows = {  # the costs in steps of those
        "steps": replace(base, train=replace(TRAIN, steps=7)),  # 7
        "digits a step": replace(base, train=replace(TRAIN, batch_size=11)),  # 7.04
        "networks": replace(base, folds=3),  # 7.3
        "samples": replace(base, train=replace(TRAIN, samples=2)),  # 8.5
        "all digits a step": replace(base, train=replace(TRAIN, steps=4, batch_size=400)),  # 8.9: there are but 40
        "pixels": replace(base, data=Large()),  # 12
        "parameters": replace(base, model=lambda: STN(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))),  # 17
    }
    with pytest.raises(KeyboardInterrupt):
        go(Table("toy/unlike", "", [replace(row, name=name) for name, row in rows.items()]), tmp_path, jobs=2)
    assert begun == [*rows][::-1]


def test_what_takes_longest_may_wait_for_what_is_short(tmp_path, begun):
    """First a classifier that a long row needs, then settings of which the chosen one takes long to train."""
    table = find("toy/few_digits", TRIALS)
    cnn, frozen, pstn = (table.row(name) for name in ("cnn", "frozen", "pstn"))
    rows = [
        replace(cnn, name="long", train=replace(TRAIN, steps=30)),
        replace(frozen, train=replace(TRAIN, steps=300)),
        replace(pstn, train=replace(TRAIN, steps=None, epochs=20), trial_epochs=1),
    ]
    with pytest.raises(KeyboardInterrupt):
        go(replace(table, rows=rows, claims=(), figures={}, quick=()), tmp_path, jobs=2)
    assert list(dict.fromkeys(begun)) == ["cnn", "pstn-trials", "long"]


def test_a_table_without_a_file_cannot_travel(tmp_path):
    loose = Table("toy/loose", "", find("toy/few_digits", TRIALS).rows)
    with pytest.raises(ValueError, match="is in no file"):
        go(loose, tmp_path, jobs=2)


def test_what_a_process_shows_is_shown_here():
    progress, reports = Progress(console=Console(quiet=True)), queue.SimpleQueue()
    workers = Processes(3, False, "cpu", {}, progress)
    workers.reports = reports
    displays = [Reported(seat, reports) for seat in range(2)]
    tasks = [each.add_task(f"fleet {i}", total=9, completed=0, status="") for i, each in enumerate(displays)]
    displays[1].update(tasks[1], completed=5, status="well", refresh=True)
    workers._show()
    assert [(t.description, t.completed, t.fields["status"]) for t in progress.tasks] == [
        ("fleet 0", 0, ""), ("fleet 1", 5, "well")
    ]  # fmt: skip
    displays[0].remove_task(tasks[0])
    workers._show()
    assert [t.description for t in progress.tasks] == ["fleet 1"]


def test_nobody_waits_for_a_display_that_nobody_looks_at():
    with Processes(2, False, "cpu", {}, Progress(disable=True)) as workers:
        display = Reported(0, workers.reports)
        for step in range(3000):  # more than a pipe holds
            display.update(0, completed=step, status="x" * 50)
        workers.reports.cancel_join_thread()


def program(folder, body):
    """A stand-in for the service's own program."""
    path = folder / "nvidia-cuda-mps-control"
    path.write_text(f"#!{sys.executable}\nimport os, sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)


NOTE = """
with open(os.environ["NOTES"], "a") as file:
    file.write((" ".join(sys.argv[1:]) or sys.stdin.read().strip()) + ";")
"""


@pytest.mark.parametrize("tried", ["pass", "raise SystemExit(1)"])
def test_a_gpu_is_shared_where_that_works(tmp_path, monkeypatch, tried):
    program(tmp_path, NOTE)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setattr(share, "TRIED", tried)
    works, before = tried == "pass", dict(os.environ)
    told = nullcontext() if works else pytest.warns(UserWarning, match="jobs take turns")
    with told, share.shared_gpu() as shared:
        assert shared is works
        assert ("CUDA_MPS_PIPE_DIRECTORY" in os.environ) is works
        if works:
            folder = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]).parent
            assert os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(share.SHARE)
    assert dict(os.environ) == before
    assert (tmp_path / "notes").read_text() == "-d;quit;"
    assert not works or not folder.exists()


def test_a_service_of_somebody_else_is_left_alone(tmp_path, monkeypatch):
    program(tmp_path, "raise SystemExit('not to be called')")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "theirs")
    with share.shared_gpu() as shared:
        assert shared
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "theirs"
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY")
    monkeypatch.setenv("PATH", "")
    with share.shared_gpu() as shared:
        assert not shared, "there is no such program"


def idle(ready, note):
    """Begin as a process does that is given jobs, and have none; what is to be given back leaves a note when it is."""
    _begin(0, None, None)
    atexit.register(note.touch)
    ready.set()
    signal.pause()


def test_a_process_without_a_job_cleans_up_when_it_is_told_to_end(tmp_path):
    """Or Python complains of semaphores that were never given back."""
    context = multiprocessing.get_context("spawn")
    ready, note = context.Event(), tmp_path / "note"
    process = context.Process(target=idle, args=(ready, note))
    process.start()
    assert ready.wait(60)
    process.terminate()
    process.join(60)
    assert process.exitcode == 128 + signal.SIGTERM
    assert note.exists()


@pytest.mark.parametrize("others", [None, 2])
def test_those_who_share_a_gpu_share_the_cores(others):
    """Or each would compile in as many processes as there are cores."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_begin, initargs=(0, None, others)) as pool:
        compile_in = pool.submit(os.getenv, "TORCHINDUCTOR_COMPILE_THREADS").result()
        threads = pool.submit(torch.get_num_threads).result()
    assert compile_in == (None if others is None else "1")
    assert others is None or threads == max(1, (os.cpu_count() or 1) // others)


@pytest.mark.parametrize(("others", "expected"), [(2, ["0", "1"]), (None, [None, None])])
def test_on_a_shared_gpu_the_first_process_goes_before_the_others(others, expected):
    """It is given what takes longest, which all others would wait for in the end."""
    context, found = multiprocessing.get_context("spawn"), []
    for seat in range(2):
        with ProcessPoolExecutor(1, context, initializer=_begin, initargs=(seat, None, others)) as pool:
            found.append(pool.submit(os.getenv, "CUDA_MPS_CLIENT_PRIORITY").result())
    assert found == expected


@pytest.mark.parametrize(("placed", "expected"), [("cpu", 3), ("cuda", 1)])
def test_a_job_has_its_own_threads_on_a_cpu_alone(monkeypatch, placed, expected):
    """There the last digits depend on them. Beside a GPU, sixteen processes of sixteen threads do nothing but wait."""
    monkeypatch.setattr("pstn.experiment.parcel.place", lambda device: placed)
    monkeypatch.setattr(Job, "do", lambda *options: torch.get_num_threads())
    parcel = Parcel(str(TRIALS), "toy/few_digits", False, "train", (), "runs", "auto", {}, 3)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert parcel.do() == expected
    finally:
        torch.set_num_threads(before)
