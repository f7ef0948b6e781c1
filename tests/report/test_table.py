"""Tables say the same in every form, and mark the best."""

import io
import math
import re

import pytest
from rich.console import Console

from pstn.report.table import Column, Measured, Table, figure

TABLE = Table(
    [Column("model", "left"), Column("accuracy, %", best="max"), Column("NLL", best="min"), Column("paper")],
    [
        ["CNN <plain>", Measured((86.0, 88.0), 1), Measured((0.4, 0.6)), "87.3 ± 0.6"],
        ["P-STN [t]", Measured((92.0,), 1), Measured((0.25, 0.35)), None],
    ],
    title="Digits & letters",
    note="less < more",
)


def words(text):
    """What a reader sees: no tags, no marks, no rules."""
    text = re.sub(r"<[^>]*>", " ", text).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return re.findall(r"[\w.+<>\[\]-]+|±", re.sub(r"[*|─━]", " ", text))


def terminal(table, width=120):
    console = Console(file=io.StringIO(), width=width)
    console.print(table.rich())
    return console.file.getvalue()


def test_every_form_has_every_cell():
    for shown in (TABLE.html(), TABLE.markdown(), terminal(TABLE)):
        seen = words(shown)
        for cell in ("CNN <plain>", "87.0 ± 1.4", "0.500 ± 0.141", "87.3 ± 0.6", "P-STN [t]", "92.0", "0.300 ± 0.071"):
            wanted = words(cell)
            assert any(seen[i : i + len(wanted)] == wanted for i in range(len(seen))), (cell, shown)


def test_a_narrow_terminal_cuts_nothing_off():
    name, path = "a-name/that-is-to-be-typed", "/a/folder/whose-end-matters/below/another.tar.gz"
    columns = [Column("table", "left", whole=True), Column("remarks", "left")]
    shown = terminal(Table(columns, [[name, path]]), 45).splitlines()[3:]
    assert shown[0].split()[0] == name
    assert "".join(line.split()[-1] for line in shown if line.strip()) == path


def test_the_best_of_a_column_is_bold_and_nothing_else():
    assert re.findall(r"<strong>(.*?)</strong>", TABLE.html()) == ["92.0", "0.300 ± 0.071"]
    assert re.findall(r"\*\*(.*?)\*\*", TABLE.markdown()) == ["92.0", "0.300 ± 0.071"]


def test_markup_in_words_is_only_words():
    assert "<plain>" not in TABLE.html()
    assert "CNN &lt;plain&gt;" in TABLE.html()
    assert "P-STN [t]" in terminal(TABLE)


def test_title_and_note_are_shown():
    for shown in (TABLE.html().replace("&amp;", "&").replace("&lt;", "<"), terminal(TABLE)):
        assert "Digits & letters" in shown
        assert "less < more" in shown


def test_deviation_is_that_of_a_sample():
    assert Measured((1.0, 3.0)).deviation == pytest.approx(math.sqrt(2))
    assert math.isnan(Measured((1.0,)).deviation)
    assert figure(0.05671, 0.0065, digits=4) == "0.0567 ± 0.0065"


def test_wrong_tables_are_refused():
    with pytest.raises(ValueError, match="1 cells, the table 4 columns"):
        Table(TABLE.columns, [["CNN"]])
    with pytest.raises(ValueError, match="nothing was measured"):
        Measured(())


def test_what_is_infinite_has_no_deviation():
    """A network that is sure and wrong may have an NLL without end: its table is shown all the same."""
    for value in (math.inf, math.nan):
        shown = Measured((0.3, value, 0.4))
        assert math.isnan(shown.deviation)
        assert str(shown) == str(value)
    assert "inf" in words(terminal(Table([Column("NLL", best="min")], [[Measured((0.3, math.inf))]])))
