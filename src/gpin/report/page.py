"""One self-contained HTML page: sections of text, tables, figures and tiles of images.

The page needs nothing from outside: styles are inline and images are data URIs. It follows the reader's light or dark
theme, fits a phone, and prints well. All text is escaped. Everything can be read without JavaScript; the only script
shows the instance of a point on a map when the pointer is over it.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from gpin.report.style import CSS, SCRIPT

__all__ = ["Finding", "Page", "Section", "Table", "Tile"]

Kind = Literal["plain", "note", "key"]

MANY_SECTIONS = 4
"""The number of sections from which a page has a table of contents."""


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows.

    Attributes:
        head: The headings; the first is that of the row names and may be empty.
        rows: Cells as text, one sequence per row with as many cells as there are headings. In the first cell, the
            text after a line break is an explanation in small print.
        caption: What the table shows.
        label: Its name for screen readers; by default the caption.
        unbroken: Whether cells are never broken into lines, not even on a narrow screen.
        numeric: Whether the other columns are right-aligned, with digits of equal width.
        series: Whether the other columns are methods, whose headings take the colours of the methods' curves.
        marks: By row and column, counted from 0: "red" for the best, "blue" for what is not significantly different.
        shades: By row and column, a number from −1 to 1 that tints the cell: blue below zero, orange above.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    label: str = ""
    unbroken: bool = False
    numeric: bool = True
    series: bool = False
    marks: Mapping[tuple[int, int], str] = field(default_factory=dict)
    shades: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"a row has {len(row)} cells in a table of {len(self.head)} columns: {list(row)}")

    def html(self) -> str:
        """The table as HTML."""
        # The caption stands above the box, so that it does not scroll away.
        caption = f'<p class="caption">{escape(self.caption)}</p>' if self.caption else ""
        head = "".join(f'<th scope="col"{self._colour(i)}>{escape(cell)}</th>' for i, cell in enumerate(self.head))
        body = "".join(
            f"<tr>{_row_name(row[0])}{''.join(self._cell(i, j, cell) for j, cell in enumerate(row) if j)}</tr>\n"
            for i, row in enumerate(self.rows)
        )
        kinds = [name for name in ("numeric", "unbroken") if getattr(self, name)]
        kind = f' class="{" ".join(kinds)}"' if kinds else ""
        inner = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>"
        name = escape(self.label or self.caption or "Table")
        # A box that scrolls must be reachable from the keyboard.
        box = f'<div class="scroll" role="region" aria-label="{name}" tabindex="0"><table{kind}>{inner}</table></div>'
        return caption + box

    def _cell(self, row: int, column: int, text: str) -> str:
        mark, shade = self.marks.get((row, column)), self.shades.get((row, column))
        kind = f' class="{escape(mark)}"' if mark else ""
        if shade is not None:
            colour = f"var(--series-{1 if shade < 0 else 2})"
            kind += f' style="background: color-mix(in srgb, {colour} {60 * min(abs(shade), 1):.0f}%, transparent)"'
        return f"<td{kind}>{escape(text)}</td>"

    def _colour(self, column: int) -> str:
        return f' style="color: var(--series-{(column - 1) % 8 + 1})"' if self.series and column else ""


@dataclass(frozen=True)
class Finding:
    """A statement that follows from the numbers of the page, and what to do about it.

    Attributes:
        title: The statement in a few words.
        text: Sentences that explain it.
        kind: "good", "bad", or "plain" for neither.
        command: The command that does better, if there is one.
    """

    title: str
    text: str
    kind: Literal["good", "bad", "plain"] = "plain"
    command: str = ""

    def html(self) -> str:
        """The finding as an item of a list."""
        command = f"<pre><code>{escape(self.command)}</code></pre>" if self.command else ""
        said = f"<p><strong>{escape(self.title)}</strong> {escape(self.text)}</p>"
        return f'<li class="{self.kind}">{said}{command}</li>'


@dataclass(frozen=True)
class Tile:
    """A small image, or several stacked, with a line of text below.

    Attributes:
        images: The images as PNG files.
        alt: A description of the images for readers who cannot see them.
        text: The line below the images.
    """

    images: Sequence[bytes]
    alt: str
    text: str = ""

    def html(self) -> str:
        """The tile as HTML; the first image carries the description for all."""
        alts = [self.alt, *[""] * (len(self.images) - 1)]
        images = "".join(_image(image, alt) for image, alt in zip(self.images, alts, strict=True))
        return (
            f"<figure>{images}" + (f"<figcaption>{escape(self.text)}</figcaption>" if self.text else "") + "</figure>"
        )


class Section:
    """A heading with blocks below it, in the order they were added; each method returns the section."""

    def __init__(self, title: str, number: int) -> None:
        self.title, self.number = title, number
        self.scripted = False
        self._blocks: list[str] = []

    def text(self, *paragraphs: str, kind: Kind = "plain") -> "Section":
        """Paragraphs: plain, as a small-print note, or as the key statement of the section."""
        mark = "" if kind == "plain" else f' class="{kind}"'
        return self._add(*(f"<p{mark}>{escape(paragraph)}</p>" for paragraph in paragraphs))

    def heading(self, title: str) -> "Section":
        """A heading within the section."""
        return self._add(f"<h3>{escape(title)}</h3>")

    def table(self, table: Table) -> "Section":
        """A table."""
        return self._add(table.html())

    def findings(self, findings: Iterable[Finding]) -> "Section":
        """Statements with what to do about them, as a list."""
        return self._add(f'<ul class="findings">{"".join(finding.html() for finding in findings)}</ul>')

    def drawing(self, svg: str, alt: str, caption: str = "") -> "Section":
        """A drawn figure: an `<svg>` element made by `plots.svg`. Drawings are the only input that is not escaped."""
        return self._add(f'<figure class="drawing">{self._described(svg, alt)}{_caption(caption)}</figure>')

    def drawings(self, items: Iterable[tuple[str, str, str]], small: bool = False) -> "Section":
        """Drawn figures side by side where there is room; each item is a title, an `<svg>` element and a description.

        Arguments:
            items: The figures.
            small: Whether they are small multiples, of which three or more stand side by side.
        """
        figures = "".join(
            f"<figure><figcaption>{escape(title)}</figcaption>{self._described(svg, alt, str(i))}</figure>"
            for i, (title, svg, alt) in enumerate(items)
        )
        return self._add(f'<div class="{"charts" if small else "pictures"}">{figures}</div>')

    def sprite(self, png: bytes, columns: int, rows: int) -> "Section":
        """The images of the points of this section's maps, in a grid from left to right and from top to bottom.

        The script shows the image of the point under the pointer. Without a script they are not shown.
        """
        self.scripted = True
        return self._add(
            f'<div class="peek" data-columns="{columns}" data-rows="{rows}" hidden>'
            f'<div class="frame">{_image(png, "")}</div><p></p></div>'
        )

    def labels(self) -> "Section":
        """The place where the script shows the text of the point under the pointer, for maps without images."""
        self.scripted = True
        return self._add('<div class="peek" hidden><p></p></div>')

    def _described(self, svg: str, alt: str, part: str = "") -> str:
        """A drawing with its description, whose element ids no other drawing on the page shares."""
        prefix = f"s{self.number}b{len(self._blocks)}{part and 'p' + part}-"
        unique = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", svg)
        return unique.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)

    def picture(self, png: bytes, alt: str, caption: str = "") -> "Section":
        """A raster image, as wide as the page allows."""
        return self._add(f'<figure class="picture">{_image(png, alt)}{_caption(caption)}</figure>')

    def pictures(self, items: Iterable[tuple[str, bytes, str]]) -> "Section":
        """Pictures side by side where there is room; each item is a title, a PNG file and its description."""
        figures = "".join(
            f"<figure><figcaption>{escape(title)}</figcaption>{_image(png, alt)}</figure>" for title, png, alt in items
        )
        return self._add(f'<div class="pictures">{figures}</div>')

    def strips(self, items: Iterable[tuple[str, bytes, str]]) -> "Section":
        """Rows of images that belong together column by column; each item is a title, a PNG file and a description."""
        rows = "".join(
            f"<figure><figcaption>{escape(title)}</figcaption>{_image(png, alt)}</figure>" for title, png, alt in items
        )
        return self._add(f'<div class="strips">{rows}</div>')

    def tiles(self, tiles: Iterable[Tile], named: bool = False) -> "Section":
        """Small multiples that flow into as many columns as fit; they are wider if their texts are names."""
        kind = "tiles named" if named else "tiles"
        return self._add(f'<div class="{kind}">{"".join(tile.html() for tile in tiles)}</div>')

    def html(self) -> str:
        """The section as HTML."""
        name = f"section-{self.number}"
        blocks = "\n".join(self._blocks)
        return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(self.title)}</h2>\n{blocks}\n</section>'

    def _add(self, *blocks: str) -> "Section":
        self._blocks += blocks
        return self


@dataclass
class Page:
    """A page: its title, opening sentences, sections, and a line at its foot.

    Example:
        >>> page = Page("Digits & letters", lead=["What this is."])
        >>> _ = page.section("Results").text("x < y")
        >>> "Digits &amp; letters" in page.html() and "x &lt; y" in page.html()
        True
    """

    title: str
    lead: Sequence[str] = ()
    foot: str = ""
    language: str = "en"
    sections: list[Section] = field(default_factory=list)

    def section(self, title: str) -> Section:
        """Begin a new section."""
        self.sections.append(Section(title, len(self.sections) + 1))
        return self.sections[-1]

    def html(self) -> str:
        """The whole page."""
        lead = "".join(f'<p class="lead">{escape(paragraph)}</p>\n' for paragraph in self.lead)
        sections = "\n".join(section.html() for section in self.sections)
        foot = f"<footer><p>{escape(self.foot)}</p></footer>\n" if self.foot else ""
        script = f"<script>\n{SCRIPT}</script>\n" if any(section.scripted for section in self.sections) else ""
        return f"""<!DOCTYPE html>
<html lang="{escape(self.language)}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(self.title)}</title>
<style>
{CSS}</style>
</head>
<body>
<header>
<h1>{escape(self.title)}</h1>
{lead}{self._contents()}</header>
<main>
{sections}
</main>
{foot}{script}</body>
</html>
"""

    def _contents(self) -> str:
        """Links to the sections; none on a short page."""
        if len(self.sections) < MANY_SECTIONS:
            return ""
        links = "".join(f'<li><a href="#section-{one.number}">{escape(one.title)}</a></li>' for one in self.sections)
        return f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n'


def _row_name(text: str) -> str:
    name, _, explanation = text.partition("\n")
    small = f"<small>{escape(explanation)}</small>" if explanation else ""
    return f'<th scope="row">{escape(name)}{small}</th>'


def _image(png: bytes, alt: str) -> str:
    return f'<img src="data:image/png;base64,{base64.b64encode(png).decode()}" alt="{escape(alt)}">'


def _caption(text: str) -> str:
    return f"<figcaption>{escape(text)}</figcaption>" if text else ""
