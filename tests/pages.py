"""What tests of a page look at: its elements and tables, what it would fetch, and what a browser makes of it."""

import itertools
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
    wide: [...document.querySelectorAll("body *")]
      .filter(one => !one.closest(".scroll, .peek") && one.getBoundingClientRect().right > root.clientWidth + 1)
      .map(one => one.tagName),
    peek: peeked(),
  });
});
function peeked() {
  const point = document.querySelector(".point"), peek = document.querySelector(".peek");
  if (!point) return null;
  point.dispatchEvent(new PointerEvent("pointerenter", { pageX: 9, pageY: 9 }));
  const found = [peek.hidden, peek.textContent, peek.querySelector(".frame")?.getBoundingClientRect().width ?? 0];
  point.dispatchEvent(new PointerEvent("pointerleave"));
  return [...found, peek.hidden];
}</script>"""


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

    def row(self, name, table=None):
        """The cells of the only row of this name, in one table or in all."""
        tables = self.tables if table is None else [self.tables[table]]
        (found,) = [row for rows in tables for row in rows if row[0] == name]
        return found[1:]

    def count(self, tag):
        return sum(found == tag for found, _ in self.found)


def check_self_contained(html):
    """Nothing in a page comes from outside, and the only script is its own."""
    for tag, attributes in Content(html).found:
        assert tag != "script" or not attributes
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def check_accessible(html):
    """Images and drawings are described, headings are in order, and links lead somewhere."""
    page = Content(html)
    assert all("alt" in attributes for tag, attributes in page.found if tag == "img")
    assert all(attributes.get("aria-label") for tag, attributes in page.found if tag == "svg")
    levels = [int(tag[1]) for tag, _ in page.found if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    names = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(names) == len(set(names))
    links = [attributes["href"] for tag, attributes in page.found if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= set(names)


def check_in_browser(html, folder, width, drawings=2):
    """A browser window of so many pixels shows all images and drawings, fetches nothing and scrolls one way.

    Returns what the page shows when the pointer is over the first point of a map: whether it is hidden, its text, the
    width of its image, and whether it is hidden afterwards; None without a map.
    """
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
    assert all(wide > 100 for wide in found["drawings"])
    assert found["outside"] == []
    assert found["sideways"] <= 0
    assert found["wide"] == []
    return found["peek"]
