"""``pstn reproduce`` and the folder of experiments."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pstn.__main__ import main
from pstn.experiment import Experiment, MissingTable, Results, Table, find, names, run
from pstn.experiment.command import listing, remarks
from pstn.experiment.network import _fingerprints, _split, plain, recipe
from pstn.experiment.plan import Plan
from pstn.experiment.work import _held

TRIALS = Path(__file__).parent / "trials"


def call(capsys, *args):
    try:
        code = main(["reproduce", *map(str, args)])
    except SystemExit as left:
        code = left.code
    seen = capsys.readouterr()
    return code, seen.out, seen.err


@pytest.mark.parametrize("id", names())
def test_the_papers_tables_are_sound(id):
    """The rows build, and no two stand in one cell of the comparison."""
    table = find(id)
    assert table.id == id
    for row in table.sliced().rows:
        assert recipe(row, plain(row.settings()[0]))
    published = [(row.line, row.column) for row in table.rows if row.column != "extra"]
    assert len(set(published)) == len(published)


@pytest.mark.parametrize(
    ("id", "row", "count"),
    [
        ("pstn22/table2", "cnn-100", 28_086),
        ("pstn22/table2", "stn-100", 28_726),
        ("pstn22/table2", "pstn-100", 26_662),
        ("pstn20/table1", "pstn-10", 26_662),
        ("pstn20/table1", "diffeo-stn-10", 43_754),
        ("pstn20/table1", "diffeo-pstn-10", 44_614),
    ],
)
def test_networks_have_the_papers_numbers_of_parameters(id, row, count):
    row = find(id).row(row)
    assert sum(p.numel() for p in row.build(row.settings()[0]).parameters()) == count


def test_list_shows_every_table_with_its_state(capsys, done):
    code, out, _ = call(capsys, "--list", "--experiments", TRIALS, "--results", done / "results")
    assert code == 0
    for words in ("toy/few_digits", "A few digits", "full", "5/5", "toy/fused", "0/2"):
        assert words in out


def test_list_counts_the_rows_that_the_comparison_shows(table, tmp_path, monkeypatch):
    """Whatever name their networks are recorded under; not the rows of which folds are missing."""
    row = table.row("fast")
    one, same, longer = (replace(row, name=name, column="extra") for name in ("one", "same", "longer"))
    run(Table("toy/both", "", [one, same]), device="cpu", runs=tmp_path / "runs", results=tmp_path)
    assert len({record["row"] for record in Results(tmp_path / "toy/both.jsonl").records.values()}) == 1
    monkeypatch.setattr(type(row.data), "__call__", None)  # data is not needed
    shown = listing([Table("toy/both", "", [one, same, replace(longer, folds=3)])], tmp_path)
    assert shown.rows[0][3] == "2/3"


def test_what_tables_lack_is_said_once(table):
    lacking = [replace(row, missing=lambda: "a file from somewhere") for row in table.rows]
    tables = [replace(table, id=f"toy/{name}", rows=lacking) for name in ("one", "two")]
    other = replace(table, id="toy/three", rows=[replace(row, stand_in="seven for ten") for row in table.rows])
    assert remarks([*tables, other, table]) == [
        "toy/one, toy/two: needs a file from somewhere",
        "toy/three: stand-in: seven for ten",
    ]


def test_a_finished_table_is_shown_and_rendered(capsys, done):
    where = ["--experiments", TRIALS, "--results", done / "results", "--runs", done / "runs", "--docs", done / "docs"]
    code, out, _ = call(capsys, "toy/few_digits", "--device", "cpu", *where)
    assert code == 0
    for words in ("ours, as published", "50.00 ± 10.00", "P-STN beats CNN", "few_digits.jsonl", "5 of 5 rows"):
        assert words in out
    assert not (done / "docs").exists()
    trained = sorted((done / "runs/networks").iterdir())
    code, out, _ = call(capsys, "toy", "--render", *where)
    assert code == 0
    assert (done / "docs/toy-few_digits.md").exists()
    assert sorted((done / "runs/networks").iterdir()) == trained, "rendering trains nothing"
    assert (done / "docs/toy-fused.md").exists(), "nothing is measured of it, but it was asked for"
    shutil.rmtree(done / "docs")
    assert call(capsys, "--render", *where)[0] == 0
    assert [page.name for page in (done / "docs").glob("*.md")] == ["toy-few_digits.md"], "who names none, means these"


def test_help_explains_every_option(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    for option in ("list", "rows", "quick", "device", "ray", "render", "results", "runs", "docs", "experiments"):
        assert f"--{option} " in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["toy/tabel"], "there is no table or paper 'toy/tabel'; there are toy/few_digits, toy/fused"),
        (["toy/few_digits", "--rows", "x*"], "there is no row x*: toy/few_digits has cnn, fast"),
        (["toy/few_digits", "--rows", "cnn", "jiter"], "there is no row jiter: toy/few_digits has cnn, fast"),
        (["toy/few_digits", "--rows", "cnn", "toy/fused:cnn"], "there is no row toy/fused:cnn: toy/few_digits has cnn"),
        (["--ray", "toy/few_digits"], "name tables before --ray"),
        (["--rows", "cnn", "toy/few_digits"], "--rows has 'toy/few_digits', which is a table: name tables before"),
        (["--experiments", "nowhere"], "no folder of experiments: looked for nowhere"),
    ],
)
def test_what_goes_wrong_is_said_without_a_traceback(capsys, tmp_path, args, words):
    given = ["--experiments", TRIALS, "--runs", tmp_path, "--results", tmp_path]
    code, _, err = call(capsys, *given, *args)
    assert code == 1
    assert words in err
    assert "Traceback" not in err


def test_that_another_run_has_the_networks_is_said_without_a_traceback(capsys, tmp_path):
    given = ["toy/few_digits", "--experiments", TRIALS, "--results", tmp_path, "--runs", tmp_path, "--device", "cpu"]
    table = find("toy/few_digits", TRIALS)
    (job,) = Plan(table, [table.row("fast")], tmp_path, Results(tmp_path / "none")).jobs()
    with _held(job.folder):
        code, _, err = call(capsys, *given, "--rows", "fast")
    assert code == 1
    assert "another run is training these networks" in err


def test_without_a_gpu_cuda_is_refused(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    given = ["toy/few_digits", "--experiments", TRIALS, "--runs", tmp_path, "--results", tmp_path, "--device", "cuda"]
    code, _, err = call(capsys, *given)
    assert (code, err) == (1, "error: --device is cuda, and torch finds no GPU here; expected cpu or auto\n")
    assert call(capsys, *given, "--render", "--docs", tmp_path)[0] == 0, "which takes none"


def test_a_damaged_file_of_data_is_named_without_a_traceback(capsys, monkeypatch, tmp_path):
    def damaged(data, fold):
        raise ValueError("digits.gz is damaged")

    monkeypatch.setattr(type(find("toy/few_digits", TRIALS).row("cnn").data), "__call__", damaged)
    _split.cache_clear()
    _fingerprints.cache_clear()
    given = ["toy/few_digits", "--experiments", TRIALS, "--runs", tmp_path, "--results", tmp_path, "--device", "cpu"]
    code, out, err = call(capsys, *given)
    assert (code, err) == (1, "error: digits.gz is damaged\n")
    assert "toy/few_digits: without cnn, fast, pstn, jitter, frozen: digits.gz is damaged" in out


def test_a_damaged_file_of_results_is_named(capsys, done):
    path = done / "results/toy/few_digits.jsonl"
    path.write_text("{\n" + path.read_text())
    code, _, err = call(capsys, "toy/few_digits", "--experiments", TRIALS, "--results", done / "results")
    assert code == 1
    assert "line 1 of" in err


def test_without_ray_the_extra_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    given = ["toy/few_digits", "--experiments", TRIALS, "--runs", tmp_path, "--results", tmp_path, "--ray"]
    code, _, err = call(capsys, *given)
    assert code == 1
    assert "pip install 'pstn[ray]'" in err


def test_after_ctrl_c_the_command_to_go_on_is_shown(capsys, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("pstn.experiment.command.reproduce", stop)
    code, _, err = call(capsys, "toy", "--runs", "my runs")
    assert code == 130
    assert "pstn reproduce toy --runs 'my runs'" in err


def test_a_file_without_its_table_is_named(tmp_path):
    (tmp_path / "trials/toy").mkdir(parents=True)
    path = tmp_path / "trials/toy/empty.py"
    path.write_text("")
    with pytest.raises(MissingTable, match=r"empty\.py has NoneType as TABLE; expected a Table of id 'toy/empty'"):
        find("toy/empty", path.parents[1])
    shutil.copy(TRIALS / "toy/few_digits.py", path.with_name("copy.py"))
    with pytest.raises(MissingTable, match=r"copy\.py has the table 'toy/few_digits' as TABLE"):
        find("toy/copy", path.parents[1])


def test_hidden_files_and_folders_hold_no_tables(tmp_path):
    for file in (".ipynb_checkpoints/mnist-checkpoint.py", "toy/._one.py", "toy/one.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert names(tmp_path) == ["toy/one"]


def test_a_table_that_makes_no_sense_is_refused():
    row = Experiment("a", None, lambda: None)
    for change in ({"rows": []}, {"rows": [row, row]}, {"rows": [row], "quick": ["b"]}):
        with pytest.raises(ValueError, match="expected rows with names of their own"):
            Table("x/y", "", **change)


def test_every_table_of_the_repository_is_listed(capsys, tmp_path):
    code, out, _ = call(capsys, "--list", "--results", tmp_path)
    assert code == 0
    assert [name for name in names() if name not in out] == []
    assert {"pstn20/table1", "pstn22/table2"} <= set(names())
