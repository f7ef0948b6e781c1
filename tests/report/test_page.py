"""A page stands alone: nothing beside it, nothing fetched, no script."""

import base64
import errno
from html.parser import HTMLParser

import pytest

from pstn.report import Column, Page, Table
from pstn.report.figures import choices


class Reader(HTMLParser):
    """Collects the tags, the addresses and the words of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.addresses, self.words = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "srcset", "href", "xlink:href")]

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def page():
    page = Page("Digits <1>", "All & everything.")
    page.section("First").text("if a < b: <script>alert(1)</script>")
    page.table(Table([Column("x")], [["1"]]))
    page.facts({"command": "pstn demo --runs 'a b'"})
    page.figure(lambda: choices({"w": {0.1: [1.0], 0.2: [2.0]}}, "NLL"), 'a "quoted" line', "What it shows.")
    return page


def test_nothing_is_fetched_and_nothing_runs(page):
    read = Reader(page.html())
    assert len(read.addresses) == 2
    assert all(address.startswith("data:image/svg+xml;base64,") for address in read.addresses)
    assert not {"script", "link", "iframe", "object"} & set(read.tags)
    assert "url(" not in page.html()
    assert "@import" not in page.html()


def test_words_are_words(page):
    text = "".join(Reader(page.html()).words)
    for words in ("Digits <1>", "All & everything.", "<script>alert(1)</script>", "'a b'", "What it shows."):
        assert words in text
    assert 'alt="a &quot;quoted&quot; line"' in page.html()


def test_a_figure_has_the_colours_of_both_themes(page):
    dark, light = (base64.b64decode(a.partition(",")[2]).decode() for a in Reader(page.html()).addresses)
    assert "#1b1f24" in light
    assert "#1b1f24" not in dark
    assert "#e6edf3" in dark
    assert "http" not in light.partition("</metadata>")[2], "a figure must not ask for anything either"


def test_names_in_any_script_are_letters_and_no_warning(page, recwarn):
    page.figure(lambda: choices({"浮游生物": {0.1: [1.0]}}, "NLL"), "once")
    assert "浮游生物" in base64.b64decode(Reader(page.parts[-1]).addresses[0].partition(",")[2]).decode()
    assert not recwarn.list


def test_the_same_page_is_the_same_file(page, tmp_path):
    again = page.html()
    page.figure(lambda: choices({"w": {0.1: [1.0]}}, "NLL"), "once")
    once = page.parts[-1]
    page.figure(lambda: choices({"w": {0.1: [1.0]}}, "NLL"), "once")
    assert page.parts[-1] == once
    assert page.write(tmp_path / "new" / "index.html").read_text(encoding="utf-8").startswith(again[:200])


def test_a_full_disk_leaves_the_page_that_was_there(page, tmp_path, monkeypatch):
    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = page.write(tmp_path / "index.html").read_text(encoding="utf-8")
    page.text("more")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        page.write(tmp_path / "index.html")
    assert [file.read_text(encoding="utf-8") for file in tmp_path.iterdir()] == [before]


def test_it_fits_a_phone(page):
    assert 'name="viewport" content="width=device-width' in page.html()
    assert "prefers-color-scheme: dark" in page.html()
