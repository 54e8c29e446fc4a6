"""The page builder: structure, escaping, and nothing from outside."""

import base64
import re
from html.parser import HTMLParser

import pytest

from gpin.report import Finding, Page, Section, Table, Tile

NASTY = "<script>alert('x')</script> & \"quoted\""
PNG = b"\x89PNG not really"
SVG = '<svg viewBox="0 0 1 1"><defs><path id="m"/></defs><use xlink:href="#m" clip-path="url(#c)"/></svg>'


def full_page(text):
    """A page with every kind of block, and the same text wherever text can go."""
    page = Page(text, lead=[text], foot=text, language="en")
    section = page.section(text)
    section.text(text).text(text, kind="note").text(text, kind="key")
    section.table(Table([text, text], [[f"{text}\n{text}", text]], caption=text))
    section.heading(text).findings([Finding(text, text, "bad", text)])
    section.drawing(SVG, alt=text, caption=text)
    section.drawings([(text, SVG, text)])
    section.picture(PNG, alt=text, caption=text)
    section.pictures([(text, PNG, text)])
    section.strips([(text, PNG, text)])
    section.tiles([Tile([PNG, PNG], text, text)])
    return page.html()


class Structure(HTMLParser):
    """Tags in order, checked for matching ends; text outside of styles."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.open, self.text = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_everything_is_escaped():
    page = Structure(full_page(NASTY))
    assert "script" not in page.tags
    assert sum(text.strip() == NASTY for text in page.text) == 24
    assert sum(value == NASTY for name, value in page.attributes if name in ("alt", "aria-label")) == 7


def test_the_page_is_whole_and_accessible():
    html = full_page("text")
    page = Structure(html)
    assert html.startswith("<!DOCTYPE html>")
    assert ("lang", "en") in page.attributes
    assert ("name", "viewport") in page.attributes
    assert page.tags.count("h1") == 1
    assert page.tags.count("main") == 1
    assert html.count("<img") == len(re.findall("<img[^>]* alt=", html)) == 5
    assert 'role="img" aria-label="text"' in html
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_nothing_comes_from_outside():
    html = full_page("see https://example.org/")
    for name, value in Structure(html).attributes:
        if name in ("src", "href", "xlink:href"):
            assert value.startswith(("data:", "#"))
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_images_are_the_bytes_given():
    found = re.findall('src="data:image/png;base64,([^"]*)"', full_page("text"))
    assert [base64.b64decode(image) for image in found] == [PNG] * 5


def test_two_drawings_do_not_share_names():
    section = Section("title", number=3)
    section.drawing(SVG, alt="one").drawing(SVG, alt="two")
    html = section.html()
    names = re.findall(r'<path id="([^"]*)"', html)
    assert len(set(names)) == 2
    assert re.findall('href="#([^"]*)"', html) == names
    assert len(set(re.findall(r"url\(#([^)]*)\)", html))) == 2


def test_a_table_reads_as_one():
    html = Table(["", "VAE", "GP"], [["ELBO\nhigher is better", "1", "2"]], series=True).html()
    assert '<th scope="row">ELBO<small>higher is better</small></th><td>1</td><td>2</td>' in html
    assert html.count('scope="col"') == 3
    assert re.findall(r"--series-\d", html) == ["--series-1", "--series-2"]


def test_cells_are_tinted_by_sign_and_size():
    html = Table(["", "a", "b"], [["row", "1", "2"]], shades={(0, 1): -1.0, (0, 2): 0.25}).html()
    assert "var(--series-1) 60%" in html
    assert "var(--series-2) 15%" in html


def test_a_script_is_there_only_for_a_map():
    page = Page("title")
    section = page.section("first")
    assert "<script>" not in page.html()
    section.sprite(PNG, columns=2, rows=1)
    assert page.html().count("<script>") == 1
    assert 'data-columns="2" data-rows="1" hidden' in page.html()


def test_a_long_page_has_a_table_of_contents():
    page = Page("title")
    for name in ("first", "second", "third"):
        page.section(name)
    assert "<nav" not in page.html()
    page.section("x < y")
    assert '<li><a href="#section-4">x &lt; y</a></li>' in page.html()


def test_a_ragged_table_is_refused():
    with pytest.raises(ValueError, match="a row has 1 cells in a table of 2 columns"):
        Table(["a", "b"], [["1"]])


def test_sections_keep_their_order_and_have_names():
    page = Page("title")
    page.section("first")
    page.section("second").text("x")
    html = page.html()
    assert re.findall('<h2 id="([^"]*)">([^<]*)</h2>', html) == [("section-1", "first"), ("section-2", "second")]
    assert 'aria-labelledby="section-2"' in html
