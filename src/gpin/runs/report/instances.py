"""The sections of a page that show images and series: reconstructions, samples, and the hardest instances."""

from collections.abc import Sequence

from gpin.data import Rows
from gpin.report import Page, Section
from gpin.report.numbers import even_ranks, rounded
from gpin.runs.report import figures
from gpin.runs.report.comparison import Comparison
from gpin.runs.report.display import Display, Words
from gpin.runs.report.given import sample_note
from gpin.runs.report.scored_run import ScoredRun, TrainedRun

__all__ = ["add_hardest", "add_reconstructions", "add_samples", "gap_note", "label", "latent_dims", "row_note"]


def label(rows: Rows, index: int, noun: str) -> str:
    """The name of an instance: its file, or its number in the data."""
    place = int(rows.rows[index])
    return f"{noun} {place}" if rows.names is None else rows.names[place]


def latent_dims(runs: Sequence[TrainedRun]) -> str:
    """The numbers of latent dimensions of runs, in words."""
    return " or ".join(map(str, sorted({one.vae.latent_dim for one in runs})))


def row_note(comparison: Comparison) -> str:
    """How instances are numbered; empty if they have names."""
    if comparison.data.test.names is not None:
        return ""
    part = "data" if comparison.data.source.test is None else "data’s test part"
    return f" {comparison.nouns.capitalize()} are numbered as in the {part}, from 0."


def gap_note(comparison: Comparison) -> str:
    """What the estimated gap is."""
    return (
        f"The estimated gap says in nats how far the posterior that the encoder infers for {comparison.one} is from "
        "the best one; it takes one gradient of the decoder."
    )


def add_reconstructions(page: Page, comparison: Comparison, display: Display) -> None:
    """Test instances and their reconstructions by every run."""
    section = page.section("Reconstructions")
    section.strips(figures.reconstructions(comparison.scored, comparison.data, display))
    lost = "What is smoothed away is" if display.series else "Blur shows"
    section.text(
        f"Test {comparison.nouns} and their reconstructions from the {latent_dims(comparison.scored)} numbers of the "
        f"latent code. {lost} what the code does not retain." + _channels(display),
        kind="note",
    )


def _channels(display: Display) -> str:
    """How series are drawn; empty for images."""
    if not display.series:
        return ""
    count = len(display.low)
    return (
        " The channel is drawn over its range in the data."
        if count == 1
        else f" The {count} channels have a colour each, and are drawn over their own ranges in the data."
    )


def add_samples(page: Page, runs: Sequence[TrainedRun], display: Display, words: Words, seed: int) -> None:
    """Draws from every model."""
    section = page.section("Samples")
    section.pictures((one.name, figures.samples(one, display, seed), f"Samples of {one.name}") for one in runs)
    section.text(
        f"New {words.nouns}, decoded from codes drawn at random from the prior. The more they look like the data, the "
        "better the model." + sample_note(runs),
        kind="note",
    )


def add_hardest(page: Page, comparison: Comparison, display: Display) -> None:
    """The least likely test instances of every run, and instances ordered by their estimated gap."""
    alone = len(comparison.scored) == 1
    section = page.section(f"The hardest {comparison.nouns}")
    for one in comparison.scored:
        _least_likely(section, comparison, one, display, count=12 if alone else 6)
        if one.gap is not None:
            _by_gap(section, comparison, one, display, count=24 if alone else 12)
    gaps = f" {gap_note(comparison)}" if any(one.gap is not None for one in comparison.scored) else ""
    section.text(
        f"The upper {comparison.noun} is the original, the lower one its reconstruction. The log-likelihoods are those "
        f"with refined proposals, in nats; what is unlikely under the model is rare in the training data, or damaged."
        f"{gaps}{row_note(comparison)}",
        kind="note",
    )


def _least_likely(section: Section, comparison: Comparison, one: ScoredRun, display: Display, count: int) -> None:
    values, test = one.likelihood("refined").values, comparison.data.test
    lowest = values.argsort(stable=True)[:count]
    chosen = one.chosen[lowest].tolist()
    texts = [
        f"{label(test, i, comparison.noun)}\n{rounded(value, 1)}"
        for i, value in zip(chosen, values[lowest].tolist(), strict=True)
    ]
    section.heading(f"Least likely under {one.name}")
    section.tiles(
        figures.tiles(one, comparison.data, display, chosen, "Original and reconstruction:", texts), named=True
    )


def _by_gap(section: Section, comparison: Comparison, one: ScoredRun, display: Display, count: int) -> None:
    """`count` test instances from the smallest estimated gap to the largest."""
    assert one.gap is not None
    chosen = even_ranks(one.gap, count).tolist()
    texts = [rounded(one.gap[i].item(), 1) for i in chosen]
    alt = "Original and reconstruction, with an estimated gap in nats of"
    total = len(comparison.data.test)
    section.heading(f"From the smallest to the largest estimated gap of {one.name}")
    section.tiles(figures.tiles(one, comparison.data, display, chosen, alt, texts), named=display.series)
    if total > count:
        section.text(f"At evenly spaced ranks among all {total:,}, with the gap in nats below.", kind="note")
