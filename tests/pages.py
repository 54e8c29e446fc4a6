"""What tests of a page look at: its elements and tables, what it would fetch, and what a browser makes of it."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed, so the report cannot be opened")

PROBE = """<script>addEventListener("load", () => {
  const root = document.documentElement;
  root.dataset.probe = JSON.stringify({
    images: [...document.images].map(image => image.naturalWidth),
    drawings: [...document.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect().width),
    outside: performance.getEntriesByType("resource").map(e => e.name).filter(name => !name.startsWith("data:")),
    sideways: root.scrollWidth - root.clientWidth,
  });
});</script>"""


class Content(HTMLParser):
    """Elements with their attributes, and tables as rows of text, without explanations in small print."""

    VOID = frozenset({"meta", "link", "img"})

    def __init__(self, text):
        super().__init__()
        self.found, self.open, self.tables = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data

    def row(self, name, table=0):
        (found,) = [row for row in self.tables[table] if row[0] == name]
        return found[1:]

    def count(self, tag):
        return sum(found == tag for found, _ in self.found)


def check_self_contained(html):
    """Nothing in a page comes from outside, and nothing executes."""
    for tag, attributes in Content(html).found:
        assert tag != "script"
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def check_in_browser(html, folder, width, drawings=2):
    """A browser window of so many pixels shows all images and drawings, fetches nothing and scrolls one way."""
    page = folder / "report.html"
    page.write_text(html.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *QUIET, "--enable-logging=stderr", "--v=0"),
            *(f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", "--dump-dom", page.as_uri()),
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
    assert all(wide >= 8 for wide in found["images"])
    assert len(found["drawings"]) == drawings
    assert all(wide > 200 for wide in found["drawings"])
    assert found["outside"] == []
    assert found["sideways"] <= 0
