"""The pictures of a result, for the page and for files of their own."""

from torch import Tensor

from gpin._core.seeding import seeded
from gpin.demo.comparison import Result
from gpin.demo.experiment import Contender
from gpin.report import plots

__all__ = ["curves", "gap", "pngs", "reconstructions", "samples", "uncertainty"]


def pngs(result: Result) -> dict[str, bytes]:
    """Every picture as a PNG file, by name."""
    rows = [images for _, images in reconstructions(result)]
    return {
        "uncertainty": plots.png(uncertainty(result), dpi=100),
        "curves": plots.png(curves(result)),
        "gap": plots.png(gap(result)),
        "reconstructions": plots.image_png(plots.pairs(*rows), scale=8),
        **{f"samples-{name}": samples(result, c, scale=8) for name, c in result.contenders.items()},
    }


def uncertainty(result: Result) -> plots.Figure:
    """The README's picture, ten inches wide: digits from certain to uncertain with their reconstructions."""
    test = result.digits.test
    return plots.ordered_strip(
        test,
        result.uncertainty,
        result.contenders["gp"].vae.reconstruct(test),
        columns=12,
        rows=2,
        title="Test digits, the GP encoder’s reconstructions below, and its uncertainty above",
    )


def curves(result: Result) -> plots.Figure:
    """The ELBO by epoch."""
    contenders = result.contenders.values()
    lines = {c.title: {"validation": c.history.validation, "training": c.history.train} for c in contenders}
    return plots.curves(lines, "epoch", "ELBO, nats a digit", {c.title: c.history.best for c in contenders})


def gap(result: Result) -> plots.Figure:
    """Uncertainty against the gap, in the GP's colour."""
    index = list(result.contenders).index("gp")
    return plots.scatter(
        result.uncertainty, result.gap, "uncertainty of the GP encoder", "gap, nats", index=index, log_x=True
    )


def reconstructions(result: Result) -> list[tuple[str, Tensor]]:
    """The first test digit of each class, then what each method makes of them: titles and images."""
    labels = result.digits.labels
    chosen = result.digits.test[[labels.index(label) for label in sorted(set(labels))]]
    return [("Digit", chosen), *((c.title, c.vae.reconstruct(chosen)) for c in result.contenders.values())]


def samples(result: Result, contender: Contender, scale: int) -> bytes:
    """Forty draws from a model, as a PNG file."""
    with seeded(result.settings.seed):
        images = contender.vae.sample(40)
    return plots.image_png(plots.image_grid(images, columns=8), scale)
