"""Tables of results, and how they are written: for a terminal, in Markdown, in LaTeX and in HTML."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from gpin.data import BENCHMARKS
from gpin.experiments.analysis.gathering import Gathered, Line
from gpin.experiments.analysis.paper import PAPER
from gpin.experiments.analysis.statistics import Mark, PairedDifference, Summary, mark
from gpin.experiments.protocols import ROWS, Experiment, Protocol
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
    """Print a table for a person; where a screen has no room for all of its columns, in several parts."""
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
    """Columns that fit beside the first one, in as few parts as need be and about as many in each; and its width.

    The names of the rows may be broken between words, numbers may not.
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


# What the tables say ---------------------------------------------------------------------------------


def likelihood_tables(experiment: Experiment, protocol: Protocol, gathered: Gathered) -> list[ResultTable]:
    """Of every data set and latent dimension the scores, the differences to the VAE, and what else is to be known."""
    tables = []
    for data, dim in gathered.columns():
        lines = gathered.lines(data, dim)
        if lines:
            title = f"{_title(experiment, data)}, d = {dim}"
            tables.append(_scores(title, experiment, protocol, gathered, lines, data, dim))
            if any(line.differences for line in lines):
                tables.append(_differences(title, lines))
            tables.append(_diagnostics(title, lines))
    return tables


def _title(experiment: Experiment, data: str) -> str:
    return experiment.title if experiment.data == (data,) else f"{experiment.title}, {data.upper()}"


def _name(line: Line) -> str:
    """Of a row, with how many of its trainings are there where some are not."""
    return ROWS[line.row].title + (f" ({line.done} of {line.wanted} runs)" if line.done < line.wanted else "")


def _scores(
    title: str,
    experiment: Experiment,
    protocol: Protocol,
    gathered: Gathered,
    lines: Sequence[Line],
    data: str,
    dim: int,
) -> ResultTable:
    marks: dict[tuple[int, int], Mark] = {}
    runs = max(line.refined.runs for line in lines)
    # The paper's marks compare methods; ablations explain one of them, and what lacks runs is not compared yet.
    methods = [line for line in lines if not ROWS[line.row].ablation] or lines
    compared = [line for line in methods if line.done == line.wanted and line.refined.runs > 1]
    if len(compared) == 1:  # the best of one is nothing to say
        compared = []
    for column, score in ((1, "log_likelihood"), (2, "refined")):
        for name, colour in mark({line.row: getattr(line, score) for line in compared}).items():
            if colour:
                marks[next(i for i, line in enumerate(lines) if line.row == name), column] = colour
    paper = _paper(experiment, data, dim)
    for i, line in enumerate(lines):
        if line.row in paper and paper[line.row][1]:
            marks[i, 3] = paper[line.row][1]
    rows = [
        [
            _name(line),
            _summary(line.log_likelihood),
            _summary(line.refined),
            *([paper[line.row][0] if line.row in paper else ""] if paper else []),
        ]
        for line in lines
    ]
    starts = protocol.initialisations
    best = f", each the best on validation data of {starts} initialisations" if starts > 1 else ""
    few = FEW_RUNS if runs < 5 and any(line.differences for line in lines) else ""
    notes = [
        f"Test log-likelihood in nats, importance-weighted with K = {protocol.scoring.samples} samples, mean ± "
        f"standard deviation over {runs} {'run' if runs == 1 else 'runs'}{best}. Encoder: proposals of the method's "
        "own encoder. Refined: proposals fitted to each instance, the same way for all, so that it is the model that "
        "is scored (they start from the encoder's mean, and end where a step gains less than 0.1 nats).",
        *([MARKED + few] if marks else []),
        *_collapsed(lines),
        *_cautions(gathered, data),
        *_about_paper(protocol, bool(paper)),
        *([] if experiment.decoder == "dense" else _otherwise_in_the_supplement(lines, data, dim)),
    ]
    head = ["", "log p(x), encoder", "log p(x), refined", *(["paper"] if paper else [])]
    return ResultTable(title, head, rows, marks, notes)


MARKED = (
    "Red (bold): the best; blue (italic): not told from it by Welch's t-test at 1 %. Ablations, and rows that lack "
    "runs, are not compared."
)
FEW_RUNS = " From so few runs that test tells little apart: the paired differences tell more."


def _collapsed(lines: Sequence[Line]) -> list[str]:
    found = [
        f"{ROWS[line.row].title} on split{'s' if len(line.collapsed) > 1 else ''} {', '.join(map(str, line.collapsed))}"
        for line in lines
        if line.collapsed
    ]
    why = "all samples of a proposal count alike, so the decoder takes no notice of the code"
    return [f"Collapsed trainings ({why}): {'; '.join(found)}."] if found else []


def _cautions(gathered: Gathered, data: str) -> list[str]:
    """What the runs were trained and scored on, and what makes them less alike than the table looks."""
    found = _sizes(gathered, data)
    if len(gathered.fingerprints.get(data, ())) > 1:
        found.append(f"The runs on {data} did not all have the same images: their fingerprints differ.")
    if data in BENCHMARKS and BENCHMARKS[data].counts[1] is None:
        found.append(
            "The test part changes with the split: the deviations over runs contain that, the differences do not."
        )
    return found


def _sizes(gathered: Gathered, data: str) -> list[str]:
    return [
        f"Trained on {train:,} instances, scored on {test:,} of the test part." for train, test in gathered.sizes(data)
    ]


def _about_paper(protocol: Protocol, known: bool) -> list[str]:
    if not known:
        return []
    same = protocol.name == "paper"
    return [
        "Paper: its own numbers" + ("." if same else ", from 2000 epochs on all images: not to be compared with ours.")
    ]


def _otherwise_in_the_supplement(lines: Sequence[Line], data: str, dim: int) -> list[str]:
    """Where the paper's supplement has another number than its table."""
    table = PAPER.log_likelihood.get(data, {}).get(dim, {})
    other = PAPER.supplement.get(data, {}).get(dim, {})
    differing = [
        f"{ROWS[line.row].title} {other[line.row]:.1f}"
        for line in lines
        if line.row in other and f"{other[line.row]:.1f}" != f"{table[line.row].mean:.1f}"
    ]
    return [f"The paper's supplement has other numbers: {', '.join(differing)}."] if differing else []


def _differences(title: str, lines: Sequence[Line]) -> ResultTable:
    rows = [
        [
            _name(line),
            *(
                cell
                for one in line.differences
                for cell in (
                    _signed(one.instances.mean),
                    _interval(one.instances),
                    f"{_interval(one.splits)} {one.ahead}/{one.splits.instances}".strip(),
                )
            ),
        ]
        for line in lines
        if line.differences
    ]
    head = ["", "encoder", "instances", "trainings", "refined", "instances", "trainings"]
    counts = sorted({one.instances.instances for line in lines for one in line.differences})
    notes = [
        f"Paired differences on the same {' or '.join(f'{count:,}' for count in counts)} test instances and splits, "
        "nats. Instances: the 95 % interval over test instances, for these trainings. Trainings: the 95 % interval "
        "over splits, of which there are few; behind it, in how many of them the method is ahead.",
    ]
    return ResultTable(f"{title}: ahead of the VAE", head, rows, notes=notes)


def _diagnostics(title: str, lines: Sequence[Line]) -> ResultTable:
    head = ["", "gap", "ELBO", "ESS", "k̂ > 0.7", "MC error", "ρ unc.", "ρ −ELBO", "size"]
    rows = [
        [
            _name(line),
            _summary(line.gap),
            _summary(line.elbo),
            "{:.1f} / {:.1f}".format(*line.ess),
            " / ".join("?" if math.isnan(share) else f"{100 * share:.0f} %" for share in line.bad),
            "{:.2f} / {:.2f}".format(*line.mc_error),
            "" if line.by_uncertainty is None else str(line.by_uncertainty),
            "" if line.by_elbo is None else str(line.by_elbo),
            f"{line.parameters:,}",
        ]
        for line in lines
    ]
    notes = [
        "Gap: the ELBO of the refined Gaussian less the encoder's, nats, mean over instances ± standard deviation over "
        "runs; below zero where the fitted Gaussian is worse than the encoder's posterior. By proposals of the encoder "
        "/ refined: ESS, effective samples; k̂ > 0.7, share of instances whose score cannot be trusted; MC error, of "
        "the mean (it means little where most k̂ are above 0.7).",
        "ρ: Spearman's rank correlation of the gap, instance by instance, ± its standard error, with the GP's "
        "uncertainty (unc.), and with −ELBO, which every encoder has: the baseline to beat (it shares its noise "
        "with the gap). Size: parameters.",
    ]
    return ResultTable(f"{title}: amortization gap and diagnostics", head, rows, notes=notes)


def posterior_tables(gathered: Gathered) -> list[ResultTable]:
    """How far encoders are from the true posterior on the grid, and what tells of it."""
    tables = []
    for data, dim in gathered.columns():
        rows = []
        for line in gathered.lines(data, dim):
            found = gathered.posterior_line(line.row, data, dim)
            means = (found.log_evidence, found.kl, found.best_kl, found.excess)
            tellers = (*found.by_uncertainty, *found.by_elbo)
            rows.append([_name(line), *map(_summary, means), *("" if c is None else str(c) for c in tellers)])
        head = [
            "",
            "log p(x)",
            "KL(q‖p)",
            "best",
            "excess",
            "ρ unc., KL",
            "ρ unc., exc.",
            "ρ −ELBO, KL",
            "ρ −ELBO, exc.",
        ]
        notes = [
            "log p(x): exact, by quadrature on the grid. KL(q‖p): from the encoder's posterior to the true one, nats, "
            "mean over instances ± standard deviation over runs; best: the same of the diagonal Gaussian that is best "
            "for each instance; excess (exc.): the difference, what amortization costs.",
            "ρ: Spearman's rank correlation over instances, ± its standard error, of the GP's uncertainty (unc.) and "
            "of −ELBO, which every encoder has, with KL and excess.",
            *_sizes(gathered, data),
        ]
        if rows:
            tables.append(ResultTable(f"The true posterior, {data.upper()}, d = {dim}", head, rows, notes=notes))
    return tables


def _summary(found: Summary) -> str:
    return plus_minus(found.mean, found.std)


def _signed(value: float) -> str:
    return "" if math.isnan(value) else f"{value:+.2f}".replace("-", "−")


def _interval(found: PairedDifference) -> str:
    return "" if math.isnan(found.low) else f"[{_signed(found.low)}, {_signed(found.high)}]"


def _paper(experiment: Experiment, data: str, dim: int) -> dict[str, tuple[str, Mark]]:
    """The paper's own numbers in a column, with its marks."""
    if experiment.decoder == "dense":
        column = PAPER.dense_log_likelihood.get(data, {}).get(dim, {})
        return {row: (f"{value:.1f}", "") for row, value in column.items() if not math.isnan(value)}
    marks = PAPER.marks.get(data, {}).get(dim, {})
    found = PAPER.log_likelihood.get(data, {}).get(dim, {})
    return {row: (plus_minus(s.mean, s.std, 1), marks[row]) for row, s in found.items()}
