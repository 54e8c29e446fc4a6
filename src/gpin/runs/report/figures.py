"""The figures of runs: test instances with reconstructions, samples, curves, and the inference gap."""

from collections.abc import Sequence

import numpy as np

from gpin._core.seeding import seeded
from gpin.data import DataSet
from gpin.report import Tile, charts, plots
from gpin.report.images import image_grid, image_png, pairs
from gpin.runs.report.display import PANEL, SIDE, Display, words_for
from gpin.runs.report.scored_run import ScoredRun, TrainedRun
from gpin.runs.rows import batches, example_conditions, spread_rows

__all__ = [
    "columns",
    "coverage",
    "curves",
    "gap_strip",
    "grid",
    "inference_gap",
    "pngs",
    "ranks",
    "reconstructions",
    "samples",
    "sprite",
    "strip",
    "tiles",
]

STRIP = 640
"""The largest width of a row of images in pixels."""
SPRITE = 48
"""The longest side of the images that a map shows under the pointer, in pixels."""


def columns(display: Display, shape: Sequence[int]) -> int:
    """The number of images per row: ten, or fewer if they are large."""
    width = PANEL[0] if display.series else min(shape[-1], SIDE)
    return max(4, min(10, STRIP // width))


def reconstructions(scored: Sequence[ScoredRun], data: DataSet, display: Display) -> list[tuple[str, bytes, str]]:
    """Evenly spaced test instances, then their reconstructions by each run: titles, PNG files, descriptions."""
    rows = spread_rows(data.test, columns(display, data.shape))
    (x,), (values,) = batches(rows), batches(rows.plain)
    words = words_for(data.shape, data.scaling)
    strips = [(words.noun.capitalize(), strip(display(values)), f"Test {words.nouns}")]
    for one in scored:
        with seeded(0):  # inference is stochastic for some methods
            rebuilt = one.vae.reconstruct(x)
        strips.append((one.name, strip(display(rebuilt)), f"The same {words.nouns}, reconstructed by {one.name}"))
    return strips


def strip(images: np.ndarray) -> bytes:
    """Images side by side, as a PNG file."""
    return _png(images, len(images))


def samples(one: TrainedRun, display: Display, seed: int) -> bytes:
    """Four rows of draws from a model, as a PNG file."""
    across = columns(display, one.vae.shape)
    with seeded(seed):
        x = one.vae.sample(4 * across, y=example_conditions(one.vae, 4 * across))
    return _png(display(x), across)


def grid(images: np.ndarray, across: int) -> bytes:
    """Images in rows, close together, as a PNG file."""
    return image_png(image_grid(images, across, gap=0), scale=max(1, round(32 / images.shape[3])))


def _png(images: np.ndarray, across: int) -> bytes:
    return image_png(image_grid(images, across), scale=max(1, round(32 / images.shape[3])))


def sprite(images: np.ndarray, across: int) -> bytes:
    """Small images in rows without gaps, as a PNG file from which a script cuts one out."""
    step = -(-max(images.shape[2:]) // SPRITE)
    return image_png(image_grid(images[:, :, ::step, ::step], across, gap=0))


def tiles(
    one: ScoredRun, data: DataSet, display: Display, chosen: Sequence[int], alt: str, texts: Sequence[str]
) -> list[Tile]:
    """Test instances above their reconstructions, each with a text.

    Arguments:
        one: The run that reconstructs them.
        data: The data of the run.
        display: How they are displayed.
        chosen: Their indices in the test part.
        alt: The description of a tile, in front of its text.
        texts: The texts.
    """
    x = data.test.__getitems__(chosen)
    with seeded(0):
        rebuilt = one.vae.reconstruct(x)
    found = []
    for image, again, text in zip(display(one.vae.values(x)), display(rebuilt), texts, strict=True):
        pictures = [image_png(image_grid(pixels[None], columns=1)) for pixels in (image, again)]
        found.append(Tile(pictures, f"{alt} {text}", text))
    return found


def curves(scored: Sequence[TrainedRun], noun: str) -> plots.Figure:
    """The ELBO of each run by epoch, in the colour of the run."""
    lines = {one.name: {"validation": one.history.validation, "training": one.history.train} for one in scored}
    marks = {one.name: one.history.best for one in scored if one.history.best}
    return plots.curves(lines, "epoch", f"ELBO, nats per {noun}", marks)


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


def ranks(one: ScoredRun, index: int) -> str:
    """The histograms of the ranks of a run's posteriors, in the colour of the run, as an `<svg>` element."""
    histograms = {row.posterior: row.histogram() for row in one.coverage}
    return charts.rank_histograms(histograms, one.coverage[0].band(), index=index)


def gap_strip(one: ScoredRun, data: DataSet, display: Display) -> plots.Figure:
    """Test images from the smallest estimated gap to the largest, above reconstructions, ten inches wide."""
    assert one.gap is not None
    x = data.test[:]
    with seeded(0):
        rebuilt = one.vae.reconstruct(x)
    return plots.ordered_strip(
        display(one.vae.values(x)),
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
    some = spread_rows(data.test, columns(display, data.shape))
    (x,), (values,) = batches(some), batches(some.plain)
    found = {"curves": plots.png(curves(scored, noun))}
    rows = [display(values)]
    for index, one in enumerate(scored):
        with seeded(0):
            rows.append(display(one.vae.reconstruct(x)))
        found[f"samples-{one.name}"] = samples(one, display, seed)
        if one.gap is not None:
            found[f"gap-{one.name}"] = plots.png(gap_strip(one, data, display), dpi=100)
            found[f"inference-gap-{one.name}"] = plots.png(inference_gap(one, index))
    found["reconstructions"] = image_png(pairs(*rows), scale=8)
    return found
