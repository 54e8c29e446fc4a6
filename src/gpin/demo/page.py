"""What is written to report.html: the story of a result, and below each figure how to read it."""

from gpin.demo import figures
from gpin.demo.comparison import LEAD, Result, Row
from gpin.report import Page, Table, Tile, plots
from gpin.runs.folder import versions

__all__ = ["compose"]


def compose(result: Result) -> Page:
    """The page that tells the story of a result."""
    page = Page(
        "A VAE and a GP encoder on handwritten digits",
        lead=[LEAD],
        foot="Made by gpin demo. The page needs nothing else: it can be mailed, printed and kept as it is.",
    )
    digits, contenders = result.digits, list(result.contenders.values())

    section = page.section("Which model is better?")
    rows = [[f"{row.label}\n{_reading(row)}", *row.cells] for row in result.rows()]
    section.table(Table(["", *(c.title for c in contenders)], rows, series=True))
    section.text(result.verdict(), kind="key")
    section.text(
        "The log-likelihood is the score: how probable the model finds digits that it has never seen. It cannot be "
        "computed, only estimated from proposed codes: those of the encoder, or better ones, found for each digit by "
        "Gauss–Newton steps. The effective samples say how many proposals matter; k̂ warns where too few do. "
        + result.caution(),
        kind="note",
    )

    section = page.section("How they learnt")
    section.drawing(plots.svg(figures.curves(result)), alt="Learning curves: the ELBO of each model by epoch.")
    section.text(
        "The ELBO by epoch, on validation digits (solid) and training digits (dashed). A dot marks the epoch whose "
        "weights were kept, the best on validation digits. Where dashed and solid part, a model begins to learn its "
        "training digits by heart. The GP’s bound is lower by what it pays for its random weights, so compare heights "
        "within a method, not between methods.",
        kind="note",
    )

    section = page.section("Reconstructions")
    section.strips(
        (title, plots.image_png(plots.image_grid(images, columns=len(images)), scale=4), f"{title}: one image a class")
        for title, images in figures.reconstructions(result)
    )
    section.text(
        f"Test digits, and each painted again from the {result.settings.latent_dim} numbers that the encoder made of "
        "it. Blur is what the numbers did not keep.",
        kind="note",
    )

    section = page.section("Samples")
    section.pictures((c.title, figures.samples(result, c, scale=4), f"Samples of the {c.title}") for c in contenders)
    section.text(
        "Digits that nobody wrote: each model paints from a code drawn at random. The more of them one can read, the "
        "better the model knows what digits look like.",
        kind="note",
    )

    section = page.section("What the GP encoder is sure of")
    section.tiles(_tiles(result))
    section.text(
        f"Test digits from the least uncertain to the most, at evenly spaced ranks among all {len(digits.test)}: the "
        "digit, what the GP model makes of it, and its uncertainty. Uncertainty is the variance of the encoder’s own "
        "answer, summed over the latent dimensions; it comes with the answer, from one pass through the encoder. See "
        "for yourself whether the last look odder than the first.",
        kind="note",
    )

    section = page.section("Does uncertainty find the difficult digits?")
    section.drawing(plots.svg(figures.gap(result)), alt="Uncertainty against the gap, a point for every test digit.")
    section.text(result.relation(), kind="key")
    section.text(
        "Each point is a test digit. Its gap is the refined log-likelihood less the ELBO: what the encoder’s answer "
        "leaves out. The line joins the medians of ten groups of equal size; where uncertainty finds the difficult "
        "digits, it rises. The negative ELBO is the baseline to beat; it needs the decoder as well, and has an "
        "advantage, since it is part of the gap itself.",
        kind="note",
    )

    page.section("Settings").table(Table(["Setting", "Value"], _settings_rows(result), numeric=False))
    return page


def _reading(row: Row) -> str:
    """The note, and which way is better."""
    return row.note + (f"; {row.better} is better" if row.better else "")


def _tiles(result: Result) -> list[Tile]:
    chosen = plots.even_ranks(result.uncertainty, 36).tolist()
    images = result.digits.test[chosen]
    rebuilt = result.contenders["gp"].vae.reconstruct(images)
    tiles = []
    for i, image, again in zip(chosen, images, rebuilt, strict=True):
        value = f"{result.uncertainty[i].item():#.2g}"
        pictures = [plots.image_png(plots.image_grid(one[None], columns=1)) for one in (image, again)]
        alt = f"A {result.digits.labels[i]} and its reconstruction, uncertainty {value}"
        tiles.append(Tile(pictures, alt, value))
    return tiles


def _settings_rows(result: Result) -> list[list[str]]:
    settings, contenders = result.settings, list(result.contenders.values())
    config = contenders[0].vae.config
    assert config is not None  # it was built from one
    layers = config.architecture.record()
    return [
        ["Data", f"digits of scikit-learn, 8×8 pixels in [0, 1]: {result.digits.sizes()}"],
        *([c.title, type(c.vae.inference).title] for c in contenders),
        ["Latent dimensions", str(settings.latent_dim)],
        ["Likelihood", config.likelihood.kind],
        [
            "Network",
            f"stride-2 convolutions of {layers['channels']} channels, then {layers['width']} units; mirrored",
        ],
        ["Training", f"Adam at {settings.learning_rate:g}, batches of {settings.batch_size}, {settings.epochs} epochs"],
        *(
            [f"Kept of the {c.title}", f"epoch {c.history.best} ({c.training_seconds:.0f} s in all)"]
            for c in contenders
        ),
        ["Seed", str(settings.seed)],
        ["Versions", ", ".join(f"{name} {number}" for name, number in versions().items())],
    ]
