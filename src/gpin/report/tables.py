"""Tables of text with marks and notes, written for a terminal, in Markdown, in LaTeX and in HTML."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from gpin.report.page import Table as PageTable

__all__ = ["FORMATS", "Mark", "ResultTable", "show"]

Mark = Literal["red", "blue", ""]
"""Red is the best of a column, blue is not significantly different from it."""


@dataclass(frozen=True)
class ResultTable:
    """A table of text whose first column names the rows.

    Attributes:
        title: What the table shows.
        head: The headings.
        rows: The cells, one sequence per row with as many cells as there are headings.
        marks: By row and column, counted from 0: "red" for the best, "blue" for what is not significantly different.
        notes: Sentences below the table.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    marks: Mapping[tuple[int, int], Mark] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """The table as a section of Markdown; red becomes bold, blue becomes italic."""
        signs = {"red": "**", "blue": "*", "": ""}

        def cell(i: int, j: int, text: str) -> str:
            sign = signs[self.marks.get((i, j), "")]
            return f"{sign}{_markdown(text)}{sign}"

        lines = [f"### {self.title}", "", f"| {' | '.join(map(_markdown, self.head))} |"]
        lines.append("|---|" + "---:|" * (len(self.head) - 1))
        for i, row in enumerate(self.rows):
            lines.append("| " + " | ".join(cell(i, j, text) for j, text in enumerate(row)) + " |")
        return "\n".join([*lines, "", *(f"{note}\n" for note in self.notes)])

    def latex(self) -> str:
        """The table as a LaTeX float with coloured marks; it needs the packages booktabs and xcolor."""
        signs = {"red": r"\textcolor{red}{%s}", "blue": r"\textcolor{blue}{%s}", "": "%s"}

        def cell(i: int, j: int, text: str) -> str:
            return signs[self.marks.get((i, j), "")] % _latex(text)

        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(self.title)}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}", r"\toprule"]
        lines += [" & ".join(map(_latex, self.head)) + r" \\", r"\midrule"]
        for i, row in enumerate(self.rows):
            lines.append(" & ".join(cell(i, j, text) for j, text in enumerate(row)) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", *(rf"\par\footnotesize {_latex(n)}" for n in self.notes)]
        return "\n".join([*lines, r"\end{table}", ""])

    def page_table(self, captioned: bool = True) -> PageTable:
        """The table for a page, without its notes; `captioned` says whether its title stands above it."""
        caption = self.title if captioned else ""
        return PageTable(self.head, self.rows, caption=caption, label=self.title, unbroken=True, marks=self.marks)

    def html(self) -> str:
        """The table as an HTML element, followed by its notes as paragraphs."""
        return "\n".join([self.page_table().html(), *(f"<p>{escape(note)}</p>" for note in self.notes), ""])


FORMATS: dict[str, Callable[[ResultTable], str]] = {
    "markdown": ResultTable.markdown,
    "latex": ResultTable.latex,
    "html": ResultTable.html,
}
"""The formats in which a table can be written to a file, by name."""


def _markdown(text: str) -> str:
    return text.replace("|", "\\|")


def _latex(text: str) -> str:
    """Escape the characters that LaTeX reserves, and replace those that it lacks by commands.

    Example:
        >>> _latex("k̂ > 0.7: 3 % ± 1, −2")
        '$\\\\hat k$ $>$ 0.7: 3 \\\\% $\\\\pm$ 1, $-$2'
    """
    return re.sub("|".join(map(re.escape, LATEX)), lambda found: LATEX[found[0]], text)


LATEX = {sign: "\\" + sign for sign in "&%#_{}$"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "k̂": r"$\hat k$"}
LATEX |= {
    ">": "$>$",
    "<": "$<$",
    "±": r"$\pm$",
    "−": "$-$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "×": r"$\times$",
    "ρ": r"$\rho$",
    "Δ": r"$\Delta$",
}
LATEX |= {"–": "--", "—": "---", "‖": r"$\|$", "σ": r"$\sigma$"}


def show(table: ResultTable, console: Console) -> None:
    """Print a table to a terminal, in several parts if its columns do not fit side by side."""
    styles = {"red": "bold red", "blue": "italic blue", "": ""}
    console.print(Text(table.title, style="bold"))
    for columns, name_width in _parts(table, console.width):
        drawn = RichTable(box=None, padding=(0, 2, 0, 0))
        for j in columns:
            if j:
                drawn.add_column(table.head[j], justify="right", no_wrap=True)
            else:
                drawn.add_column(table.head[j], width=name_width)
        for i, row in enumerate(table.rows):
            drawn.add_row(*(Text(row[j], style=styles[table.marks.get((i, j), "")]) for j in columns))
        console.print(drawn)
    for note in table.notes:
        console.print(Text(note, style="dim"))
    console.print()


def _parts(table: ResultTable, room: int) -> list[tuple[list[int], int]]:
    """The parts of a table that fit into `room` characters: the columns of each, and the width of the first column.

    There are as few parts as possible, with about the same number of columns in each. Row names may be broken between
    words, numbers may not.
    """
    names, *numbers = zip(table.head, *table.rows, strict=True)
    widths = [2 + max(map(cell_len, cells)) for cells in numbers]
    wanted = 2 + max(map(cell_len, names))
    least = 2 + max((cell_len(word) for name in names for word in name.split()), default=0)
    for count in range(1, len(widths) + 1):
        size = math.ceil(len(widths) / count)
        parts = [range(k, min(k + size, len(widths))) for k in range(0, len(widths), size)]
        left = room - max(sum(widths[k] for k in part) for part in parts)
        if left >= least:
            break
    return [([0, *(k + 1 for k in part)], max(least, min(wanted, left)) - 2) for part in parts]
