"""fit, predict, report and doctor from the command line: what they write, and what they say when they cannot."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from homemade import bars, series_csv
from PIL import Image

from pstn.__main__ import main
from pstn.apply import load, measure
from pstn.apply.files import ABOUT
from pstn.apply.fit import unseen
from pstn.apply.pictures import _series, confusion, looked, write_png
from pstn.apply.read import read


def call(capsys, *args):
    try:
        code = main([str(arg) for arg in args])
    except SystemExit as left:
        code = left.code
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def width(file):
    with Image.open(file) as image:
        return image.size[0]


def test_fit_says_what_it_understood_and_writes_a_folder(capsys, pictures, model):
    assert {file.name for file in model.iterdir()} >= {"model.safetensors", "model.json", "card.md", "log.jsonl"}
    assert not (model / "checkpoint.safetensors").exists()
    about = json.loads((model / ABOUT).read_text())
    assert about["finished"]
    assert about["classes"] == ["lying", "standing"]
    assert about["measured"]["examples"] == 8
    assert about["measured"]["accuracy"] > 0.9
    assert {row["unit"] for row in about["measured"]["strength"]} == {"degrees", "pixels", "%"}
    card = (model / "card.md").read_text()
    assert "| ECE |" in card
    assert "rotation | ±" in card


def test_series_from_a_csv(capsys, tmp_path):
    data = series_csv(tmp_path / "beats.csv")
    code, out, err = call(capsys, "fit", data, "--out", tmp_path / "m", "--time", "0.2s")
    assert code == 0, err
    for words in (
        "beats: 19 series of 40 points",
        "column 'class'",
        "to measure on: bell",
        "Takes about",
        "more --time",
        "stretch: ±",
    ):
        assert words in out
    code, out, _ = call(capsys, "predict", tmp_path / "m", data, "--jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert len(rows) == 24
    assert set(rows[0]) == {"file", "class", "probability", "entropy", "mutual_information", "probabilities"}
    assert call(capsys, "predict", tmp_path / "m", data, "--picture", tmp_path / "p.png")[0] == 0
    assert width(tmp_path / "p.png") > 500


def test_series_far_from_zero(capsys, tmp_path):
    """A counter of seconds, or a pressure: what is to be seen is a small part of the values."""
    x, y = read(series_csv(tmp_path / "near.csv")).data.x.numpy(), np.arange(24) % 2
    np.savez(tmp_path / "far.npz", x=x[:, 0] + 1.7e9 + y[:, None], y=y)
    code, _, err = call(capsys, "fit", tmp_path / "far.npz", "--out", tmp_path / "m", "--time", "2s")
    assert code == 0, err
    np.savetxt(tmp_path / "far.csv", np.column_stack([y, x[:, 0] + 1.7e9 + y[:, None]]), fmt="%.4f", delimiter=",")
    asked = [call(capsys, "predict", tmp_path / "m", tmp_path / f"far.{k}", "--csv")[1] for k in ("npz", "csv")]
    assert asked[0].replace("npz", "csv") == asked[1]
    trained, data = load(tmp_path / "m"), read(tmp_path / "far.csv").data
    assert float((trained.predict(data.x).labels == data.y).float().mean()) > 0.9
    assert "measured on the 5 of its 24 examples" in call(capsys, "report", tmp_path / "m", tmp_path / "far.npz")[1]


def test_predict_is_the_same_in_all_its_forms(capsys, pictures, model, tmp_path):
    files = sorted((pictures / "lying").iterdir())[:3]
    _, lines, _ = call(capsys, "predict", model, *files, "--jsonl")
    rows = [json.loads(line) for line in lines.splitlines()]
    assert [row["file"] for row in rows] == [str(file) for file in files]
    assert all(abs(sum(row["probabilities"].values()) - 1) < 1e-4 for row in rows)
    assert all(row["probability"] == row["probabilities"][row["class"]] for row in rows)
    _, sheet, _ = call(capsys, "predict", model, *files, "--csv")
    header, first, *_ = (line.split(",") for line in sheet.splitlines())
    assert header[:2] == ["file", "class"]
    assert header[-2:] == ["p(lying)", "p(standing)"]
    assert float(first[2]) == rows[0]["probability"]
    _, alone, _ = call(capsys, "predict", model, files[2], "--jsonl")
    assert json.loads(alone)["entropy"] == pytest.approx(rows[2]["entropy"], abs=2e-6), "whatever its neighbours"
    _, table, _ = call(capsys, "predict", model, *files)
    assert "mutual information" in table
    assert "lying" in table
    code, _, err = call(capsys, "predict", model, pictures, "--picture", tmp_path / "new" / "p.png")
    assert code == 0
    assert "p.png, the first 12 of 40" in err
    assert width(tmp_path / "new" / "p.png") > 500


def test_a_terminal_shows_what_is_read(capsys, monkeypatch, pictures, model):
    _, _, err = call(capsys, "predict", model, pictures / "lying")
    assert err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a terminal does
    _, _, err = call(capsys, "predict", model, pictures / "lying")
    assert f"reading {pictures / 'lying'}" in re.sub(r"\x1b\[[\d;?]*[a-zA-Z]|\n", "", err)


def test_files_with_brackets_in_their_names(capsys, pictures, model, tmp_path):
    data = shutil.copytree(pictures, tmp_path / "bars [copy]")
    code, out, _ = call(capsys, "report", model, data, "--out", tmp_path / "r [bold].html")
    assert code == 0
    assert "trained on bars [copy]: measured" in out
    assert "r [bold].html" in out
    code, _, err = call(capsys, "predict", model, data / "lying" / "0.png", "--picture", tmp_path / "p [" / "b].png")
    assert (code, err.strip()) == (0, f"wrote {tmp_path}/p [/b].png")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux alone")
def test_names_in_another_encoding(pictures, model, tmp_path):
    data = shutil.copytree(pictures, tmp_path / "bars")
    odd = os.fsdecode(b"caf\xe9")
    (data / "lying" / "0.png").rename(data / "lying" / f"{odd}.png")

    def pstn(*args):
        strict = {**os.environ, "PYTHONIOENCODING": "ascii:strict", "OMP_NUM_THREADS": "1"}
        return subprocess.run([sys.executable, "-m", "pstn", *args], capture_output=True, env=strict)

    said = pstn("predict", model, data / "lying", "--jsonl")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout.splitlines()[-1])["file"] == str(data / "lying" / f"{odd}.png")
    assert pstn("predict", model, data / "lying").returncode == 0
    (data / "lying").rename(data / odd)
    said = pstn("fit", data, "--out", tmp_path / "m", "--time", "1s")
    assert said.returncode == 2
    assert b"is not UTF-8; rename it" in said.stderr


def test_classes_with_dollars_in_their_names_are_no_formulas(capsys, pictures, model, tmp_path):
    data, priced = shutil.copytree(pictures, tmp_path / "bars"), shutil.copytree(model, tmp_path / "priced")
    (data / "lying").rename(data / r"$\5 to $9")
    about = json.loads((priced / ABOUT).read_text())
    (priced / ABOUT).write_text(json.dumps({**about, "classes": [r"$\5 to $9", "standing"]}))
    code, _, err = call(capsys, "report", priced, data, "--out", tmp_path / "r.html")
    assert code == 0, err
    series = torch.zeros(1, 1, 4)
    write_png(tmp_path / "p.png", lambda: _series(series, None, [r"$\5 to $9"]))
    assert width(tmp_path / "p.png") > 500


def test_long_names_leave_pictures_their_room_and_have_their_own(model):
    trained, name = load(model), "siphonophore calycophoran sphaeronectes young"
    rows, table = (
        looked(trained, torch.zeros(2, *trained.shape), [f"{name}: {name}"] * 2),
        confusion(torch.eye(2), [name] * 2),
    )
    for figure in (rows, table):
        figure.draw_without_rendering()
    image, warped = (rows.axes[i].get_window_extent() for i in (0, 1))
    assert warped.x0 - image.x1 < image.width / 4
    assert table.axes[0].get_tightbbox().y0 >= 0


def test_predict_into_a_pipe_that_closes(pictures, model):
    command = f"{sys.executable} -m pstn predict {model} {pictures} --jsonl --samples 1"
    done = subprocess.run(f"{command} | true", shell=True, capture_output=True, text=True)
    assert done.stderr == ""


def test_report_is_one_page(capsys, pictures, model, tmp_path):
    code, _, err = call(capsys, "report", model, pictures, "--out", tmp_path / "r.html")
    assert code == 0, err
    html = (tmp_path / "r.html").read_text()
    for words in ("right eight times in ten", "taken for what", "Least sure", "expects to vary", "rotation", "degrees"):
        assert words in html
    assert "http" not in html.partition("<body>")[2].replace("http://www.w3.org", "")


def test_a_report_says_what_the_doctor_says(capsys, pictures, model, tmp_path):
    short = shutil.copytree(model, tmp_path / "short")
    about = json.loads((short / ABOUT).read_text())
    about["config"]["steps"], about["measured"]["train_accuracy"] = 10, 0.5
    (short / ABOUT).write_text(json.dumps(about))
    _, said, _ = call(capsys, "doctor", short)
    assert call(capsys, "report", short, pictures, "--out", tmp_path / "r.html")[0] == 0
    found = [line.strip() for line in said.splitlines() if "of the steps that so many examples ask for" in line]
    assert len(found) == 1
    assert found[0] in (tmp_path / "r.html").read_text()


def test_a_report_on_the_training_data_is_about_what_was_set_apart(capsys, pictures, model, tmp_path):
    code, out, err = call(capsys, "report", model, pictures, "--out", tmp_path / "r.html")
    assert code == 0, err
    assert "The model was trained on bars: measured on the 8 of its 40 examples that were set apart." in out
    assert "Measured on 8 labelled images" in (tmp_path / "r.html").read_text()
    trained = load(model)
    measured = measure.measure(trained, unseen(trained, read(pictures).data))
    assert measured["nll"] == pytest.approx(trained.measured["nll"], abs=1e-4), "the same eight as in training"
    code, out, _ = call(capsys, "report", model, bars(tmp_path / "new", seed=9), "--out", tmp_path / "r.html")
    assert "trained on" not in out
    assert "Measured on 16 labelled images" in (tmp_path / "r.html").read_text()


def test_a_report_says_which_classes_the_model_does_not_know(capsys, model, tmp_path):
    folder = bars(tmp_path / "new", seed=9)
    (folder / "lying").rename(folder / "Lying")
    code, _, err = call(capsys, "report", model, folder, "--out", tmp_path / "r.html")
    assert code == 0, err
    assert "Measured on 8 labelled images of new without Lying: " in (tmp_path / "r.html").read_text()


def test_doctor_is_content_with_a_good_model_and_not_with_a_bad_one(capsys, pictures, model, tmp_path):
    code, out, err = call(capsys, "doctor", model, "--data", pictures)
    assert code == 0, out + err
    ill = shutil.copytree(model, tmp_path / "ill")
    about = json.loads((ill / ABOUT).read_text())
    about["measured"] |= {"spread": 5.0, "lost": 0.9, "ece": 0.4, "confidence": 0.99, "accuracy": 0.6, "examples": 400}
    (ill / ABOUT).write_text(json.dumps(about))
    code, out, _ = call(capsys, "doctor", ill)
    assert code == 1
    for words in ("exploding spread", "leave the frame", "over-strong classifier", "miscalibration", "Lower kl_weight"):
        assert words in out
    (ill / ABOUT).unlink()
    code, out, _ = call(capsys, "doctor", ill)
    assert code == 0
    assert "only the log was looked at" in out


BAD = {
    "no model": (("predict", "{tmp}", "{file}"), "is not a model folder: it has no model.json"),
    "nothing there": (("report", "{tmp}/none", "{data}"), "does not exist"),
    "no run": (("doctor", "{tmp}"), "expected a folder that pstn fit"),
    "no file": (("predict", "{model}", "{tmp}/none.png"), "none.png does not exist"),
    "not an image": (("predict", "{model}", "{tmp}/words.png"), "cannot be read as an image"),
    "series for pictures": (("predict", "{model}", "{tmp}/a.csv"), "trained on images"),
    "empty data": (("fit", "{tmp}/empty"), "holds no folders"),
    "finished": (("fit", "{data}", "--out", "{model}"), "holds a finished model; --again"),
    "out is a file": (("fit", "{data}", "--out", "{tmp}/a.csv"), "is a file; expected a folder"),
    "out in the data": (("fit", "{tmp}/others", "--out", "{tmp}/others/models/m"), "would be taken for a class; --out"),
    "no such column": (("fit", "{tmp}/a.csv", "--label", "colour"), "there is no column 'colour'"),
    "other classes": (("report", "{model}", "{tmp}/others"), "expected some of lying, standing"),
    "no samples": (("report", "{model}", "{data}", "--samples", "0"), "samples is 0; expected at least 1"),
    "bad time": (("fit", "{data}", "--time", "soon"), "expected such as 90s"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_status_2(capsys, pictures, model, tmp_path, monkeypatch, case):
    args, words = case
    monkeypatch.chdir(tmp_path)
    series_csv(tmp_path / "a.csv")
    (tmp_path / "words.png").write_text("words")
    (tmp_path / "empty").mkdir()
    for name in ("cat", "dog"):
        shutil.copytree(pictures / "lying", tmp_path / "others" / name)
    before = {file: file.read_bytes() for file in model.iterdir()}
    places = {"tmp": tmp_path, "model": model, "data": pictures, "file": pictures / "lying" / "0.png"}
    code, _, err = call(capsys, *(arg.format(**places) for arg in args))
    assert code == 2
    assert words in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err
    assert {file: file.read_bytes() for file in model.iterdir()} == before, "nothing is lost"


@pytest.mark.parametrize("hurt", ["weights", "json", "unfinished", "foreign", "newer"])
def test_a_damaged_model_is_said_to_be(capsys, pictures, model, tmp_path, hurt):
    ill = shutil.copytree(model, tmp_path / "ill")
    about = json.loads((ill / ABOUT).read_text())
    if hurt == "weights":
        (ill / "model.safetensors").write_bytes((ill / "model.safetensors").read_bytes()[:-7])
    elif hurt == "json":
        (ill / ABOUT).write_text("{")
    elif hurt == "foreign":
        (ill / ABOUT).write_text('{"model_type": "bert"}')
    else:
        change = {"finished": False} if hurt == "unfinished" else {"format": 99}
        (ill / ABOUT).write_text(json.dumps(about | change))
    code, _, err = call(capsys, "predict", ill, pictures / "lying" / "0.png")
    assert code == 2
    words = {"weights": "damaged", "json": "damaged", "unfinished": "not finished", "foreign": "not pstn's"}
    assert words.get(hurt, "has format 99") in " ".join(err.split())


@pytest.mark.parametrize("size", [(20, 1500), (60, 400), (150, 160)])
def test_large_images_and_strips_are_made_small(capsys, tmp_path, size):
    x = np.zeros((12, *size), dtype=np.uint8)
    y = np.arange(12) % 2
    for image, label in zip(x, y, strict=True):
        image[size[0] // 2 * label :][: size[0] // 2] = 255
    np.savez(tmp_path / "a.npz", x=x, y=y)
    code, out, err = call(capsys, "fit", tmp_path / "a.npz", "--out", tmp_path / "m", "--time", "1s")
    assert code == 0, err
    shape = load(tmp_path / "m").shape
    assert 16 <= shape[1] <= shape[2] <= 128
    assert f"Resized to {shape[1]}×{shape[2]} pixels" in out
    assert all(call(capsys, command, tmp_path / "m", tmp_path / "a.npz")[0] == 0 for command in ("predict", "report"))


def test_the_time_is_kept_by_large_inputs(capsys, monkeypatch, tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (8, 160, 160), dtype=np.uint8)
    np.savez(tmp_path / "large.npz", x=x, y=np.arange(8) % 2)
    timed = []
    monkeypatch.setattr("pstn.recipe.affordable", lambda model, data, *rest: timed.append(data.x.shape[1:]) or 1)
    assert call(capsys, "fit", tmp_path / "large.npz", "--out", tmp_path / "m", "--time", "1s", "--size", "160")[0] == 0
    assert timed == [load(tmp_path / "m").shape]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"classes": ["lying"]}, "it has 1 classes, and its network tells 2 apart"),
        ({"shape": [3, 16, 16]}, "does not describe a model"),
        ({"shape": [16]}, "its inputs are images of shape (16,)"),
        ({"data": {}}, "its inputs are None of shape (1, 16, 16)"),
        ({"measured": None}, "measured should be a mapping"),
    ],
)
def test_a_model_whose_parts_do_not_fit_is_refused(capsys, pictures, model, tmp_path, change, words):
    ill = shutil.copytree(model, tmp_path / "ill")
    about = json.loads((ill / ABOUT).read_text())
    (ill / ABOUT).write_text(json.dumps(about | change))
    for command in ("predict", "report"):
        code, _, err = call(capsys, command, ill, pictures)
        assert code == 2
        assert words in err


@pytest.mark.parametrize("text", ['{"ep', "[1]"])
def test_a_damaged_log_is_said_to_be(capsys, pictures, model, tmp_path, text):
    ill = shutil.copytree(model, tmp_path / "ill")
    (ill / "log.jsonl").write_text(text)
    for command in (("report", ill, pictures), ("doctor", ill)):
        code, _, err = call(capsys, *command)
        assert code == 2
        assert "log.jsonl is" in err


def test_a_split_of_few_examples(capsys, tmp_path):
    bars(tmp_path / "b", per_class=3)
    for i in (1, 2):
        (tmp_path / "b" / "lying" / f"{i}.png").unlink()
    code, _, err = call(capsys, "fit", tmp_path / "b", "--out", tmp_path / "m")
    assert code == 2
    assert "one example of lying" in err
    assert not (tmp_path / "m").exists()


def test_after_ctrl_c_the_same_command_goes_on(tmp_path):
    data, out = bars(tmp_path / "bars"), tmp_path / "m"
    command = [sys.executable, "-m", "pstn", "fit", str(data), "--out", str(out), "--time", "4s"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    log, deadline = out / "log.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline and (not log.exists() or log.read_text().count("\n") < 5):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    begun, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Nothing is lost; to go on, run the same command again" in err
    assert (out / "checkpoint.safetensors").exists()
    assert not load(out, weights=False).finished
    seen = log.read_text().count("\n")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Goes on" in done.stdout
    begun = [line for line in begun.splitlines() if " steps of " in line]
    assert [line for line in done.stdout.splitlines() if " steps of " in line] == begun, (
        "what was begun is gone on with"
    )
    assert load(out).finished
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) > seen
    assert [line["epoch"] for line in lines[1:]] == list(range(1, len(lines))), "every epoch once"


def test_ctrl_c_again_stops_at_once(capsys, pictures, monkeypatch, tmp_path):
    def train(*args, **settings):
        raise KeyboardInterrupt("stopped at once; the last checkpoint stands")

    monkeypatch.setattr("pstn.apply.fit.train", train)
    code, _, err = call(capsys, "fit", pictures, "--out", tmp_path / "m", "--time", "1s")
    assert code == 130
    assert "the last checkpoint stands; to go on, run the same command again" in err


def test_ctrl_c_before_anything_began(capsys, monkeypatch, pictures):
    def run(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("pstn.apply.command.run", run)
    assert call(capsys, "fit", pictures) == (130, "", "")


def test_an_unfinished_run_goes_on_with_its_own_data_alone(capsys, monkeypatch, pictures, tmp_path):
    def train(*args, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("pstn.apply.fit.train", train)
    assert call(capsys, "fit", pictures, "--out", tmp_path / "m", "--time", "1s")[0] == 130
    before = (tmp_path / "m" / ABOUT).read_text()
    for change in ((bars(tmp_path / "few"),), (pictures, "--validation", "0.4"), (pictures, "--size", "12")):
        code, out, err = call(capsys, "fit", *change, "--out", tmp_path / "m", "--time", "1s")
        assert (code, out) == (2, "")
        assert "holds a run on other data, or on another part of it; --again" in err
    assert (tmp_path / "m" / ABOUT).read_text() == before
    assert call(capsys, "fit", pictures, "--out", tmp_path / "m", "--time", "1s")[0] == 130, "goes on"


@pytest.mark.parametrize("when", ["in training", "at the end"])
def test_a_full_disk_loses_nothing(capsys, monkeypatch, tmp_path, when):
    data, out = bars(tmp_path / "bars"), tmp_path / "m"
    command = ("fit", data, "--out", out, "--time", "1s")
    where = {"in training": "pstn.train.checkpoint.write", "at the end": "pstn.apply.files.save_model"}[when]

    def full(path, *rest):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(where, full)
        code, _, err = call(capsys, *command)
    assert code == 1
    assert "No space left on device" in err
    assert "make room and run the same command again" in " ".join(err.split())
    assert (out / "checkpoint.safetensors").exists() == (when == "at the end")
    code, said, err = call(capsys, *command)
    assert code == 0, err
    assert "Goes on" in said
    assert load(out).finished


@pytest.mark.parametrize("command", ["report", "predict"])
def test_without_matplotlib_the_extra_is_named(capsys, monkeypatch, pictures, model, tmp_path, command):
    monkeypatch.setattr("pstn.apply.pictures.find_spec", lambda name: None)
    option = ("--out", tmp_path / "r.html") if command == "report" else ("--picture", tmp_path / "p.png")
    code, out, err = call(capsys, command, model, pictures, *option)
    assert (code, out) == (1, "")
    assert "pip install 'pstn[plot]'" in err
