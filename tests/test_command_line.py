"""The command line: help that helps, errors without tracebacks, honest exit codes."""

import subprocess
import sys
from concurrent.futures import BrokenExecutor

import pytest

import pstn
from pstn.__main__ import main
from pstn.train import CheckpointError


def call(capsys, *args):
    """(exit code, output, errors) of a command, in this process."""
    try:
        code = main(list(args))
    except SystemExit as left:
        code = left.code
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_help_names_the_commands(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    for words in ("demo", "info", "Train five kinds of network", "--version", "COMMAND --help"):
        assert words in out


def test_without_a_command_there_is_help(capsys):
    assert call(capsys)[:2] == call(capsys, "--help")[:2]


def test_help_of_the_demo_explains_every_option(capsys):
    code, out, _ = call(capsys, "demo", "--help")
    assert code == 0
    for option in (
        *("seeds", "train", "validation", "test", "steps", "batch-size", "samples", "spreads", "kl-weights", "output"),
        *("runs", "workers", "seed", "quick", "picture"),
    ):
        assert f"--{option} " in out
    assert "None" not in out.replace("(default: None)", "")


def test_version(capsys):
    assert call(capsys, "--version") == (0, f"pstn {pstn.__version__}\n", "")


def test_info_says_what_there_is(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PSTN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out, _ = call(capsys, "info")
    assert code == 0
    for words in (f"pstn {pstn.__version__}", "torch", "cpu", "digits", "CBF (generated)", "PSTN_DATA"):
        assert words in out
    assert "MNIST" not in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["dmo"], "Available subcommands: demo, info"),
        (["demo", "--seed", "x"], "--seed"),
        (["demo", "--stepss", "3"], "--steps"),
        (["demo", "--train", "7"], "expected a multiple of 10"),
    ],
)
def test_a_wrong_command_line_is_explained(capsys, args, words):
    code, _, err = call(capsys, *args)
    assert code == 2
    assert words in err


def test_a_missing_extra_is_named_without_a_traceback(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = call(capsys, "demo")
    assert code == 1
    assert "pip install 'pstn[demo]'" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (BrokenExecutor(), 1, "fewer --workers"),
        (FloatingPointError("the loss became nan"), 1, "the loss became nan"),
        (CheckpointError("runs/[a] is damaged"), 1, "runs/[a] is damaged"),
        (KeyboardInterrupt(), 130, "pstn demo --runs 'my runs'"),
    ],
)
def test_what_goes_wrong_is_said_without_a_traceback(capsys, monkeypatch, error, code, words):
    def run(*args):
        raise error

    monkeypatch.setattr("pstn.demo.command.run", run)
    found, _, err = call(capsys, "demo", "--runs", "my runs")
    assert found == code
    assert words in err


def test_a_bug_is_not_hidden(capsys, monkeypatch):
    def run(*args):
        raise KeyError("nll")

    monkeypatch.setattr("pstn.demo.command.run", run)
    with pytest.raises(KeyError):
        call(capsys, "demo")


def test_a_folder_that_cannot_be_written_is_named(capsys, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    code, _, err = call(capsys, "demo", "--quick", "--output", str(blocked), "--runs", str(tmp_path / "runs"))
    assert code == 1
    assert str(blocked) in err
    assert not (tmp_path / "runs").exists(), "it is found out before anything is trained"


def test_help_does_not_wait_for_heavy_imports():
    code = """
import sys
from pstn.__main__ import main
try:
    main(["--help"])
except SystemExit:
    pass
heavy = {"torch", "numpy", "lightning_fabric", "matplotlib", "pstn.demo.command"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_it_runs_as_a_module():
    ran = subprocess.run([sys.executable, "-m", "pstn", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"pstn {pstn.__version__}\n"


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -m pstn reproduce --help | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert "usage" in done.stdout
    assert "Traceback" not in done.stderr
