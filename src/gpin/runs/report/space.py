"""The section of a page about the latent space: maps, active dimensions, traversals, interpolations, neighbours."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from gpin.report import Page, Section, Table, charts
from gpin.report.numbers import rounded
from gpin.runs.report import cells, figures
from gpin.runs.report.columns import by_column, left_out
from gpin.runs.report.comparison import Comparison
from gpin.runs.report.display import Display
from gpin.runs.report.given import example_note, first_note
from gpin.runs.report.instances import label
from gpin.runs.report.latent import ACTIVE, REACH, Codes, interpolation, neighbours, plane, traversal
from gpin.runs.report.scored_run import ScoredRun, TrainedRun
from gpin.runs.rows import conditions_of

__all__ = ["add_space", "add_traversals"]

SHOWN = 32
"""The largest number of latent dimensions whose activity is drawn."""
TRAVERSED = 8
"""The number of dimensions that are traversed, for a single run."""
ACROSS = 24
"""The number of images side by side that a map shows under the pointer."""
PLANE = 13
"""The number of steps in each direction of a grid over two latent dimensions."""
PEEK = 6
"""The number of columns of a row that a map shows under the pointer."""


def add_space(page: Page, comparison: Comparison, codes: Sequence[Codes], display: Display | None) -> None:
    """All that is shown of the latent space."""
    section = page.section("The latent space")
    _maps(section, comparison, codes, display)
    _activity(section, comparison, codes)
    if display is None:
        _effects(section, comparison, codes)
    else:
        strips(section, comparison.scored, [code.order[: max(code.active, 1)] for code in codes], display)
    _interpolations(section, comparison, codes, display)
    if len(comparison.scored) == 1:
        _neighbours(section, comparison, codes[0], display)


# Maps ------------------------------------------------------------------------------------------------


def _maps(section: Section, comparison: Comparison, codes: Sequence[Codes], display: Display | None) -> None:
    """Test instances at their codes, coloured by log-likelihood and by gap for one run, by gap for several."""
    scored, test = comparison.scored, comparison.data.test
    index = codes[0].index  # the same for all runs
    names = [label(test, i, comparison.noun) for i in index.tolist()]
    x = test.plain.__getitems__(index)
    more = [""] * len(index) if display is not None else _values(comparison, x.numpy())
    drawn = []
    for one, code in zip(scored, codes, strict=True):
        points, shares = code.projection
        colours = {"log-likelihood": _of_index(one, "refined_log_likelihood", code)}
        if one.gap is not None:
            colours["estimated gap"] = one.gap[index].numpy()
            if len(scored) > 1:
                del colours["log-likelihood"]
        texts = [
            "\n".join([name, *(f"{what} {values[i]:.2f} nats".replace("-", "−") for what, values in colours.items())])
            + more[i]
            for i, name in enumerate(names)
        ]
        for what, values in colours.items():
            title = one.name if len(scored) > 1 else f"By {what}"
            svg = charts.point_map(points, values, texts, _axes(one, shares), f"{what}, nats")
            drawn.append((title, svg, f"Map of test {comparison.nouns} at their codes by {one.name}, by {what}."))
    section.drawings(drawn)
    if display is None:
        section.labels()
    else:
        images = display(x)
        section.sprite(figures.sprite(images, ACROSS), min(ACROSS, len(images)), math.ceil(len(images) / ACROSS))
    section.text(
        f"{comparison.several(len(index)).capitalize()} of the test part, each at its posterior mean; {_where(codes)}. "
        "Colours go by rank, from blue for the smallest value to orange for the largest. Groups of points are "
        f"{comparison.nouns} that the model finds alike. Move the pointer over a point to see the {comparison.noun}.",
        kind="note",
    )


def _of_index(one: ScoredRun, score: str, codes: Codes) -> np.ndarray:
    """The values of a refined score for the instances of these codes."""
    places = np.searchsorted(one.chosen.numpy(), codes.index)
    return one.of_chosen[score].numpy()[places]


def _axes(one: ScoredRun, shares: np.ndarray) -> tuple[str, str]:
    if one.vae.latent_dim <= 2:
        return "z1", "z2" if one.vae.latent_dim == 2 else ""
    first, second = (f"component {k + 1} ({100 * share:.0f} %)" for k, share in enumerate(shares))
    return first, second


def _where(codes: Sequence[Codes]) -> str:
    wide = any(code.mean.shape[1] > 2 for code in codes)
    return (
        "the axes are the principal components of all of them, with their shares of the variance"
        if wide
        else ("the axes are the latent dimensions")
    )


def _values(comparison: Comparison, x: np.ndarray) -> list[str]:
    """The first columns of rows, as text for a map."""
    values, spread = comparison.data.scaling.undo(x), comparison.moments[1]
    return [
        "".join(
            f"\n{name}: {cells.shown(comparison.data.scaling, k, row[k], spread[k])}"
            for k, name in enumerate(comparison.columns[:PEEK])
        )
        for row in values
    ]


# Dimensions ------------------------------------------------------------------------------------------


def _activity(section: Section, comparison: Comparison, codes: Sequence[Codes]) -> None:
    """The KL of each dimension, the most active first."""
    section.heading("Active dimensions")
    drawn = []
    for index, (one, code) in enumerate(zip(comparison.scored, codes, strict=True)):
        order = code.order[:SHOWN].tolist()
        faint = [f"z{k + 1}" for k in order if code.variance[k] <= ACTIVE]
        svg = charts.bars({f"z{k + 1}": float(code.kl[k]) for k in order}, "nats", index=index, faint=faint)
        many = f", the first {SHOWN} shown" if one.vae.latent_dim > SHOWN else ""
        title = f"{one.name}: {code.active} of {one.vae.latent_dim} active{many}"
        drawn.append((title, svg, f"The KL of each latent dimension of {one.name} to the prior."))
    section.drawings(drawn)
    section.text(
        "The KL of each latent dimension to the prior, mean over instances: how much it says about the data. The "
        "dimension whose posterior means vary most comes first. A dimension is active if the variance of its posterior "
        f"means exceeds {ACTIVE:g}; the others are pale.",
        kind="note",
    )


def strips(section: Section, runs: Sequence[TrainedRun], orders: Sequence[np.ndarray], display: Display) -> None:
    """Decoded images along the most active dimensions of each run, or on a grid if there are only two."""
    section.heading("Traversals")
    for one, order in zip(runs, orders, strict=True):
        if len(runs) > 1:
            section.text(one.name)
        if one.vae.latent_dim == 2 and not display.series:
            images = display(plane(one.vae, PLANE))
            section.picture(
                figures.grid(images, PLANE),
                f"Images decoded by {one.name} on a grid over both latent dimensions",
                f"z1 goes from −{REACH:g} on the left to {REACH:g} on the right, z2 from −{REACH:g} below to {REACH:g}",
            )
            continue
        steps = figures.columns(display, one.vae.shape) + (0 if display.series else 1)
        shown = order[: TRAVERSED if len(runs) == 1 else 4].tolist()
        section.strips(
            (f"z{k + 1}", figures.strip(display(traversal(one.vae, k, steps))), f"Dimension {k + 1} of {one.name}")
            for k in shown
        )
    if any(one.vae.latent_dim != 2 or display.series for one in runs):
        section.text(
            f"What the decoder makes of a code in which one number goes from −{REACH:g} to {REACH:g}, while the others "
            "are zero, for the most active dimensions. What changes along a row is what that dimension stands for."
            + example_note(runs),
            kind="note",
        )


def add_traversals(page: Page, runs: Sequence[TrainedRun], display: Display) -> None:
    """The traversals alone, for runs whose data is not at hand, in the order of the dimensions."""
    strips(page.section("The latent space"), runs, [np.arange(one.vae.latent_dim) for one in runs], display)


def _effects(section: Section, comparison: Comparison, codes: Sequence[Codes]) -> None:
    """How the columns of a table change along the most active dimensions of each run."""
    section.heading("Traversals")
    spread, scaling = np.maximum(comparison.moments[1], 1e-300), comparison.data.scaling
    labels = [k for k in range(len(comparison.columns)) if cells.levels(scaling, k)]
    for one, code in zip(comparison.scored, codes, strict=True):
        dims = code.order[:TRAVERSED].tolist()
        change = []
        for k in dims:
            ends = scaling.undo(traversal(one.vae, k, 2))
            change.append((ends[1] - ends[0]) / spread)
        effects = np.stack(change, axis=1)  # (columns, dims)
        effects[labels] = 0.0  # levels have no order
        order = [k for k in np.argsort(-np.abs(effects).max(axis=1), kind="stable").tolist() if k not in labels][:15]
        rows = [[comparison.columns[j], *(_signed(e) for e in effects[j])] for j in order]
        most = max(float(np.abs(effects).max()), 1e-12)
        shades = {(i, k + 1): effects[j, k] / most for i, j in enumerate(order) for k in range(len(dims))}
        head = [one.name if len(comparison.scored) > 1 else "", *(f"z{k + 1}" for k in dims)]
        section.table(Table(head, rows, shades=shades))
    section.text(
        f"By how many standard deviations a column changes when one latent dimension goes from −{REACH:g} to {REACH:g} "
        "and the others are zero: the most active dimensions from left to right, the columns that change most first. "
        "Columns with the same sign in a dimension rise and fall together."
        + (" Categorical columns have no order and are left out." if labels else "")
        + example_note(comparison.scored),
        kind="note",
    )


def _signed(value: float) -> str:
    text = rounded(value, 1)
    return f"+{text}" if float(value) > 0 and text != "0.0" else text


# Pairs and neighbours --------------------------------------------------------------------------------


def _interpolations(section: Section, comparison: Comparison, codes: Sequence[Codes], display: Display | None) -> None:
    """Straight lines between the codes of pairs of test instances."""
    section.heading("Interpolations")
    test, alone = comparison.data.test, len(comparison.scored) == 1
    count = len(codes[0].index)
    ends = np.linspace(0, count - 1, 2 * min(4 if alone else 1, max(1, count // 2))).astype(int).reshape(-1, 2)
    for one, code in zip(comparison.scored, codes, strict=True):
        if display is None:
            _interpolated_row(section, comparison, one, code, ends[0])
            continue
        steps = figures.columns(display, one.vae.shape) - 2
        rows = []
        for number_, (i, j) in enumerate(ends.tolist()):
            x = test.plain.__getitems__(code.index[[i, j]])
            y = conditions_of(one.vae, test.chosen(code.index[[i]]), 1)
            path = interpolation(one.vae, code.mean[i], code.mean[j], max(steps, 3), y)
            images = display(torch.cat([x[:1], path.to(x.dtype), x[1:]]))
            names = [label(test, int(code.index[k]), comparison.noun) for k in (i, j)]
            title = f"pair {number_ + 1}" if alone else one.name
            rows.append((title, figures.strip(images), f"From {names[0]} to {names[1]} by {one.name}"))
        section.strips(rows)
    if display is not None:
        section.text(
            f"The first and the last {comparison.noun} of a row are from the test part. Between them, what the decoder "
            "makes of codes on the straight line between their codes. If the steps in between are as good as the ends, "
            "the latent space has no holes there." + first_note(comparison.scored),
            kind="note",
        )


def _interpolated_row(section: Section, comparison: Comparison, one: ScoredRun, code: Codes, ends: np.ndarray) -> None:
    y = conditions_of(one.vae, comparison.data.test.chosen(code.index[ends[:1]]), 1)
    path = interpolation(one.vae, code.mean[ends[0]], code.mean[ends[1]], 5, y)
    places = comparison.data.test.rows[code.index[ends]].tolist()
    head = [one.name, f"at row {places[0]}", "¼", "½", "¾", f"at row {places[1]}"]
    section.table(Table(head, by_column(comparison, comparison.data.scaling.undo(path))))
    section.text(
        f"Decoded rows on the straight line between the codes of two test rows.{left_out(comparison, len(head) + 4)}"
        + first_note(comparison.scored),
        kind="note",
    )


def _neighbours(section: Section, comparison: Comparison, codes: Codes, display: Display | None) -> None:
    """The training instances with the nearest codes of a few test instances."""
    (one,), data = comparison.scored, comparison.data
    across = 6 if display is None else figures.columns(display, data.shape) - 1
    found = neighbours(one, data, codes, 3 if display is None else 5, across, comparison.seed)
    section.heading("Nearest neighbours")
    if display is None:
        rows = [
            [f"Row {data.test.rows[i]}", ", ".join(map(str, data.train.rows[near].tolist()))]
            for i, near in zip(found.index.tolist(), found.nearest, strict=True)
        ]
        section.table(Table(["Test row", "Training rows with the nearest codes"], rows, numeric=False))
    else:
        section.strips(
            (
                label(data.test, i, comparison.noun),
                figures.strip(
                    display(torch.cat([data.test.plain.__getitems__([i]), data.train.plain.__getitems__(near)]))
                ),
                f"{label(data.test, i, comparison.noun)} and its neighbours: "
                + ", ".join(label(data.train, j, comparison.noun) for j in near.tolist()),
            )
            for i, near in zip(found.index.tolist(), found.nearest, strict=True)
        )
    first = "" if display is None else f" The first {comparison.noun} of a row is from the test part."
    section.text(
        f"Training {comparison.nouns} whose posterior means are nearest to that of a test {comparison.noun}, the "
        f"nearest first, among {found.searched:,}.{first} They should look alike; if one looks the same, it may "
        "be in the data twice.",
        kind="note",
    )
