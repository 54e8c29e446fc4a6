"""The figures of scored runs: test images with reconstructions, samples, curves, and the inference gap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from gpin._core.seeding import seeded
from gpin.data import DataSet, Rows, Scaling
from gpin.report import Tile, plots
from gpin.report.images import image_grid, image_png, pairs
from gpin.runs.report.scored_run import ScoredRun
from gpin.runs.rows import batches, spread_rows

__all__ = ["Display", "curves", "gap_strip", "inference_gap", "pngs", "reconstructions", "samples", "tiles"]

SIDE = 96
"""The longest side of an image in pixels; larger images are subsampled."""
STRIP = 640
"""The largest width of a row of images in pixels."""


@dataclass(frozen=True)
class Display:
    """How model inputs are displayed as images: in the units of the data, `low` is black and `high` is white."""

    scaling: Scaling
    low: float
    high: float

    @classmethod
    def of(cls, rows: Rows) -> "Display":
        """The display of these images: pixels and values in [0, 1] unchanged, other values by their range."""
        scaling = rows.scaling
        if scaling.kind == "pixels":
            return cls(scaling, 0.0, 255.0)
        low, high = math.inf, -math.inf
        for x in batches(rows):
            values = scaling.undo(x)
            low, high = min(low, float(values.min())), max(high, float(values.max()))
        if low >= 0 and high <= 1:
            low, high = 0.0, 1.0
        return cls(scaling, low, high if high > low else low + 1)

    def __call__(self, x: Tensor) -> np.ndarray:
        """Images `(count, channels, height, width)` for display, scaled to [0, 1] and subsampled if large."""
        values = self.scaling.undo(x).astype(np.float64)
        step = math.ceil(max(values.shape[2:]) / SIDE)
        return (values[:, :, ::step, ::step] - self.low) / (self.high - self.low)


def columns(shape: tuple[int, ...]) -> int:
    """The number of images per row: ten, or fewer if they are large."""
    width = min(shape[2], SIDE)
    return max(4, min(10, STRIP // width))


def reconstructions(scored: Sequence[ScoredRun], data: DataSet, display: Display) -> list[tuple[str, bytes, str]]:
    """Evenly spaced test images, then their reconstructions by each run: titles, PNG files, descriptions."""
    (x,) = batches(spread_rows(data.test, columns(data.shape)))
    strips = [("Image", _strip(display(x)), "Test images")]
    for one in scored:
        with seeded(0):  # inference is stochastic for some methods
            rebuilt = one.vae.reconstruct(x)
        strips.append((one.name, _strip(display(rebuilt)), f"The same images, reconstructed by {one.name}"))
    return strips


def _strip(images: np.ndarray) -> bytes:
    return _png(images, len(images))


def samples(one: ScoredRun, display: Display, seed: int) -> bytes:
    """Four rows of draws from a model, as a PNG file."""
    across = columns(one.vae.shape)
    with seeded(seed):
        x = one.vae.sample(4 * across)
    return _png(display(x), across)


def _png(images: np.ndarray, across: int) -> bytes:
    return image_png(image_grid(images, across), scale=max(1, round(32 / images.shape[3])))


def tiles(one: ScoredRun, data: DataSet, display: Display, count: int) -> list[Tile]:
    """Test images from the smallest estimated gap to the largest, at evenly spaced ranks, above reconstructions."""
    assert one.gap is not None
    chosen = plots.even_ranks(one.gap, count)
    x = data.test.__getitems__(chosen)
    found = []
    for i, image, again in zip(chosen.tolist(), display(x), display(one.vae.reconstruct(x)), strict=True):
        value = f"{one.gap[i].item():.1f}"
        pictures = [image_png(image_grid(pixels[None], columns=1)) for pixels in (image, again)]
        found.append(Tile(pictures, f"Test image {i} and its reconstruction, estimated gap {value} nats", value))
    return found


def curves(scored: Sequence[ScoredRun], noun: str) -> plots.Figure:
    """The ELBO of each run by epoch, in the colour of the run."""
    lines = {one.name: {"validation": one.history.validation, "training": one.history.train} for one in scored}
    marks = {one.name: one.history.best for one in scored if one.history.best}
    return plots.curves(lines, "epoch", f"ELBO, nats {noun}", marks)


def inference_gap(one: ScoredRun, index: int) -> plots.Figure:
    """The estimated gap against the inference gap, in the colour of the run."""
    gap = one.of_chosen["estimated_gap"]
    return plots.scatter(
        gap,
        one.of_chosen["inference_gap"],
        f"estimated gap of {one.name}, nats",
        "inference gap, nats",
        index=index,
        log_x=bool(gap.min() > 0),
    )


def coverage(scored: Sequence[ScoredRun]) -> plots.Figure:
    """The coverage of the posteriors of each run, in the colour of the run."""
    levels = [k / 50 for k in range(1, 50)]
    lines = {one.name: {row.posterior: [row.mean(c) for c in levels] for row in one.coverage} for one in scored}
    return plots.coverage_curves(
        {name: {row: [0.0, *values, 1.0] for row, values in rows.items()} for name, rows in lines.items()},
        [0.0, *levels, 1.0],
    )


def ranks(one: ScoredRun, index: int) -> plots.Figure:
    """The histograms of the ranks of a run's posteriors, in the colour of the run."""
    histograms = {row.posterior: row.histogram() for row in one.coverage}
    return plots.rank_histograms(histograms, one.coverage[0].band(), index=index)


def gap_strip(one: ScoredRun, data: DataSet, display: Display) -> plots.Figure:
    """Test images from the smallest estimated gap to the largest, above reconstructions, ten inches wide."""
    assert one.gap is not None
    x = data.test[:]
    with seeded(0):
        rebuilt = one.vae.reconstruct(x)
    return plots.ordered_strip(
        display(x),
        one.gap,
        display(rebuilt),
        columns=12,
        rows=2,
        title=f"Test images, with the estimated gap of {one.name} in nats above and its reconstructions below",
        label="estimated gap",
        form=".1f",
    )


def pngs(scored: Sequence[ScoredRun], data: DataSet, noun: str, seed: int) -> dict[str, bytes]:
    """The figures of runs on images as PNG files, by name."""
    display = Display.of(data.test)
    (x,) = batches(spread_rows(data.test, columns(data.shape)))
    found = {"curves": plots.png(curves(scored, noun))}
    rows = [display(x)]
    for index, one in enumerate(scored):
        with seeded(0):
            rows.append(display(one.vae.reconstruct(x)))
        found[f"samples-{one.name}"] = samples(one, display, seed)
        if one.gap is not None:
            found[f"gap-{one.name}"] = plots.png(gap_strip(one, data, display), dpi=100)
            found[f"inference-gap-{one.name}"] = plots.png(inference_gap(one, index))
    found["reconstructions"] = image_png(pairs(*rows), scale=8)
    return found
