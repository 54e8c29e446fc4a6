"""Small charts written directly as `<svg>` elements: maps of points, bars and histograms.

They need no matplotlib, follow the page's theme through its colours, and stay small: some 100 bytes per point of a map.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from gpin.report.style import SCALE

Range = tuple[float, float]

__all__ = ["bars", "histogram", "point_map", "rank_histograms", "shades"]

LETTER = 7
"""The width of a letter of a text, on average."""
MOST_DIMENSIONS = 6
"""The number of latent dimensions whose ranks are shown."""


def shades(values: Any) -> list[int]:
    """The colours of values as indices into `SCALE`, by rank, so that a few extreme values do not hide the rest.

    Example:
        >>> shades([3.0, 1.0, 1000.0, 2.0])
        [4, 0, 6, 2]
    """
    values = np.asarray(values, dtype=float)
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return [int(len(SCALE) * rank // len(values)) for rank in ranks]


def point_map(points: Any, values: Any, labels: Sequence[str], axes: tuple[str, str], legend: str) -> str:
    """Points in the plane, coloured by a value; each has a label that the page shows when the pointer is over it.

    Arguments:
        points: Their positions, `(n, 2)`.
        values: Their values, `(n,)`.
        labels: The text of each point.
        axes: The names of the horizontal and the vertical axis.
        legend: The name of the values and their unit.
    """
    width, height, left, bottom, top = 380, 360, 58, 62, 8
    points, values = np.asarray(points, dtype=float), np.asarray(values, dtype=float)
    low, high = _range(points[:, 0]), _range(points[:, 1])
    x = left + (points[:, 0] - low[0]) / (low[1] - low[0]) * (width - left - 8)
    y = height - bottom - (points[:, 1] - high[0]) / (high[1] - high[0]) * (height - bottom - top)
    parts = [_svg(width, height), _frame(left, top, width - 8, height - bottom, low, high, axes)]
    # Points without a value are drawn first and pale, then those with small values, so that large ones stay visible.
    known = np.isfinite(values)
    colours = dict(zip(np.flatnonzero(known).tolist(), shades(values[known]) if known.any() else [], strict=True))
    for i in sorted(range(len(points)), key=lambda i: colours.get(i, -1)):
        fill = SCALE[colours[i]] if i in colours else "var(--rule)"
        parts.append(
            f'<circle class="point" data-at="{i}" cx="{x[i]:.1f}" cy="{y[i]:.1f}" r="4" fill="{fill}" '
            f'fill-opacity="0.8"><title>{escape(labels[i])}</title></circle>'
        )
    parts.append(_legend(left, height - 18, width - left - 8, values[known], legend))
    return "".join([*parts, "</svg>"])


def bars(values: Mapping[str, float], unit: str, *, index: int = 0, faint: Sequence[str] = ()) -> str:
    """Horizontal bars with their names and numbers, one below the other.

    Arguments:
        values: The length of each bar by its name; none is negative.
        unit: The unit of the numbers.
        index: The index of the method whose colour to use.
        faint: The names of the bars that are drawn faintly.
    """
    step, left, width = 20, 44, 380
    most = max([*values.values(), 0.1])  # so that dimensions that say nothing have no long bars
    parts = [_svg(width, step * len(values) + 4)]
    for i, (name, value) in enumerate(values.items()):
        y = step * i + 3
        long = max(0.0, value) / most * (width - left - 90)
        opacity = 0.3 if name in faint else 0.9
        parts.append(
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end" class="tick">{escape(name)}</text>'
            f'<rect x="{left}" y="{y}" width="{max(long, 1):.1f}" height="14" rx="2" '
            f'fill="var(--series-{index % 8 + 1})" fill-opacity="{opacity}"/>'
            f'<text x="{left + long + 6:.1f}" y="{y + 12}" class="tick">{value:.2f} {escape(unit)}</text>'
        )
    return "".join([*parts, "</svg>"])


def histogram(edges: Any, data: Any, models: Sequence[Any], names: Sequence[str] | None = None) -> str:
    """The shares of the data in bins as grey bars, and those of samples of each model as lines in their colours.

    Arguments:
        edges: The edges of the bins, `(bins + 1,)`, or with `names` only their number counts.
        data: The shares of the data, `(bins,)`.
        models: The shares of the samples of each model, each `(bins,)`.
        names: The texts of the bins, of which the first and the last are written if there is no room for all; by
            default the values of the outer edges.
    """
    edges, data = np.asarray(edges, dtype=float), np.asarray(data, dtype=float)
    width, height, base = 240, 110, 92
    tallest = max([data.max(), *(np.max(model) for model in models), 1e-12])
    step = (width - 8) / len(data)
    parts = [_svg(width, height)]
    for k, share in enumerate(data):
        tall = share / tallest * (base - 6)
        parts.append(
            f'<rect x="{4 + k * step:.1f}" y="{base - tall:.1f}" width="{step * 0.94:.1f}" height="{tall:.1f}" '
            'fill="var(--muted)" fill-opacity="0.38"/>'
        )
    for index, model in enumerate(models):
        path = [f"M4 {base}"]
        for k, share in enumerate(np.asarray(model, dtype=float)):
            y = base - share / tallest * (base - 6)
            path.append(f"L{4 + k * step:.1f} {y:.1f}L{4 + (k + 1) * step:.1f} {y:.1f}")
        path.append(f"L{width - 4} {base}")
        parts.append(
            f'<path d="{"".join(path)}" fill="none" stroke="var(--series-{index % 8 + 1})" stroke-width="1.8"/>'
        )
    parts.append(f'<line x1="4" y1="{base}" x2="{width - 4}" y2="{base}" stroke="var(--muted)"/>')
    if names is not None and max(map(len, names)) * LETTER < step:
        places = [(4 + (k + 0.5) * step, "middle", name) for k, name in enumerate(names)]
    else:
        first, last = (_tick(edges[0]), _tick(edges[-1])) if names is None else (_short(names[0]), _short(names[-1]))
        places = [(4, "start", first), (width - 4, "end", last)]
    for x, anchor, name in places:
        parts.append(f'<text x="{x:.1f}" y="{height - 4}" text-anchor="{anchor}" class="tick">{escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def _short(name: str, most: int = 14) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def rank_histograms(histograms: Mapping[str, Any], band: Range, *, index: int = 0) -> str:
    """Histograms of the ranks of the true codes, with the band in which a calibrated posterior's bars end.

    Arguments:
        histograms: The counts `(bins, d)` by posterior, one row of panels for each posterior.
        band: The smallest and the largest count of a calibrated posterior.
        index: The index of the method whose colour to use.
    """
    tables = {name: np.asarray(counts, dtype=float) for name, counts in histograms.items()}
    shown = min(MOST_DIMENSIONS, *(counts.shape[1] for counts in tables.values()))
    wide, tall, gap, left, top = 78, 62, 12, 16, 22
    step = tall + 34
    parts = [_svg(max(left + shown * (wide + gap), 560), top + step * len(tables) - 10)]
    for row, (posterior, counts) in enumerate(tables.items()):
        base = top + row * step + tall + 16
        parts.append(f'<text x="{left}" y="{base - tall - 5}" class="tick">{escape(posterior)}</text>')
        most = max(1.15 * counts[:, :shown].max(), 1.4 * band[1], 1e-12)
        for k in range(shown):
            x, each = left + k * (wide + gap), wide / len(counts)
            low, high = (base - edge / most * tall for edge in band)
            parts.append(
                f'<rect class="band" x="{x}" y="{high:.1f}" width="{wide}" height="{low - high:.1f}" '
                'fill="var(--rule)"/>'
            )
            for i, high in enumerate(counts[:, k] / most * tall):
                parts.append(
                    f'<rect x="{x + (i + 0.05) * each:.1f}" y="{base - high:.1f}" width="{0.9 * each:.1f}" '
                    f'height="{high:.1f}" fill="var(--series-{index % 8 + 1})"/>'
                )
            parts.append(f'<line x1="{x}" y1="{base}" x2="{x + wide}" y2="{base}" stroke="var(--muted)"/>')
            if row == 0:
                parts.append(f'<text x="{x + wide / 2}" y="12" text-anchor="middle" class="tick">z{k + 1}</text>')
    return "".join([*parts, "</svg>"])


def _svg(width: int, height: int) -> str:
    return f'<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">'


def _range(values: np.ndarray) -> Range:
    low, high = float(values.min()), float(values.max())
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def _frame(left: float, top: float, right: float, base: float, x: Range, y: Range, names: tuple[str, str]) -> str:
    """Axes with round ticks and their names."""
    parts = []
    for value in _ticks(*x):
        at = left + (value - x[0]) / (x[1] - x[0]) * (right - left)
        parts.append(
            f'<line x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{base}" stroke="var(--rule)"/>'
            f'<text x="{at:.1f}" y="{base + 13}" text-anchor="middle" class="tick">{_tick(value)}</text>'
        )
    for value in _ticks(*y):
        at = base - (value - y[0]) / (y[1] - y[0]) * (base - top)
        parts.append(
            f'<line x1="{left}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}" stroke="var(--rule)"/>'
            f'<text x="{left - 4}" y="{at + 4:.1f}" text-anchor="end" class="tick">{_tick(value)}</text>'
        )
    middle = (left + right) / 2
    parts.append(f'<text x="{middle}" y="{base + 27}" text-anchor="middle" class="tick">{escape(names[0])}</text>')
    at = (top + base) / 2
    parts.append(
        f'<text x="10" y="{at}" text-anchor="middle" class="tick" transform="rotate(-90 10 {at})">{escape(names[1])}'
        "</text>"
    )
    return "".join(parts)


def _legend(left: float, y: float, width: float, values: np.ndarray, name: str) -> str:
    """The colours of a map from the smallest value to the largest, with the smallest, the median and the largest."""
    if not len(values):
        return ""
    step = width / len(SCALE)
    parts = [
        f'<rect x="{left + k * step:.1f}" y="{y - 11}" width="{step + 0.5:.1f}" height="7" fill="{colour}"/>'
        for k, colour in enumerate(SCALE)
    ]
    for share, anchor in ((0.0, "start"), (1.0, "end")):
        value = _tick(float(np.quantile(values, share)))
        parts.append(
            f'<text x="{left + share * width:.1f}" y="{y + 10}" text-anchor="{anchor}" class="tick">{value}</text>'
        )
    parts.append(
        f'<text x="{left + width / 2:.1f}" y="{y + 10}" text-anchor="middle" class="tick">{escape(name)}</text>'
    )
    return "".join(parts)


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two values.

    Example:
        >>> _ticks(-1.2, 3.4)
        [-1.0, 0.0, 1.0, 2.0, 3.0]
    """
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [round(k * step, 12) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _tick(value: float) -> str:
    """A number at an axis.

    Example:
        >>> _tick(-0.25), _tick(1800.0), _tick(2.5e7)
        ('−0.25', '1,800', '2.5e+07')
    """
    plain = 1000 <= abs(value) < 1e6
    return (f"{value:,.0f}" if plain else f"{value:.3g}").replace("-", "−")
