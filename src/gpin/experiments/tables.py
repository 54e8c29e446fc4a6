"""Tables of results, and how they are written: for a terminal, in Markdown, in LaTeX and in HTML."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from gpin.experiments.gathering import Gathered, Line
from gpin.experiments.paper import PAPER
from gpin.experiments.protocols import ROWS, Experiment, Protocol
from gpin.experiments.statistics import Mark, PairedDifference, Summary, mark
from gpin.report import Table as PageTable
from gpin.report.numbers import plus_minus

__all__ = ["FORMATS", "ResultTable", "likelihood_tables", "posterior_tables", "show"]


@dataclass(frozen=True)
class ResultTable:
    """A table of text whose first column names the rows.

    Attributes:
        title: What it shows.
        head: Headings.
        rows: Cells, as many a row as there are headings.
        marks: By row and column, from 0: "red" for the best, "blue" for what cannot be told from it.
        notes: Sentences below it.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    marks: Mapping[tuple[int, int], Mark] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """As a section of Markdown; the best is bold, what is like it in italics."""
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
        """As a tabular in a table, with the paper's colours; needs booktabs and xcolor."""
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

    def page_table(self) -> PageTable:
        """For a page."""
        return PageTable(self.head, self.rows, caption=self.title, marks=self.marks)

    def html(self) -> str:
        """As an element of HTML, with its notes as paragraphs."""
        from html import escape

        return "\n".join([self.page_table().html(), *(f"<p>{escape(note)}</p>" for note in self.notes), ""])


FORMATS: dict[str, Callable[[ResultTable], str]] = {
    "markdown": ResultTable.markdown,
    "latex": ResultTable.latex,
    "html": ResultTable.html,
}
"""How a table is written to a file, by name."""


def _markdown(text: str) -> str:
    return text.replace("|", "\\|")


def _latex(text: str) -> str:
    """Text with LaTeX's own signs.

    Example:
        >>> _latex("k̂ > 0.7: 3 % ± 1, −2")
        '$\\\\hat k$ $>$ 0.7: 3 \\\\% $\\\\pm$ 1, $-$2'
    """
    return re.sub("|".join(map(re.escape, LATEX)), lambda found: LATEX[found[0]], text)


LATEX = {sign: "\\" + sign for sign in "&%#_{}$"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "k̂": r"$\hat k$"}
LATEX |= {">": "$>$", "<": "$<$", "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "ρ": r"$\rho$", "Δ": r"$\Delta$"}
LATEX |= {"–": "--", "—": "---", "‖": r"$\|$", "σ": r"$\sigma$"}
"""What has a meaning of its own in LaTeX, or is not there."""


def show(table: ResultTable, console: Console) -> None:
    """Print a table for a person."""
    styles = {"red": "bold red", "blue": "blue", "": ""}
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for i, (name, width) in enumerate(zip(table.head, _widths(table, console.width), strict=True)):
        drawn.add_column(name, justify="right" if i else "left", width=width, overflow="fold")
    for i, row in enumerate(table.rows):
        drawn.add_row(*(Text(cell, style=styles[table.marks.get((i, j), "")]) for j, cell in enumerate(row)))
    console.print(drawn)
    for note in table.notes:
        console.print(Text(note, style="dim"))
    console.print()


def _widths(table: ResultTable, room: int) -> list[int]:
    """Of the columns: as wide as their cells, but where there is no room, as few words wide as need be."""
    columns = list(zip(table.head, *table.rows, strict=True))
    widths = [max(map(cell_len, cells)) for cells in columns]
    words = [max((cell_len(word) for cell in cells for word in cell.split()), default=0) for cells in columns]
    while sum(widths) + 2 * len(widths) > room and widths != words:
        widest = max((i for i in range(len(widths)) if widths[i] > words[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


# What the tables say ---------------------------------------------------------------------------------


def likelihood_tables(experiment: Experiment, protocol: Protocol, gathered: Gathered) -> list[ResultTable]:
    """Of every data set and latent dimension two tables: the scores, and what is to be known about them."""
    tables = []
    for data, dim in gathered.columns():
        lines = gathered.lines(data, dim)
        if lines:
            title = f"{_title(experiment, data)}, d = {dim}"
            tables += [_scores(title, experiment, protocol, lines, data, dim), _diagnostics(title, lines)]
    return tables


def _title(experiment: Experiment, data: str) -> str:
    return experiment.title if experiment.data == (data,) else f"{experiment.title}, {data.upper()}"


def _scores(
    title: str, experiment: Experiment, protocol: Protocol, lines: Sequence[Line], data: str, dim: int
) -> ResultTable:
    methods = [line for line in lines if not ROWS[line.row].ablation] or lines
    marks: dict[tuple[int, int], Mark] = {}
    for column, score in ((1, "log_likelihood"), (3, "refined")):
        # The paper's marks compare methods; ablations explain one of them.
        for name, colour in mark({line.row: getattr(line, score) for line in methods}).items():
            if colour:
                marks[next(i for i, line in enumerate(lines) if line.row == name), column] = colour
    paper = _paper(experiment, data, dim)
    for i, line in enumerate(lines):
        if line.row in paper and paper[line.row][1]:
            marks[i, 5] = paper[line.row][1]
    rows = [
        [
            ROWS[line.row].title + (f" ({line.done} of {line.wanted} runs)" if line.done < line.wanted else ""),
            _summary(line.log_likelihood),
            _difference(line.difference),
            _summary(line.refined),
            _difference(line.refined_difference, line.splits_ahead),
            paper[line.row][0] if line.row in paper else "",
        ]
        for line in lines
    ]
    head = ["", "log p(x), encoder", "Δ VAE [95 %]", "log p(x), refined", "Δ VAE [95 %]", "paper"]
    runs = max(line.refined.runs for line in lines)
    notes = [
        f"Test log-likelihood in nats, importance-weighted with K = {protocol.scoring.samples} samples, mean ± "
        f"standard deviation over {runs} {'run' if runs == 1 else 'runs'}; red (bold): the best, blue (italic): not "
        "told from it by Welch's t-test at 1 %, among the methods without the ablations. Encoder: proposals of the "
        "method's own encoder. Refined: proposals fitted to each instance, the same way for all, so that it is the "
        "model that is scored.",
        *_about_differences(lines),
        *_about_paper(protocol, bool(paper)),
    ]
    return ResultTable(title, head, rows, marks, notes)


def _about_differences(lines: Sequence[Line]) -> list[str]:
    counts = {line.difference.instances for line in lines if line.difference is not None}
    return [
        f"Δ VAE: paired differences on the same {count:,} test instances and splits, with the 95 % interval over "
        "instances; behind it, the splits in which the method is ahead."
        for count in sorted(counts)[-1:]
    ]


def _about_paper(protocol: Protocol, known: bool) -> list[str]:
    if not known:
        return []
    same = protocol.name == "paper"
    return [
        "Paper: its own numbers" + ("." if same else ", from 2000 epochs on all images: not to be compared with ours.")
    ]


def _diagnostics(title: str, lines: Sequence[Line]) -> ResultTable:
    head = ["", "gap", "ESS enc.", "ESS ref.", "k̂ > 0.7 enc.", "k̂ > 0.7 ref.", "ρ uncertainty", "ρ −ELBO", "parameters"]
    rows = [
        [
            ROWS[line.row].title,
            _summary(line.gap),
            *(f"{ess:.1f}" for ess in line.ess),
            *("" if math.isnan(share) else f"{100 * share:.0f} %" for share in line.bad),
            "" if line.by_uncertainty is None else str(line.by_uncertainty),
            str(line.by_elbo),
            f"{line.parameters:,}",
        ]
        for line in lines
    ]
    notes = [
        "Gap: the refined ELBO less the encoder's, nats, mean over instances; below zero where the fitted Gaussian is "
        "worse than the encoder's posterior. ESS: effective samples. k̂ > 0.7: share of instances whose score cannot be "
        "trusted.",
        "ρ: Spearman's rank correlation of the gap, instance by instance, with the GP's uncertainty, and with −ELBO, "
        "which every encoder has: the baseline to beat.",
    ]
    return ResultTable(f"{title}: amortization gap and diagnostics", head, rows, notes=notes)


def posterior_tables(gathered: Gathered) -> list[ResultTable]:
    """How far encoders are from the true posterior on the grid, and what tells of it."""
    tables = []
    for data, dim in gathered.columns():
        rows = []
        for line in gathered.lines(data, dim):
            means = [gathered.mean(line.row, data, dim, score) for score in ("kl", "best_kl", "kl - best_kl")]
            tellers = [
                gathered.correlation(line.row, data, dim, teller, distance)
                for teller in ("uncertainty", "-elbo")
                for distance in ("kl", "kl - best_kl")
            ]
            rows.append(
                [
                    ROWS[line.row].title,
                    *("" if mean is None else _summary(mean) for mean in means),
                    *("" if found is None else str(found) for found in tellers),
                ]
            )
        head = ["", "KL(q‖p)", "of the best", "gap", "ρ unc., KL", "ρ unc., gap", "ρ −ELBO, KL", "ρ −ELBO, gap"]
        notes = [
            "KL(q‖p): from the encoder's posterior to the true one, by quadrature on a grid, nats, mean over instances "
            "± standard deviation over runs; of the best: the same of the diagonal Gaussian that is best for each "
            "instance; gap: the difference, what amortization costs.",
            "ρ: Spearman's rank correlation over instances, ± its standard error, of the GP's uncertainty (unc.) and "
            "of −ELBO, which every encoder has, with KL and gap.",
        ]
        if rows:
            tables.append(ResultTable(f"The true posterior, {data.upper()}, d = {dim}", head, rows, notes=notes))
    return tables


def _summary(found: Summary) -> str:
    return plus_minus(found.mean, found.std)


def _difference(found: PairedDifference | None, ahead: tuple[int, int] | None = None) -> str:
    if found is None:
        return ""
    signed = [f"{value:+.2f}".replace("-", "−") for value in (found.mean, found.low, found.high)]
    splits = "" if ahead is None else f" {ahead[0]}/{ahead[1]}"
    return f"{signed[0]} [{signed[1]}, {signed[2]}]{splits}"


def _paper(experiment: Experiment, data: str, dim: int) -> dict[str, tuple[str, Mark]]:
    """The paper's own numbers in a column, with its marks."""
    if experiment.decoder == "dense":
        column = PAPER.dense_log_likelihood.get(data, {}).get(dim, {})
        return {row: (f"{value:.1f}", "") for row, value in column.items() if not math.isnan(value)}
    marks = PAPER.marks.get(data, {}).get(dim, {})
    found = PAPER.log_likelihood.get(data, {}).get(dim, {})
    return {row: (plus_minus(s.mean, s.std, 1), marks[row]) for row, s in found.items()}
