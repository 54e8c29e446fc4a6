"""The pictures of scored runs: test images and what the models make of them, curves, and the inference gap."""

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

__all__ = ["Display", "curves", "inference_gap", "pngs", "reconstructions", "samples", "tiles", "uncertainty_strip"]

SIDE = 96
"""Pixels of an image's longer side, above which every second, third, … is left out."""
STRIP = 640
"""Pixels of a row of images, at most."""


@dataclass(frozen=True)
class Display:
    """How what the model sees becomes an image to look at: in the units of the data, from `low`, black, to `high`."""

    scaling: Scaling
    low: float
    high: float

    @classmethod
    def of(cls, rows: Rows) -> "Display":
        """Pixels and what lies in [0, 1] as it is; all else by the range of these images."""
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
        """`(count, channels, height, width)` in [0, 1], no larger than is worth looking at."""
        values = self.scaling.undo(x).astype(np.float64)
        step = math.ceil(max(values.shape[2:]) / SIDE)
        return (values[:, :, ::step, ::step] - self.low) / (self.high - self.low)


def columns(shape: tuple[int, ...]) -> int:
    """Images a row: ten, or fewer where they are large."""
    width = min(shape[2], SIDE)
    return max(4, min(10, STRIP // width))


def reconstructions(scored: Sequence[ScoredRun], data: DataSet, display: Display) -> list[tuple[str, bytes, str]]:
    """Test images at even distances, then what each run makes of them: titles, PNG files, descriptions."""
    (x,) = batches(spread_rows(data.test, columns(data.shape)))
    strips = [("Image", _strip(display(x)), "Test images")]
    for one in scored:
        with seeded(0):  # some methods draw noise to find their answer
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
    """Test images from the least uncertain to the most, at evenly spaced ranks, each above its reconstruction."""
    assert one.uncertainty is not None
    chosen = plots.even_ranks(one.uncertainty, count)
    x = data.test.__getitems__(chosen)
    found = []
    for i, image, again in zip(chosen.tolist(), display(x), display(one.vae.reconstruct(x)), strict=True):
        value = f"{one.uncertainty[i].item():#.2g}"
        pictures = [image_png(image_grid(each[None], columns=1)) for each in (image, again)]
        found.append(Tile(pictures, f"Test image {i} and its reconstruction, uncertainty {value}", value))
    return found


def curves(scored: Sequence[ScoredRun], noun: str) -> plots.Figure:
    """The ELBO by epoch, of the runs whose history is known; every run keeps its colour."""
    lines = {one.name: {"validation": one.history.validation, "training": one.history.train} for one in scored}
    marks = {one.name: one.history.best for one in scored if one.history.best}
    return plots.curves(lines, "epoch", f"ELBO, nats {noun}", marks)


def inference_gap(one: ScoredRun, index: int) -> plots.Figure:
    """Uncertainty against the inference gap, in the run's colour."""
    uncertainty = one.of_chosen["uncertainty"]
    return plots.scatter(
        uncertainty,
        one.of_chosen["inference_gap"],
        f"uncertainty of {one.name}",
        "inference gap, nats",
        index=index,
        log_x=bool(uncertainty.min() > 0),
    )


def uncertainty_strip(one: ScoredRun, data: DataSet, display: Display) -> plots.Figure:
    """A picture ten inches wide: test images from certain to uncertain, each above its reconstruction."""
    assert one.uncertainty is not None
    x = data.test[:]
    with seeded(0):
        rebuilt = one.vae.reconstruct(x)
    return plots.ordered_strip(
        display(x),
        one.uncertainty,
        display(rebuilt),
        columns=12,
        rows=2,
        title=f"Test images, the reconstructions of {one.name} below, and its uncertainty above",
    )


def pngs(scored: Sequence[ScoredRun], data: DataSet, noun: str, seed: int) -> dict[str, bytes]:
    """The pictures of runs on images as PNG files, by name."""
    display = Display.of(data.test)
    (x,) = batches(spread_rows(data.test, columns(data.shape)))
    found = {"curves": plots.png(curves(scored, noun))}
    rows = [display(x)]
    for index, one in enumerate(scored):
        with seeded(0):
            rows.append(display(one.vae.reconstruct(x)))
        found[f"samples-{one.name}"] = samples(one, display, seed)
        if one.uncertainty is not None:
            found["uncertainty"] = plots.png(uncertainty_strip(one, data, display), dpi=100)
            found["inference-gap"] = plots.png(inference_gap(one, index))
    found["reconstructions"] = image_png(pairs(*rows), scale=8)
    return found
