"""Figures drawn with matplotlib: curves, scatters, strips and panels.

The functions take plain arrays. A figure becomes SVG for a page, where its colours follow the page's theme, or PNG
for other uses. Images have the format of `gpin.report.images`.
"""

import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpin._core.extras import extra
from gpin.report.images import image_grid, rgba
from gpin.report.numbers import even_ranks
from gpin.report.style import LIGHT

with extra("plots"):
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Ellipse
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

__all__ = [
    "Curve",
    "Figure",
    "Panel",
    "coverage_curves",
    "curves",
    "intervals",
    "ordered_strip",
    "png",
    "posterior_panels",
    "scatter",
    "stacked_bars",
    "standalone_svg",
    "svg",
]

Array = np.ndarray
Curve = Sequence[float]

_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.edgecolor": LIGHT["muted"],
    "axes.labelcolor": LIGHT["muted"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT["rule"],
    "grid.linewidth": 0.8,
    "text.color": LIGHT["ink"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "gpin",
}


def _style() -> AbstractContextManager[None]:
    return mpl.rc_context(_STYLE)


def series(index: int) -> str:
    """The colour of a method by its index, counted from 0; colours repeat after eight."""
    return LIGHT[f"series-{index % 8 + 1}"]


# Drawn figures ---------------------------------------------------------------------------------------


def curves(
    lines: Mapping[str, Mapping[str, Curve]], xlabel: str, ylabel: str, marks: Mapping[str, int] | None = None
) -> Figure:
    """Curves of several methods over epochs, counted from 1, such as the training and validation ELBO.

    Arguments:
        lines: The curves by method, then by kind; the first kind is drawn solid, the others dashed. The range of
            the vertical axis is that of the last 90% of the values, so that the first epochs do not flatten the rest.
        xlabel: The label of the horizontal axis.
        ylabel: The label of the vertical axis.
        marks: The position, by method, to mark with a dot on its first curve, such as the best epoch.
    """
    with _style():
        # The legend must leave room for the axes: two columns of short labels, or one column of long ones.
        labels = {(m, k): textwrap.fill(f"{m}, {k}", 76) for m, kinds in lines.items() for k in kinds}
        beside = all(len(label) <= 38 for label in labels.values())
        rows = len(lines) if beside else sum(1 + label.count("\n") for label in labels.values())
        figure = _figure(5.6, 3.4 + 0.21 * max(0, rows - 2))
        axes = figure.add_subplot()
        late: list[float] = []
        for i, (method, kinds) in enumerate(lines.items()):
            for k, (kind, values) in enumerate(kinds.items()):
                positions = np.arange(1, len(values) + 1)
                line = "-" if k == 0 else (0, (3, 2))
                width = 2.0 if k == 0 else 1.2
                label = labels[method, kind]
                axes.plot(positions, values, color=series(i), linestyle=line, linewidth=width, label=label)
                late += [v for v in list(values)[len(values) // 10 :] if math.isfinite(v)]
                if k == 0 and marks and method in marks:
                    best = marks[method]
                    axes.plot(best, values[best - 1], "o", color=series(i), markersize=6)
        if late and max(late) > min(late):
            margin = 0.05 * (max(late) - min(late))
            axes.set_ylim(min(late) - margin, max(late) + margin)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        if all(len(values) <= 1 for kinds in lines.values() for values in kinds.values()):
            axes.set(xlim=(0.5, 1.5), xticks=[1])
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2 if beside else 1, handlelength=2.2)
        figure.draw_without_rendering()  # the layout uses the ticks of the previous drawing
    return figure


def progress_curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], references: Mapping[str, float]
) -> Figure:
    """Scores over epochs, counted from 1, and over hours, side by side.

    Arguments:
        lines: The scores and the hours at the end of each epoch, by method. The range of the vertical axis is that of
            the last 90% of the epochs. From the ninth method on, lines are dashed, because colours repeat.
        references: Scores that are drawn as horizontal lines, by their labels.
    """
    with _style():
        figure = _figure(9.0, 3.6 + 0.21 * max(0, (len(lines) + 2) // 3))
        left, right = figure.subplots(1, 2, sharey=True)
        late = list(references.values())
        for i, (method, (scores, hours)) in enumerate(lines.items()):
            look: dict[str, Any] = {"color": series(i), "linestyle": "-" if i < 8 else (0, (5, 1))}
            left.plot(range(1, len(scores) + 1), scores, label=method, **look)
            right.plot(hours, scores, **look)
            late += list(scores)[len(scores) // 10 :]
        if max(late) > min(late):
            margin = 0.05 * (max(late) - min(late))
            left.set_ylim(min(late) - margin, max(late) + margin)
        for axes in (left, right):
            for value in references.values():
                axes.axhline(value, color=LIGHT["muted"], linestyle=(0, (3, 2)), linewidth=1.2)
        for label, value in references.items():
            above = value == max(references.values())  # the labels of two close lines must not overlap
            right.annotate(
                textwrap.fill(label, 12),
                (1, value),
                (4, 0),
                xycoords=right.get_yaxis_transform(),
                textcoords="offset points",
                va="bottom" if above else "top",
            )
        left.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        left.set_xlabel("epoch")
        left.set_ylabel("validation score in nats")
        right.set_xlabel("hours of training")
        figure.legend(loc="outside lower center", ncols=3, handlelength=2.2)
        figure.draw_without_rendering()  # the layout uses the ticks of the previous drawing
    return figure


def scatter(x: Any, y: Any, xlabel: str, ylabel: str, *, index: int = 0, log_x: bool = False) -> Figure:
    """Two values per instance plotted against each other, with the medians of y in ten groups of equal size.

    Arguments:
        x: The first value of each instance, `(count,)`.
        y: The second value of each instance, `(count,)`.
        xlabel: The label of the x axis.
        ylabel: The label of the y axis.
        index: The index of the method whose colour to use, see `series`.
        log_x: Whether the x axis is logarithmic.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    with _style():
        figure = _figure(5.6, 3.6)
        axes = figure.add_subplot()
        # Many points are rasterised, so that the page stays small.
        axes.scatter(x, y, s=14, color=series(index), alpha=0.45, linewidths=0, rasterized=len(x) > 2000)
        if len(x) >= 50:
            groups = np.array_split(np.argsort(x, kind="stable"), 10)
            middles = [(np.median(x[g]), np.median(y[g])) for g in groups]
            axes.plot(*zip(*middles, strict=True), color=LIGHT["ink"], marker="o", markersize=4, linewidth=1.4)
        if log_x:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
    return figure


def coverage_curves(lines: Mapping[str, Mapping[str, Curve]], levels: Curve) -> Figure:
    """The coverage of central intervals against their probability, with the diagonal of a calibrated posterior.

    Arguments:
        lines: The coverage at each level by method, then by posterior; the first posterior is drawn solid, the others
            dashed and dotted.
        levels: The probabilities of the intervals, from 0 to 1.
    """
    with _style():
        figure = _figure(5.6, 4.6 + 0.21 * sum(map(len, lines.values())))
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=LIGHT["muted"], linewidth=1.0)
        for i, (method, posteriors) in enumerate(lines.items()):
            for k, (posterior, values) in enumerate(posteriors.items()):
                line = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))[k % 4]
                label = textwrap.fill(f"{method}, {posterior}", 76)
                axes.plot(levels, values, color=series(i), linestyle=line, label=label)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axes.set_xlabel("probability of the central interval")
        axes.set_ylabel("share of codes inside")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), handlelength=3)
        figure.draw_without_rendering()
    return figure


def ordered_strip(
    images: Any,
    values: Any,
    reconstructions: Any = None,
    *,
    columns: int = 10,
    rows: int = 2,
    title: str = "",
    label: str = "uncertainty",
    form: str = "#.2g",
) -> Figure:
    """Images from the smallest value to the largest, at evenly spaced ranks, each with its value.

    Arguments:
        images: The images, `(count, channels, height, width)`.
        values: The value of each image, such as its uncertainty, `(count,)`.
        reconstructions: Images of the same shape, drawn below `images`.
        columns: The number of images per row.
        rows: The number of rows.
        title: The heading of the figure.
        label: The name of the values.
        form: The format specification of the values.
    """
    values = np.asarray(values, dtype=float)
    chosen = even_ranks(values, rows * columns)
    stacks = [np.asarray(images)] if reconstructions is None else [np.asarray(images), np.asarray(reconstructions)]
    tiles = [rgba(stack[chosen]) for stack in stacks]  # each (count, height, width, 4)
    gap = np.zeros_like(tiles[0][:, :1])
    stacked = np.concatenate([part for tile in tiles for part in (gap, tile)][1:], axis=1)
    height, width = stacked.shape[1:3]
    with _style():
        figure = _figure(10, rows * (0.87 * 10 / columns * height / width + 0.32) + (0.7 if title else 0.35))
        grid = figure.add_gridspec(rows, columns)
        for i, (index, pixels) in enumerate(zip(chosen, stacked, strict=True)):
            axes = figure.add_subplot(grid[divmod(i, columns)])
            axes.imshow(pixels, interpolation="nearest")
            axes.set_axis_off()
            axes.set_title(f"{values[index]:{form}}", fontsize=9.5, color=LIGHT["muted"], pad=4)
        if title:
            figure.suptitle(title, x=0.012, ha="left", fontsize=12.5, fontweight="bold")
        figure.supxlabel(f"{label}: least, top left → most, bottom right", fontsize=9.5, color=LIGHT["muted"])
    return figure


def stacked_bars(groups: Mapping[str, Mapping[str, Mapping[str, float]]], xlabel: str) -> Figure:
    """Horizontal bars of parts that add up, such as the gaps of several methods; each has the sum at its end.

    Arguments:
        groups: The values by group, then by bar, then by part, such as the method, the data and the gap. A part below
            zero is drawn to the left of zero. The bars of a group have the same colours, paler from bar to bar.
        xlabel: The label of the horizontal axis.
    """
    bars = [(group, name, parts) for group, inner in groups.items() for name, parts in inner.items()]
    names = dict.fromkeys(part for _, _, parts in bars for part in parts)
    colours = {part: series(k) for k, part in enumerate(names)}
    with _style():
        figure = _figure(7.2, 0.8 + 0.24 * len(bars) + 0.14 * len(groups))
        axes = figure.add_subplot()
        axes.grid(visible=False, axis="y")
        place = 0.0
        ticks: list[tuple[float, str]] = []
        middles: list[tuple[float, str]] = []
        largest = max(sum(max(value, 0.0) for value in parts.values()) for _, _, parts in bars)
        for group, inner in groups.items():
            first = place
            for k, (name, parts) in enumerate(inner.items()):
                ends = {1: 0.0, -1: 0.0}
                for part, value in parts.items():
                    side = 1 if value >= 0 else -1
                    label = part if not ticks else None
                    alpha = 1 - 0.45 * k / max(1, len(inner) - 1)
                    axes.barh(place, value, 0.8, left=ends[side], color=colours[part], alpha=alpha, label=label)
                    ends[side] += value
                total = f"{sum(parts.values()):.1f}".replace("-", "−")
                axes.text(ends[1] + 0.01 * largest, place, total, va="center", fontsize=9, color=LIGHT["muted"])
                ticks.append((place, name))
                place += 1
            middles.append(((first + place - 1) / 2, group))
            place += 0.6
        axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=9)
        axes.tick_params(axis="y", length=0)
        for at, group in middles:
            axes.annotate(
                group,
                (0, at),
                xycoords=("axes fraction", "data"),
                xytext=(-48, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontweight="bold",
            )
        axes.invert_yaxis()
        axes.set_xlim(right=1.1 * largest)
        axes.set_xlabel(xlabel)
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.55 / figure.get_figheight() - 0.04), ncols=len(names))
    return figure


def intervals(rows: Mapping[str, tuple[float, float, float]], groups: Sequence[int], xlabel: str) -> Figure:
    """A dot with its interval per row, below each other, and a line at zero.

    Arguments:
        rows: The value and the two ends of its interval by the name of the row; ends that are NaN are not drawn.
        groups: The index of the colour of each row.
        xlabel: The label of the horizontal axis.
    """
    with _style():
        figure = _figure(5.6, 0.7 + 0.27 * len(rows))
        axes = figure.add_subplot()
        axes.grid(visible=False, axis="y")
        axes.axvline(0, color=LIGHT["muted"], linewidth=1)
        for place, ((value, low, high), group) in enumerate(zip(rows.values(), groups, strict=True)):
            if math.isfinite(low) and math.isfinite(high):
                axes.plot([low, high], [place, place], color=series(group), linewidth=2.4, alpha=0.5)
            axes.plot(value, place, "o", color=series(group), markersize=6)
        axes.set_yticks(range(len(rows)), list(rows), fontsize=9)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(xlabel)
        figure.draw_without_rendering()  # the layout uses the ticks of the previous drawing
    return figure


@dataclass(frozen=True)
class Panel:
    """An instance with its posterior in a latent plane.

    Attributes:
        title: The title above the panel.
        x: Grid points along the first dimension, ascending.
        y: Grid points along the second dimension, ascending.
        density: The density of the true posterior, `(len(y), len(x))`.
        mean: The mean of the encoder's Gaussian, `(2,)`.
        std: The standard deviations of the encoder's Gaussian, `(2,)`.
        images: The images below the panel, `(count, channels, height, width)`.
    """

    title: str
    x: Array
    y: Array
    density: Array
    mean: Array
    std: Array
    images: Array


def posterior_panels(panels: Sequence[Panel]) -> Figure:
    """Instances side by side: the true posterior shaded, the encoder's Gaussian as ellipses, and images below."""
    with _style():
        figure = _figure(2.1 * len(panels), 3.9)
        grid = figure.add_gridspec(2, len(panels), height_ratios=[2.1, 1.2])
        for i, panel in enumerate(panels):
            axes = figure.add_subplot(grid[0, i])
            axes.grid(visible=False)
            axes.contourf(panel.x, panel.y, panel.density, levels=12, cmap="Blues")
            for scale in (1, 2):
                axes.add_patch(
                    Ellipse(
                        (panel.mean[0], panel.mean[1]),
                        *(2 * scale * panel.std),
                        fill=False,
                        edgecolor=series(1),
                        linewidth=1.6 if scale == 1 else 1.0,
                    )
                )
            axes.plot(*panel.mean, "+", color=series(1), markersize=6)
            axes.set_title(panel.title, fontsize=9.5, color=LIGHT["muted"], pad=4)
            axes.tick_params(labelsize=7.5)
            axes.locator_params(nbins=3)
            below = figure.add_subplot(grid[1, i])
            below.imshow(image_grid(panel.images, columns=len(panel.images)), interpolation="nearest")
            below.set_axis_off()
    return figure


def svg(figure: Figure) -> str:
    """A figure as an `<svg>` element for a page, in the colours of the page's theme."""
    buffer = io.StringIO()
    with _style():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    for name, colour in LIGHT.items():
        text = text.replace(colour, f"var(--{name})")
    return text


def png(figure: Figure, dpi: int = 200) -> bytes:
    """A figure as a PNG file on a white background."""
    buffer = io.BytesIO()
    with _style():
        figure.savefig(buffer, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def standalone_svg(figure: Figure) -> bytes:
    """A figure as a standalone SVG file on a white background."""
    buffer = io.BytesIO()
    with _style():
        figure.savefig(buffer, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches, outside matplotlib's global state and without a display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
