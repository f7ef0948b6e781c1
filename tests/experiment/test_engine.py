"""Running a table: nothing twice, the same however often it was stopped, no look at test data before choosing."""

import json
import shutil
import time
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from toy_runs import TRIALS, counting, essence, forbid, go

import pstn.experiment.work as work
from pstn.experiment import Experiment, Results, Split, Table, choose, compare, find, run_all
from pstn.experiment.network import Network
from pstn.experiment.settings import Reproduce

#: How many networks of each row are tested.
ALL = {"cnn": 2, "fast": 2, "pstn": 3, "jitter": 2, "frozen": 3}


def numbers(scores):
    """The scores without the lists beside them."""
    return {name: value for name, value in scores.items() if not isinstance(value, list)}


def test_every_network_is_recorded_and_the_chosen_are_tested(table, done):
    records = list(essence(done).values())
    trained = {row.name: [r for r in records if r["row"] == row.name] for row in table.rows}
    # 2 folds; at 1 value of lr; at 4 settings on 2 folds and the chosen on a third; at 2 values; 3 folds
    assert {name: len(found) for name, found in trained.items()} == {**ALL, "pstn": 9, "jitter": 4}
    tested = {name: [(r["setting"], r["fold"]) for r in found if r["test"]] for name, found in trained.items()}
    assert {name: len(found) for name, found in tested.items()} == ALL
    assert all(setting == tested["pstn"][0][0] for setting, _ in tested["pstn"])
    for record in records:
        assert record["steps"] == 6
        assert record["seed"] == record["fold"]
        assert set(record["validation"]) == {"accuracy", "nll", "brier", "ece"}
        assert record["parameters"] > 1000
    lines = (done / "results/toy/few_digits.jsonl").read_text().splitlines()
    assert len(lines) == len(records), "a line a network"
    assert {"seconds", "command", "device", "versions", "commit", "started", "data"} <= set(json.loads(lines[0]))


def test_a_second_run_does_nothing(table, done, monkeypatch):
    before = (done / "results/toy/few_digits.jsonl").read_bytes()
    monkeypatch.setattr(work, "fit_fleet", forbid)
    monkeypatch.setattr(Network, "measure", forbid)
    go(table, done)
    shutil.rmtree(done / "runs")
    go(table, done)  # the results alone say so
    assert (done / "results/toy/few_digits.jsonl").read_bytes() == before


def test_without_results_the_trained_networks_are_used(table, done, monkeypatch):
    before = essence(done)
    shutil.rmtree(done / "results")
    monkeypatch.setattr(work, "fit_fleet", forbid)
    go(table, done)
    assert essence(done) == before


def test_a_row_is_measured_before_the_next_is_trained(table, tmp_path, capsys):
    """Whoever stops a long run has what it finished."""
    slower = replace(table.rows[0], name="slower", train=replace(table.rows[0].train, batch_size=5))
    go(Table("toy/two", "Two", [table.rows[0], slower]), tmp_path, console=Console(width=200))
    told = [line.split(": ")[1] for line in capsys.readouterr().out.splitlines() if " done (" in line]
    assert [line.rsplit(" done", 1)[0] for line in told] == [
        "training 2 of cnn", "testing 2 of cnn", "training 2 of slower", "testing 2 of slower"
    ]  # fmt: skip


def test_tables_that_share_networks_run_together_and_train_them_once(table, tmp_path, monkeypatch):
    tables = [table, replace(table, id="toy/again", rows=[table.row("fast"), table.row("jitter")], quick=(), claims=())]
    sizes = counting(monkeypatch)
    options = {"device": "cpu", "runs": tmp_path / "runs", "results": tmp_path / "results"}
    run_all(tables, rows=["cnn", "fast", "jitter"], **options)
    assert sum(sizes) == 8
    first, again = essence(tmp_path), essence(tmp_path, "toy/again")
    assert again == {key: first[key] for key in again}
    assert {r["row"] for r in again.values()} == {"fast", "jitter"}


def test_settings_are_chosen_after_short_trials_and_the_chosen_trained_in_full(table, tmp_path):
    row = replace(table.row("jitter"), train=replace(table.row("jitter").train, steps=None, epochs=2), trial_epochs=1)
    short = replace(table, rows=[row], quick=(), claims=())
    go(short, tmp_path)
    found = list(essence(tmp_path).values())
    trials, final = ([r for r in found if r["row"] == name] for name in ("jitter-trials", "jitter"))
    assert (len(trials), len(final)) == (4, 2)
    assert {r["steps"] for r in final} == {2 * r["steps"] for r in trials}
    assert all(r["test"] for r in final)
    assert not any(r["test"] for r in trials), "test data is for the chosen alone"
    best = min(
        (v for v in row.grid["sigma"]),
        key=lambda v: sum(r["validation"]["nll"] for r in trials if r["setting"] == {"sigma": v}),
    )
    assert all(r["setting"] == {"sigma": best} for r in final)
    (result,) = compare(short, results=tmp_path / "results").results
    assert (result.setting, len(result.chosen), len(result.every)) == ({"sigma": best}, 2, 6)
    assert replace(row, trial_epochs=None).trials is None
    assert row.trials is row.trials, "one row, however often it is asked for"


def test_test_data_is_looked_at_after_the_choice_and_for_the_chosen_alone(tmp_path):
    looks = []
    base = find("toy/few_digits", TRIALS).row("jitter")

    def measure(model, data):
        looks.append(data.name)
        # on validation data the first setting is the better, on test data it would be the second
        strength = float(model.body[0].weight.detach().abs().sum())
        return {"nll": len(looks) if data.name == "validation" else -len(looks), "strength": strength}

    table = Table("toy/spied", "", [replace(base, measure=measure)], fleet=4)
    go(table, tmp_path)
    assert looks == ["validation"] * 4 + ["test"] * 2
    tested = [r for r in essence(tmp_path, "toy/spied").values() if r["test"]]
    assert {r["setting"]["sigma"] for r in tested} == {0.05}


def test_further_folds_are_for_claims_alone(table, done):
    """They are trained at the setting that the others chose, of rows that a claim speaks of, and shown nowhere else."""
    table = replace(table, rows=table.rows[:4])
    more = replace(table, rows=[replace(row, further=1) for row in table.rows])
    before = compare(table, results=done / "results")
    assert compare(more, results=done / "results").claims().rows == before.claims().rows, "none is there yet"
    go(more, done)
    after = compare(more, results=done / "results")
    assert len(after.by_name["pstn"].every) - len(before.by_name["pstn"].every) == 1, "at one setting of four"
    assert [name for name, result in after.by_name.items() if result.further] == ["cnn", "pstn"]
    assert [one["validation"] for one in after.by_name["pstn"].further] == [{}], "there is nothing left to choose"
    assert after.beside("accuracy").rows == before.beside("accuracy").rows
    assert after.by_name["pstn"].setting == before.by_name["pstn"].setting
    claim = table.claims[0]
    assert (before.folds(claim), after.folds(claim)) == ("3 and 2", "4 and 3")
    assert after.tested(claim)[1] != before.tested(claim)[1]
    assert not any(row.further for row in more.sliced().rows)
    go(more, done)  # and all is there


def test_choosing_reads_no_test_scores():
    row = Experiment("a", None, lambda: None, folds=2, grid={"lr": (1.0, 2.0, 3.0)})
    scores = {1.0: (0.5, 0.7), 2.0: (0.9, 0.1), 3.0: (0.6, 0.61)}

    class Sealed(dict):
        def __getitem__(self, name):
            assert name != "test"
            return super().__getitem__(name)

    def record(setting, fold):
        return Sealed(validation={"nll": scores[setting["lr"]][fold]}, failure=None, test={"nll": -setting["lr"]})

    assert choose(row, record) == {"lr": 2.0}, "the least mean"
    assert choose(replace(row, select=("nll", "max")), record) == {"lr": 3.0}
    assert choose(replace(row, tuning_folds=1), record) == {"lr": 1.0}
    assert choose(row, lambda setting, fold: None if setting["lr"] == 3.0 else record(setting, fold)) is None


def test_a_setting_that_diverges_is_not_chosen_and_harms_no_other(tmp_path):
    base = find("toy/few_digits", TRIALS).row("fast")
    table = Table("toy/wild", "", [replace(base, grid={"lr": (1e38, 1e-2)}, column="published")])
    go(table, tmp_path)
    records = essence(tmp_path, "toy/wild").values()
    assert {r["setting"]["lr"]: bool(r["failure"]) for r in records} == {1e38: True, 1e-2: False}
    assert all(bool(r["test"]) == (not r["failure"]) for r in records)
    (result,) = compare(table, results=tmp_path / "results").results
    assert result.setting == {"lr": 1e-2}


def test_only_what_changed_is_trained_again(table, done, monkeypatch):
    sizes = counting(monkeypatch)
    changed = replace(table, rows=[replace(row, version=2) if row.name == "fast" else row for row in table.rows])
    go(changed, done)
    assert sizes == [2]


def test_a_grown_grid_trains_the_new_values_alone(table, done, monkeypatch):
    sizes = counting(monkeypatch)
    rows = [replace(row, grid={"sigma": (0.05, 0.1, 0.2)}) if row.name == "jitter" else row for row in table.rows]
    go(replace(table, rows=rows), done)
    assert sizes == [2]
    assert len([r for r in essence(done).values() if r["row"] == "jitter"]) == 6


def test_other_data_is_another_network(table, done, monkeypatch):
    """The same names and shapes, other digits."""
    sizes, few = counting(monkeypatch), table.row("cnn").data

    class Mirrored:
        def __call__(self, fold):
            train, validation, test = few(fold)
            return Split(replace(train, x=train.x.flip(-1)), validation, test)

        def __repr__(self):
            return repr(few)

    rows = [replace(row, data=Mirrored()) if row.name == "fast" else row for row in table.rows]
    go(replace(table, rows=rows), done)
    assert sizes == [2]


def test_rows_that_differ_in_their_data_alone_have_results_of_their_own(table, tmp_path):
    few, row = type(table.row("cnn").data), table.row("cnn")
    rows = [replace(row, name=f"{n}", data=few(n)) for n in (40, 32)]
    rows += [replace(row, name=f"function {n}", data=lambda fold, n=n: few(n)(fold)) for n in (24, 16)]
    mine = Table("toy/sizes", "", rows)
    go(mine, tmp_path)
    found = [result.values("nll") for result in compare(mine, results=tmp_path / "results").results]
    assert len(found) == len(set(found)) == 4
    assert len(essence(tmp_path, "toy/sizes")) == 8


def test_a_network_of_two_rows_is_trained_once_and_counts_for_both(table, tmp_path, monkeypatch):
    sizes, row = counting(monkeypatch), table.row("fast")
    rows = [replace(row, name="one", grid={"lr": (1e-2,)}), replace(row, name="many", grid={"lr": (3e-2, 1e-2)})]
    mine = Table("toy/both", "", [replace(row, column="extra") for row in rows])
    go(mine, tmp_path)
    assert sizes == [4]
    results = compare(mine, results=tmp_path / "results").results
    assert [result.row.name for result in results] == ["one", "many"]
    assert [len(result.every) for result in results] == [2, 4]


def test_weights_that_are_gone_are_trained_again_where_others_start_from_them(table, done, monkeypatch):
    shutil.rmtree(done / "runs")
    before = essence(done)
    path = done / "results/toy/few_digits.jsonl"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if '"row": "frozen"' not in line))
    sizes = counting(monkeypatch)
    go(table, done)
    assert sorted(sizes) == [2, 3], "the CNNs and the networks on them"
    assert len(path.read_text().splitlines()) == len(before), "what was on record stays as it was"
    after = essence(done)
    assert after.keys() == before.keys()
    for key, record in after.items():
        for part in ("validation", "test"):
            if record[part]:  # to rounding: the CNNs had other companions this time
                assert numbers(record[part]) == pytest.approx(numbers(before[key][part]), abs=1e-4)


def test_scores_of_networks_that_were_trained_again_say_so(table, done):
    """They are not those that were trained first, perhaps on another machine."""
    before = Results(done / "results/toy/few_digits.jsonl").records
    shutil.rmtree(done / "runs")
    time.sleep(1.1)  # records count in seconds
    row = replace(table.row("pstn"), select=("nll", "max"))
    go(replace(table, rows=[row], quick=(), claims=()), done, command="once more")
    after = Results(done / "results/toy/few_digits.jsonl").records
    changed = [key for key in before if after[key] != before[key]]
    assert changed
    for key in changed:
        old, new = before[key], after[key]
        assert not old["test"]
        assert new["test"]
        assert new["validation"] == old["validation"], "what the choice was made by"
        assert new["command"] == "once more"
        assert new["chosen_by"]["command"] == old["command"]
        assert new["started"] != new["chosen_by"]["started"]


def test_a_quick_look_is_recorded_apart(table, done):
    before = (done / "results/toy/few_digits.jsonl").read_bytes()
    rows = [replace(row, quick={"train": replace(row.train, steps=2)}) for row in table.rows]
    go(replace(table, rows=rows), done, quick=True)
    assert (done / "results/toy/few_digits.jsonl").read_bytes() == before
    records = essence(done, "toy/few_digits-quick")
    assert {(r["row"], r["steps"]) for r in records.values()} == {("cnn", 2), ("jitter", 2)}
    assert not records.keys() & essence(done).keys()


def test_a_row_without_its_data_is_left_out_and_said_so(table, tmp_path, capsys):
    where = "cats.zip is not at hand; it is at https://example.org"
    rows = [replace(table.row("cnn"), data=forbid, missing=lambda: where), table.row("fast")]
    go(Table("toy/cats", "Cats", rows), tmp_path, console=Console())
    assert where in capsys.readouterr().out
    assert {r["row"] for r in essence(tmp_path, "toy/cats").values()} == {"fast"}
    assert rows[0].state == "needs data"


def test_rows_can_be_picked_by_pattern(table, tmp_path):
    options = {"device": "cpu", "runs": tmp_path / "runs", "results": tmp_path / "results"}
    run_all([table, replace(table, id="toy/others")], rows=["f?st", "toy/others:cnn"], **options)
    assert {r["row"] for r in essence(tmp_path).values()} == {"fast"}
    assert {r["row"] for r in essence(tmp_path, "toy/others").values()} == {"fast", "cnn"}
    with pytest.raises(LookupError, match="no row nets: toy/few_digits has cnn, fast"):
        go(table, tmp_path, rows=["fast", "nets"])


def test_the_network_that_is_kept_gives_the_recorded_scores(table, done):
    row = table.row("cnn")
    network = Network(row, {}, 1, done / "runs")
    assert network.test("cpu") == essence(done)[network.key]["test"]
    torch.manual_seed(5)  # whatever was drawn before
    assert network.test("cpu") == essence(done)[network.key]["test"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grid": {"learning_rate": (1,)}}, "no field of Train and no argument"),
        ({"grid": {"lr": ()}}, "no value for 'lr'"),
        ({"tuning_folds": 9}, "no more of them for tuning"),
        ({"further": -1}, "2 folds, -1 more"),
        ({"name": "a/b"}, "a name without '/'"),
        ({"column": "worst"}, "column is 'worst'"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(table, change, words):
    with pytest.raises(ValueError, match=words):
        replace(table.row("cnn"), **change)


@pytest.mark.parametrize("jobs", [0, 49])
def test_no_more_jobs_than_can_share_a_gpu(table, tmp_path, jobs):
    with pytest.raises(ValueError, match="expected 1 to 48"):
        go(table, tmp_path, jobs=jobs)
    with pytest.raises(ValueError, match="expected 1 to 48"):
        Reproduce(jobs=jobs)
