"""The sections of a page that show a table: marginals, errors of columns, reconstructed rows, and the hardest rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpin._core.seeding import seeded
from gpin.report import Page, Section, Table
from gpin.report.charts import histogram
from gpin.report.numbers import number, rounded
from gpin.runs.decode import reconstruct_rows, sample_rows
from gpin.runs.report import cells
from gpin.runs.report.comparison import Comparison
from gpin.runs.report.given import rows_note
from gpin.runs.report.instances import gap_note, latent_dims, row_note
from gpin.runs.report.scored_run import ScoredRun
from gpin.runs.rows import batches, conditions_of, random_rows, spread_rows

__all__ = ["add_columns", "add_details", "add_hardest_rows", "bins", "by_column", "left_out"]

COLUMNS = 10
"""The number of columns that are shown for an instance of a table."""
DESCRIBED = 20
"""The number of columns whose means, deviations and errors are shown."""
DRAWN = 12
"""The number of columns whose marginals are drawn."""
DRAWS = 10_000
"""The number of samples from which marginals are computed."""
BINS, FEWEST, DISCRETE = 24, 5, 12
"""The largest and the smallest number of bins of a histogram, and the largest number of different values that have a
bin each."""
LABELS = (
    "For labels it is the share of wrong ones, and how much smaller it is than that of always guessing the most "
    "frequent label."
)
HARDEST = 10
"""The number of hardest rows that are listed."""


@dataclass(frozen=True, eq=False)
class Marginals:
    """The values of test rows and of samples, in the units of the data.

    Attributes:
        data: The test rows, `(n, columns)`.
        drawn: Samples of each run, noise included, each `(DRAWS, columns)`.
    """

    data: np.ndarray
    drawn: Sequence[np.ndarray]

    def distance(self, column: int) -> float:
        """The largest distance between the distribution functions of data and samples of a column, over all runs."""
        data = _known(self.data[:, column])
        return max((_kolmogorov(data, _known(values[:, column])) for values in self.drawn), default=0.0)


def _known(values: np.ndarray) -> np.ndarray:
    return np.sort(values[np.isfinite(values)].astype(np.float64))


def _kolmogorov(first: np.ndarray, second: np.ndarray) -> float:
    """The Kolmogorov–Smirnov distance of two sorted samples."""
    if not len(first) or not len(second):
        return 0.0
    places = np.concatenate([first, second])
    parts = [np.searchsorted(values, places, side="right") / len(values) for values in (first, second)]
    return float(np.abs(parts[0] - parts[1]).max())


def bins(
    data: np.ndarray, drawn: Sequence[np.ndarray], names: Sequence[str] = (), train: np.ndarray | None = None
) -> tuple[np.ndarray, list[np.ndarray], Sequence[str] | None]:
    """The edges of the bins of a column, and the shares of the data and of each sample in them.

    A column with few different values has a bin for each, with the value as its text, and whole numbers have bins
    without gaps between them. Otherwise there are at most √n bins for n values of the data. The bins cover all but the
    outer hundredth of the data and of the samples, see `_range`, and what lies outside counts for the outer bins.

    Arguments:
        data: The values of the data.
        drawn: The values of each sample.
        names: The names of the levels of a categorical column, each of which has a bin.
        train: Values of the training part, which the bins cover as well.
    """
    data, samples = _known(data), [_known(values) for values in drawn]
    known = data if train is None else np.concatenate([data, _known(train)])
    values = np.arange(len(names)) if names else np.unique(known)
    texts: Sequence[str] | None = None
    few = len(values) <= DISCRETE
    if names:
        inner, texts = values[:-1] + 0.5, names
    elif not len(values):
        inner, texts = np.empty(0), ["—"]
    elif _whole(values) and (few or all(map(_whole, samples))):
        least, most = (int(edge) for edge in np.round(_range(known, samples)))
        step = -(-(most - least + 1) // BINS)
        first = np.arange(least, most + 1, step)
        inner = first[1:] - 0.5
        texts = [f"{k}" if step == 1 else f"{k}–{k + step - 1}" for k in first]
    elif few and 2 * len(values) <= len(known):
        inner, texts = (values[1:] + values[:-1]) / 2, [f"{value:g}" for value in values]
    else:
        low, high = _range(known, samples)
        count = min(BINS, max(FEWEST, int(np.sqrt(len(data)))))
        edges = np.linspace(low, high if high > low else low + 1, count + 1)
        inner = edges[1:-1]
    if texts is not None:
        edges = np.arange(len(inner) + 2.0)
    found = []
    for part in (data, *samples):
        counts = np.bincount(np.searchsorted(inner, part, side="right"), minlength=len(inner) + 1)
        found.append(counts / max(1, len(part)))
    return edges, found, texts


def _whole(values: np.ndarray) -> bool:
    return bool((values == np.round(values)).all())


def _range(known: np.ndarray, samples: Sequence[np.ndarray]) -> tuple[float, float]:
    """The range of all but the outer hundredth of the data and of each sample.

    Samples extend the range of the data to either side by at most its width, so that a few extreme ones do not hide the
    data.
    """
    low, high = np.quantile(known, [0.005, 0.995])
    wide = max(high - low, np.abs([low, high]).max() * 1e-6)
    ends = [np.quantile(part, [0.005, 0.995]) for part in samples if len(part)]
    least, most = (pick([end[i] for end in ends], default=low) for i, pick in enumerate((min, max)))
    return float(max(min(low, least), low - wide)), float(min(max(high, most), high + wide))


def add_columns(page: Page, comparison: Comparison) -> Marginals:
    """The marginals of data and samples, the columns that differ most first."""
    scored, data, names = comparison.scored, comparison.data, comparison.columns
    drawn = [np.concatenate([data.scaling.undo(x) for x in _draws(one, comparison)]) for one in scored]
    some = random_rows(data.test, DRAWS, comparison.seed)
    found = Marginals(np.concatenate([data.scaling.undo(x) for x in batches(some.plain)]), drawn)
    distance = [found.distance(k) for k in range(len(names))]
    order = sorted(range(len(names)), key=lambda k: -distance[k])[:DRAWN]
    section = page.section("Samples")
    train = np.concatenate(
        [data.scaling.undo(x) for x in batches(random_rows(data.train, DRAWS, comparison.seed).plain)]
    )
    charts = []
    for k in order:
        own = [values[:, k] for values in drawn]
        edges, shares, texts = bins(found.data[:, k], own, cells.levels(data.scaling, k), train[:, k])
        alt = f"Histogram of {names[k]}: the data, and samples of {', '.join(one.name for one in scored)}."
        charts.append((names[k], histogram(edges, shares[0], shares[1:], texts), alt))
    section.drawings(charts, small=True)
    which = f"The {len(order)} of {len(names)} columns" if len(order) < len(names) else "The columns"
    colours = "the line" if len(scored) == 1 else f"the lines, in the order of {', '.join(one.name for one in scored)},"
    section.text(
        f"{which} in which samples differ most from the data come first. The grey bars are {len(some):,} test "
        f"rows, {colours} {DRAWS:,} rows drawn from the model, noise included. A good model follows the bars as far as "
        "the number of test rows allows; what lies beyond an axis counts for its outer bins, and "
        "dependences between columns are not shown here." + rows_note(scored),
        kind="note",
    )
    return found


def _draws(one: ScoredRun, comparison: Comparison) -> Sequence[np.ndarray]:
    """Draws from a run's model, with the conditions of test rows if it is conditional."""
    y = conditions_of(one.vae, comparison.data.test, DRAWS)
    return [x.numpy() for x in sample_rows(one.vae, DRAWS, noise=True, seed=comparison.seed, y=y)]


def _moments(comparison: Comparison, found: Marginals) -> Table:
    spread, parts = comparison.moments[1], [found.data, *found.drawn]
    rows = [
        [name, *(cells.summed_up(comparison.data.scaling, k, values[:, k], spread[k]) for values in parts)]
        for k, name in enumerate(comparison.columns[:DESCRIBED])
    ]
    return Table(["mean (deviation)", "Test rows", *(one.name for one in comparison.scored)], rows)


# Reconstructions -------------------------------------------------------------------------------------


def add_details(page: Page, comparison: Comparison, found: Marginals) -> None:
    """The moments and the errors of all columns, and a few rows beside their reconstructions."""
    section = page.section("Column by column")
    section.table(_moments(comparison, found))
    section.text(
        "Mean and standard deviation of the test rows and of the drawn rows, in the units of the data"
        f"{'; of a column of labels, the most frequent one and its share' if _labels(comparison) else ''}."
        f"{left_out(comparison, DESCRIBED)}",
        kind="note",
    )
    _errors_table(section, comparison)
    _rebuilt_rows(page, comparison)


def _errors_table(section: Section, comparison: Comparison) -> None:
    """The error of the reconstruction of each column, the least retained first."""
    explained, errors = zip(*(_errors(comparison, one) for one in comparison.scored), strict=True)
    names, spread = comparison.columns, comparison.moments[1]

    def said(k: int, error: float) -> str:
        label = cells.is_label(comparison.data.scaling, k)
        return f"{100 * error**2:.0f} % wrong" if label else number(error, spread[k])

    order = np.argsort(explained[0], kind="stable")[:DESCRIBED].tolist()
    rows = [
        [names[k], *(f"{said(k, e[k])} ({100 * r[k]:.0f} %)" for r, e in zip(explained, errors, strict=True))]
        for k in order
    ]
    section.heading("Which columns the code retains")
    section.table(Table(["error (variance explained)", *(one.name for one in comparison.scored)], rows))
    few = f"The {len(order)} of {len(names)} columns that are retained least" if len(order) < len(names) else "Columns"
    section.text(
        f"{few}, the worst first: the root mean squared error of the reconstructions of test rows, in the units of the "
        "data, and the share of the variance that they explain. A share near zero means that the latent code ignores "
        "the column, or that it is noise." + (f" {LABELS}" if _labels(comparison) else ""),
        kind="note",
    )


def _errors(comparison: Comparison, one: ScoredRun) -> tuple[np.ndarray, np.ndarray]:
    """The share of the variance of each column that reconstructions explain, and the root mean squared error."""
    scaling, test = comparison.data.scaling, comparison.data.test
    found = reconstruct_rows(one.vae, test, seed=comparison.seed)
    pairs = [(scaling.undo(x), scaling.undo(again)) for _, x, again in found]
    original, again = (np.concatenate(part) for part in zip(*pairs, strict=True))
    squared = np.nanmean(cells.deviations(scaling, original, again) ** 2, axis=0)
    return np.maximum(1 - squared / np.maximum(cells.baseline(scaling, original), 1e-300), 0.0), np.sqrt(squared)


def _labels(comparison: Comparison) -> bool:
    """Whether the table has columns of labels."""
    return any(cells.is_label(comparison.data.scaling, k) for k in range(len(comparison.columns)))


def _rebuilt_rows(page: Page, comparison: Comparison) -> None:
    """A few test rows beside their reconstructions."""
    data, scored = comparison.data, comparison.scored
    chosen = spread_rows(data.test, 3)
    x = chosen[:]
    with seeded(comparison.seed):
        shown = [data.scaling.undo(chosen.plain[:]), *(data.scaling.undo(one.vae.reconstruct(x)) for one in scored)]
    section = page.section("Reconstructions")
    for place, *beside in zip(chosen.rows.tolist(), *shown, strict=True):
        head = [f"Row {place}", "original", *(one.name for one in scored)]
        section.table(Table(head, by_column(comparison, np.stack(beside))))
    section.text(
        f"Some test rows in the units of the data, each next to its reconstruction from the {latent_dims(scored)} "
        f"numbers of the latent code.{row_note(comparison)}{left_out(comparison, COLUMNS)}",
        kind="note",
    )


def by_column(comparison: Comparison, values: np.ndarray) -> list[list[str]]:
    """Instances `(n, columns)` side by side, one row for each of the first columns."""
    scaling, spread = comparison.data.scaling, comparison.moments[1]
    return [
        [name, *(cells.shown(scaling, k, value, spread[k]) for value in values[:, k])]
        for k, name in enumerate(comparison.columns[:COLUMNS])
    ]


def left_out(comparison: Comparison, shown: int) -> str:
    """A sentence that says how many columns are shown, if not all."""
    count = len(comparison.columns)
    return f" The first {shown} of {count} columns are shown." if count > shown else ""


# The hardest rows ------------------------------------------------------------------------------------


def add_hardest_rows(page: Page, comparison: Comparison) -> None:
    """The least likely test rows of every run, with the columns in which they are furthest from the model."""
    section = page.section("The hardest rows")
    data, scaling = comparison.data, comparison.data.scaling

    def said(k: int, value: float, off: float) -> str:
        by = "unexpected" if cells.is_label(scaling, k) else f"{'+' if off > 0 else ''}{rounded(off, 1)}"
        return f"{comparison.columns[k]} {cells.shown(scaling, k, value, comparison.moments[1][k])} ({by})"

    for one in comparison.scored:
        _, spread = _errors(comparison, one)
        values = one.likelihood("refined").values
        lowest = values.argsort(stable=True)[:HARDEST]
        chosen = one.chosen[lowest].tolist()
        x = data.test.__getitems__(chosen)
        with seeded(comparison.seed):
            again = scaling.undo(one.vae.reconstruct(x))
        original = scaling.undo(one.vae.values(x))
        off = np.nan_to_num(cells.deviations(scaling, original, again) / np.maximum(spread, 1e-300))
        rows = []
        for i, place, ll in zip(range(len(chosen)), data.test.rows[chosen].tolist(), values[lowest], strict=True):
            gap = "—" if one.gap is None else rounded(one.gap[chosen[i]].item(), 1)
            worst = [k for k in np.argsort(-np.abs(off[i]), kind="stable")[:3].tolist() if off[i, k]]
            why = ", ".join(said(k, original[i, k], off[i, k]) for k in worst)
            rows.append([f"Row\N{NO-BREAK SPACE}{place}", rounded(ll.item(), 1), gap, why])
        if len(comparison.scored) > 1:
            section.heading(f"Under {one.name}")
        head = ["", "log-likelihood", "estimated gap", "furthest from the model"]
        section.table(Table(head, rows, numeric=False))
    section.text(
        "The test rows with the lowest refined log-likelihood, in nats, and the columns in which they differ most from "
        "their reconstruction; the difference in brackets is in units of that column’s error over all test rows"
        f"{', and a label that differs is called unexpected' if _labels(comparison) else ''}. "
        f"{gap_note(comparison)}{row_note(comparison)}",
        kind="note",
    )
