"""The report: whole, self-contained, and shown by a browser."""

import re
from pathlib import Path

import pytest
from pages import Content, check_in_browser, check_self_contained, needs_browser

from gpin.demo.page import versions


@pytest.fixture(scope="module")
def html(result):
    return (result.folder / "report.html").read_text()


def test_the_report_holds_every_part(result, html):
    page = Content(html)
    assert re.findall("<h2[^>]*>(.*?)</h2>", html) == [
        "Which model is better?",
        "How they learnt",
        "Reconstructions",
        "Samples",
        "What the GP encoder is sure of",
        "Does uncertainty find the difficult digits?",
        "Settings",
    ]
    assert page.count("img") == 3 + 2 + 2 * 36  # reconstructions, samples, tiles with two images each
    assert page.count("svg") == 2
    for row in result.rows():
        assert all(f"<td>{cell}</td>" in html for cell in row.cells)
    assert f"Spearman correlation {result.gap_by_uncertainty}" in html
    for name, number in versions().items():
        assert f"{name} {number}" in html


def test_the_report_needs_nothing_from_outside(html):
    check_self_contained(html)


def test_the_report_names_no_path_of_the_machine(result, html):
    assert str(result.folder) not in html
    assert str(Path.home()) not in html


@needs_browser
@pytest.mark.parametrize("width", [1100, 390])
def test_a_browser_shows_the_report(html, tmp_path, width):
    check_in_browser(html, tmp_path, width)
