"""The report: whole, self-contained, and shown by a browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gpin.demo.page import versions

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def html(result):
    return (result.folder / "report.html").read_text()


class Elements(HTMLParser):
    """Every element of a page with its attributes, and whether tags match."""

    VOID = frozenset({"meta", "link", "img"})

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_report_holds_every_part(result, html):
    page = Elements(html)
    assert page.open == []
    assert re.findall("<h2[^>]*>(.*?)</h2>", html) == [
        "Which model is better?",
        "How they learnt",
        "Reconstructions",
        "Samples",
        "What the GP encoder is sure of",
        "Does uncertainty find the difficult digits?",
        "Settings",
    ]
    images = [attributes for tag, attributes in page.found if tag == "img"]
    assert len(images) == 3 + 2 + 2 * 36  # reconstructions, samples, tiles with two images each
    assert sum(tag == "svg" for tag, _ in page.found) == 2
    for row in result.rows():
        assert all(f"<td>{cell}</td>" in html for cell in row.cells)
    assert f"Spearman correlation {result.gap_by_uncertainty}" in html
    for name, number in versions().items():
        assert f"{name} {number}" in html


def test_the_report_needs_nothing_from_outside(html):
    for tag, attributes in Elements(html).found:
        assert tag != "script"
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_the_report_names_no_path_of_the_machine(result, html):
    assert str(result.folder) not in html
    assert str(Path.home()) not in html


PROBE = """<script>addEventListener("load", () => {
  const root = document.documentElement;
  root.dataset.probe = JSON.stringify({
    images: [...document.images].map(image => image.naturalWidth),
    drawings: [...document.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect().width),
    outside: performance.getEntriesByType("resource").map(e => e.name).filter(name => !name.startsWith("data:")),
    sideways: root.scrollWidth - root.clientWidth,
  });
});</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed, so the report cannot be opened")
@pytest.mark.parametrize("width", [1100, 390])
def test_a_browser_shows_the_report(html, tmp_path, width):
    page = tmp_path / "report.html"
    page.write_text(html.replace("</body>", PROBE + "</body>"))
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *quiet, "--enable-logging=stderr", "--v=0"),
            *(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr
    probe = re.search("data-probe='([^']*)'|data-probe=\"([^\"]*)\"", done.stdout)
    assert probe, done.stderr
    found = json.loads((probe[1] or probe[2]).replace("&quot;", '"'))
    assert len(found["images"]) == html.count("<img")
    assert min(found["images"]) >= 8
    assert len(found["drawings"]) == 2
    assert min(found["drawings"]) > 200
    assert found["outside"] == []
    assert found["sideways"] <= 0
