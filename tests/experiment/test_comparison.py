"""Paper against ours, from the file of results alone."""

import json
import math
import shutil
import statistics
from dataclasses import replace

import pytest

from pstn.experiment import Claim, Results, compare, render
from pstn.experiment.comparison import Comparison, Result
from pstn.experiment.student import paired, welch


def test_a_line_has_the_paper_the_published_recipe_and_the_best(table, done, monkeypatch):
    shutil.rmtree(done / "runs")
    monkeypatch.setattr("pstn.data.embedded.find_digits", lambda: None)  # neither networks nor data are needed
    comparison = compare(table, results=done / "results")
    beside = comparison.beside("accuracy")
    (cnn, pstn) = beside.cells()
    words = [text for text, _ in cnn]
    records = [r["test"]["accuracy"] for r in Results(done / "results/toy/few_digits.jsonl").records.values()
               if r["row"] == "cnn"]  # fmt: skip
    mean, deviation = 100 * statistics.fmean(records), 100 * statistics.stdev(records)
    assert words[:3] == ["CNN", "50.00 ± 10.00", f"{mean:.2f} ± {deviation:.2f}"]
    test = welch(mean, deviation, 2, 50, 10, 2)
    assert words[3] == f"{test.p:.3f}"
    assert words[4] != "–", "the row 'fast' stands on the same line"
    assert [text for text, _ in pstn][:2] == ["P-STN", "–"]
    assert len(comparison.results) == len(comparison.details().rows) == 5


def test_an_unfinished_or_changed_row_is_not_shown(table, done):
    changed = replace(table, rows=[replace(row, version=2) if row.name == "pstn" else row for row in table.rows])
    comparison = compare(changed, results=done / "results")
    assert {result.row.name for result in comparison.results} == {"cnn", "fast", "jitter", "frozen"}
    assert comparison.tested(table.claims[0]) == ("not run", None)


def test_a_row_whose_networks_have_all_diverged_is_named(table, done):
    path = done / "results/toy/few_digits.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    told = [{**r, "failure": "the loss became NaN", "test": None} if r["row"] == "cnn" else r for r in lines]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in told))
    page = render(compare(table, results=done / "results"), done / "docs").read_text()
    assert "4 of 5 rows are measured.\n\nAll networks diverged, at the best of their settings: cnn." in page


def test_without_results_there_is_a_page_that_says_so(table, tmp_path):
    page = render(compare(table, results=tmp_path), tmp_path / "docs")
    assert "0 of 5 rows are measured." in page.read_text()
    assert list((tmp_path / "docs").iterdir()) == [page]


def test_a_page_names_the_command_that_wrote_it(table, tmp_path):
    for one, command in ((table, "toy/few_digits --render"), (table.sliced(), "toy/few_digits --quick --render")):
        assert f"by `pstn reproduce {command}`" in render(compare(one, results=tmp_path), tmp_path).read_text()


def test_a_page_is_the_same_each_time_and_has_its_figures(table, done):
    comparison = compare(table, results=done / "results")
    page = render(comparison, done / "docs")
    first = {path.name: path.read_bytes() for path in page.parent.iterdir()}
    render(comparison, done / "docs")
    assert {path.name: path.read_bytes() for path in page.parent.iterdir()} == first
    assert set(first) == {"toy-few_digits.md", "toy-few_digits-scores.svg"}
    text = page.read_text()
    for words in ("| CNN | 50.00 ± 10.00 |", "toy-few_digits-scores.svg", "P-STN beats CNN", "within one deviation"):
        assert words in text


def test_a_figure_that_has_nothing_to_draw_is_left_out(table, done):
    table = replace(table, figures={**table.figures, "empty": lambda results: None})
    comparison = compare(table, results=done / "results")
    page = render(comparison, done / "pages")
    (old := page.parent / "toy-few_digits-empty.svg").write_text("of an earlier state")
    assert "empty" not in render(comparison, done / "pages").read_text()
    assert not old.exists()


def measured(table, name, values, examples=None):
    """A row of so many folds, which learned from some examples each."""
    records = [{"fold": fold, "test": {"accuracy": value}} for fold, value in enumerate(values)]
    for record, seen in zip(records, examples or (), strict=False):
        record["data"] = [{"crc32": seen}]
    return Result(table.row(name), {}, records, records)


@pytest.mark.parametrize(
    ("ours", "more", "verdict"),
    [((0.9, 0.91), True, "confirmed"), ((0.9, 0.91), False, "refuted"), ((0.5, 0.51), True, "refuted"),
     ((0.5, 0.95), True, "open (ahead by the means)"), ((0.6, 0.78), True, "open (not ahead by the means)")],
)  # fmt: skip
def test_a_claim_is_confirmed_refuted_or_open(table, ours, more, verdict):
    comparison = Comparison(table, [measured(table, "pstn", ours), measured(table, "cnn", (0.7, 0.705))])
    found, test = comparison.tested(Claim("", "pstn", "cnn", more=more))
    assert found == verdict
    assert (test.p < 0.05) == (not found.startswith("open"))


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [((0.700, 0.704), "confirmed"), ((0.60, 0.80), "open"), ((0.75, 0.755), "refuted"), ((0.705, 0.715), "open")],
)
def test_rows_are_alike_where_their_interval_is_small_enough(table, ours, verdict):
    """Two that vary much are not told apart, and are not alike for that."""
    claim = Claim("as good as", "pstn", "cnn", alike=0.01)
    rows = [measured(table, "pstn", (*ours, *ours)), measured(table, "cnn", (0.700, 0.703, 0.702))]
    comparison = Comparison(replace(table, claims=[claim]), rows)
    found, test = comparison.tested(claim)
    assert found == verdict
    ((_, shown, _, _, numbers, _),) = comparison.claims().rows
    assert shown == verdict
    assert numbers.startswith("Welch: apart by 1.00 or more: p ")
    swapped = Comparison(table, rows).tested(replace(claim, better="cnn", than="pstn"))[0]
    assert swapped == verdict, "neither is the better one"
    assert test.apart(1.0) < 0.01


def test_folds_in_which_both_are_infinite_say_nothing(table):
    """The NLL where a right class has no probability."""
    ours, theirs = (math.inf,) * 3 + (1.0,) * 8, (math.inf,) * 3 + (2.0,) * 7 + (90.0,)
    rows = [measured(table, name, v, range(11)) for name, v in (("pstn", ours), ("cnn", theirs))]
    found = Comparison(table, rows).by_rank(Claim("", "pstn", "cnn", more=False))
    assert (found.p, found.ahead) == (2 / 2**8, 1.5 / 11)


EIGHT = (0.80, 0.81, 0.82, 0.83, 0.84, 0.85, 0.86, 0.87)
LESS = tuple(value - 0.06 for value in EIGHT)


@pytest.mark.parametrize(
    ("ours", "theirs", "more", "verdict"),
    [
        (EIGHT, (*LESS[:7], 0.07), True, "confirmed"),
        (EIGHT, (*LESS[:7], 0.07), False, "refuted"),
        ((*LESS[:7], 0.07), EIGHT, True, "refuted"),
        ((*EIGHT[:6], 0.06, 0.07), LESS, True, "open (ahead by ranks)"),  # which the means are not
        ((*EIGHT[:7], 0.07), EIGHT, True, "open (not ahead by ranks)"),
    ],
)
def test_a_network_that_has_failed_leaves_it_to_ranks(table, ours, theirs, more, verdict):
    claim = Claim("", "pstn", "cnn", more=more)
    comparison = Comparison(
        replace(table, claims=[claim]), [measured(table, "pstn", ours), measured(table, "cnn", theirs)]
    )
    found, test = comparison.tested(claim)
    assert found == verdict
    assert test.p > 0.05
    assert "; ranks: ahead in" in comparison.claims().rows[0][4]


def test_of_few_networks_ranks_tell_nothing(table):
    rows = [measured(table, "pstn", EIGHT[:5]), measured(table, "cnn", (*LESS[:4], 0.07))]
    assert Comparison(table, rows).tested(Claim("", "pstn", "cnn"))[0] == "open (ahead by the means)"


def test_the_ranks_of_pairs_are_those_of_differences(table):
    """Folds differ more than rows do; in one of them, a network has failed."""
    ours = tuple(value + 0.01 for value in EIGHT)
    rows = [measured(table, "pstn", ours, range(8)), measured(table, "cnn", (*EIGHT[:7], 0.07), range(8))]
    comparison = Comparison(table, rows)
    found, test = comparison.tested(claim := Claim("", "pstn", "cnn"))
    assert found == "confirmed"
    assert test.p > 0.05
    assert comparison.by_rank(claim).p == 2 / 2**8
    assert comparison.by_rank(replace(claim, alike=0.1)) is None


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((1.0, 1.0, 1.0), "confirmed"), ((0.0, 0.0), "open (not ahead by the means)"),
     ((1.0,), "open (ahead by the means)"), ((math.inf, math.inf), "open (ahead by the means)")],
)  # fmt: skip
def test_rows_that_never_vary_need_no_test(table, values, verdict):
    rows, claim = [measured(table, "pstn", values), measured(table, "cnn", (0.0, 0.0, 0.0))], Claim("", "pstn", "cnn")
    comparison = Comparison(replace(table, claims=[claim]), rows)
    assert comparison.tested(claim) == (verdict, None)
    assert comparison.claims().rows[0][4] == ("neither varies" if verdict == "confirmed" else None)


def of_paper(table, **papers):
    """The rows of which the paper reports accuracies of five runs."""
    rows = [replace(table.row(name), folds=5, **changes) for name, changes in papers.items()]
    return replace(table, rows=rows, quick=())


@pytest.mark.parametrize(
    ("paper", "more", "changes", "verdict"),
    [
        ((0.79, 0.02), True, {}, "refuted in size"),
        ((0.79, 0.2), True, {}, "open (ahead by the means)"),  # may be chance, in the paper
        ((0.79, 0.02), False, {}, "open (not ahead by the means)"),  # the paper says otherwise itself
        ((0.72, 0.02), True, {}, "open (ahead by the means)"),
        ((0.79, float("nan")), True, {}, "open (ahead by the means)"),
        ((0.79, 0.02), True, {"column": "best"}, "open (ahead by the means)"),
    ],
)
def test_a_difference_may_be_none_and_less_than_the_papers(table, paper, more, changes, verdict):
    """A hundredth, give or take two, where the paper has nine."""
    claim, ours, theirs = Claim("", "pstn", "cnn", more=more), {"accuracy": paper}, {"accuracy": (0.7, 0.02)}
    table = replace(of_paper(table, pstn={"paper": ours, **changes}, cnn={"paper": theirs}), claims=[claim])
    rows = [measured(table, "pstn", (0.69, 0.71, 0.73)), measured(table, "cnn", (0.69, 0.71, 0.7))]
    found, test = Comparison(table, rows).tested(claim)
    assert found == verdict
    assert test.p > 0.05
    ((_, shown, difference, papers, numbers, _),) = Comparison(table, rows).claims().rows
    assert shown == found
    low, high = (100 * value for value in test.interval())
    assert difference == f"+1.00 ({low:+.2f} to {high:+.2f})"
    assert (papers is not None) == (not changes and paper[1] == paper[1])
    assert ("the paper's" in numbers) == (verdict == "refuted in size")


@pytest.mark.parametrize(
    ("ours", "better", "alike"),
    [
        ((0.7, 0.701, 0.702), "as good", "confirmed"),
        ((0.6, 0.7, 0.8), "open (not ahead by the means)", "open"),  # too few to tell
        ((0.707, 0.708, 0.709), "confirmed", "confirmed"),  # by so little that it does not matter
        ((0.75, 0.751, 0.752), "confirmed", "refuted"),
    ],
)
def test_a_row_that_is_not_better_may_be_as_good(table, ours, better, alike):
    """Where another claim says so, of the same rows and score, and is confirmed."""
    beats, same = Claim("beats", "pstn", "cnn"), Claim("as good as", "cnn", "pstn", alike=0.01)
    rows = [measured(table, "pstn", ours), measured(table, "cnn", (0.7, 0.702, 0.701))]

    def verdicts(*claims):
        comparison = Comparison(replace(table, claims=claims), rows)
        return [comparison.tested(claim)[0] for claim in claims]

    assert verdicts(beats, same) == [better, alike]
    alone = better.replace("as good", "open (not ahead by the means)")
    assert verdicts(beats) == verdicts(beats, replace(same, alike=0.0))[:1] == [alone]


@pytest.mark.parametrize("at_hand", ["", "other data"])
def test_other_data_than_the_papers_is_known_by_what_was_recorded(table, at_hand):
    """Not by what is at hand where a page is made, or README's figures would be others on another machine."""
    changes = {"paper": {"accuracy": (0.79, 0.02)}, "stand_in": at_hand}
    theirs = {"paper": {"accuracy": (0.7, 0.02)}}
    table = of_paper(table, pstn=changes, cnn=theirs)
    claim = table.claims[0]
    rows = [measured(table, "pstn", (0.69, 0.71, 0.73)), measured(table, "cnn", (0.69, 0.71, 0.7))]
    assert Comparison(table, rows).in_paper(claim) is not None
    for record in rows[0].every:
        record["stand_in"] = "seven for ten"
    comparison = Comparison(table, rows)
    assert comparison.in_paper(claim) is None
    assert comparison.sentences()[-1] == "seven for ten"


def test_a_slice_is_not_held_against_the_paper(table, done):
    cut = table.sliced()
    comparison = Comparison(cut, compare(table, results=done / "results").results)
    assert all(text == "–" for row in comparison.beside("accuracy").cells() for text, _ in (row[3], row[5]))
    assert not any("deviation" in sentence for sentence in comparison.sentences())
    assert not cut.claims


def test_folds_of_different_examples_are_compared_in_pairs(table):
    """Some folds are hard for both rows: the mean differs little by that, and each fold clearly."""
    ours, theirs, claim = (0.52, 0.71, 0.93), (0.5, 0.7, 0.9), Claim("", "pstn", "cnn")
    welch, pairs = "open (ahead by the means)", "confirmed"

    def verdict(one, other, ours=ours):
        both = [measured(table, "pstn", ours, one), measured(table, "cnn", theirs, other)]
        comparison = Comparison(replace(table, claims=[claim]), both)
        (row,) = comparison.claims().rows
        assert row[1] == comparison.tested(claim)[0]
        return [row[1], row[4].partition(":")[0]]

    assert verdict("abc", "abc", (0.52, 0.72, 0.93)) == [pairs, "pairs"]
    assert verdict("abc", "abd") == [welch, "Welch"], "they learned from others"
    assert verdict("aaa", "aaa") == [welch, "Welch"], "folds are alike but for their seeds"
    assert verdict(None, None) == [welch, "Welch"], "nobody knows"
    assert verdict("abcd", "abc", (0.52, 0.72, 0.93, 0.1)) == [pairs, "pairs"], "of those folds that both have"


def test_claims_are_tested_by_fold_where_folds_are_shared(table, done):
    comparison, claim = compare(table, results=done / "results"), table.claims[0]
    a, b = (comparison.by_name[name] for name in (claim.better, claim.than))
    assert len(a.chosen) > len(b.chosen)
    assert comparison.by_fold(claim) == paired(a.values(claim.metric)[: len(b.chosen)], b.values(claim.metric))
    assert Comparison(table, [a]).by_fold(claim) is None
    assert Comparison(table, [a]).folds(claim) is None


def test_the_calibration_error_of_chance_comes_from_what_is_recorded(table):
    """Ten sure and right, two of whom half are; records without a table of reliability have none."""
    tests = [{"reliability": [[0, 0.0, 0.0], [2, 0.5, 1.0], [10, 1.0, 1.0]]}, {"accuracy": 0.5}]
    result = Result(table.row("cnn"), {}, [{"test": test} for test in tests], [])
    assert result.values("ece_chance") == (pytest.approx(2 * 0.25 / 12),)
    assert str(result.measured("ece_chance")) == "0.0417"
