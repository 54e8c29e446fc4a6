"""`write_report`: one self-contained page that compares runs on the same data, and below each figure how to read it."""

import os
from collections.abc import Sequence

import numpy as np

from gpin._core.files import as_path, write_whole
from gpin._core.messages import Tell, to_stderr
from gpin._core.seeding import seeded
from gpin.report import Page, Table, plots
from gpin.report.numbers import number
from gpin.runs.decode import sample_rows
from gpin.runs.outputs import check_output
from gpin.runs.report import figures
from gpin.runs.report.comparison import (
    Comparison,
    caution,
    compare,
    differences,
    listed,
    relation,
    score_rows,
    summary,
    units,
    verdict,
)
from gpin.runs.report.scored_run import ScoredRun, column_moments
from gpin.runs.report.settings import data_settings, differing, flat_settings, surroundings
from gpin.runs.rows import random_rows, spread_rows

__all__ = ["compose", "write_report"]

MOST = 5
"""Instances side by side that are the most uncertain."""
COLUMNS = 10
"""Columns of a table's instances that are shown."""
DESCRIBED = 20
"""Columns of a table whose means and deviations are shown."""
DRAWS = 10_000
"""Samples whose means and deviations are shown."""


def write_report(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    samples: int = 100,
    limit: int | None = 1000,
    seed: int = 0,
    data: str | os.PathLike[str] | None = None,
    tell: Tell = to_stderr,
) -> None:
    """Write the page about one or several runs, whole or not at all, as `gpin report` does.

    Arguments:
        runs: The folders of the runs; the others are compared with the first.
        out: The file to write.
        samples: K, the proposals for each instance's log-likelihood.
        limit: Test instances that get a refined log-likelihood, at most; None for all.
        seed: The seed of all noise, and of the choice of these instances.
        data: Where the data is now, if it has moved.
        tell: Called with each sentence that the user should read.
    """
    out = as_path(out, "the page")
    check_output(out, "a page")
    page = compose(compare(runs, samples=samples, limit=limit, seed=seed, data=data, tell=tell))
    write_whole(out, page.html().encode())


# The page --------------------------------------------------------------------------------------------


def compose(comparison: Comparison) -> Page:
    """The page that tells what came out."""
    page = Page(
        _title(comparison),
        lead=lead(comparison),
        foot="Made by gpin. The page needs nothing else: it can be mailed, printed and kept as it is.",
    )
    _scores(page, comparison)
    _curves(page, comparison)
    display = _display(comparison)
    if display is not None:
        _pictures(page, comparison, display)
    elif comparison.images:
        page.section("Reconstructions and samples").text(
            f"An image of {comparison.data.shape[0]} channels is neither grey nor coloured, so none is shown."
        )
    else:
        _rebuilt_rows(page, comparison)
        _drawn_columns(page, comparison)
    knowing = [i for i, one in enumerate(comparison.scored) if one.uncertainty is not None]
    for i in knowing:
        one, alone = comparison.scored[i], len(knowing) == 1
        if display is None:
            _most_uncertain(page, comparison, one)
        else:
            _from_certain(page, comparison, one, display, count=36 if alone else 24)
        _finds(page, comparison, one, i, alone)
    _settings(page, comparison)
    return page


def _display(comparison: Comparison) -> figures.Display | None:
    """How images are shown, by the range of some of them; None for what cannot be a picture."""
    if not comparison.images or comparison.data.shape[0] not in (1, 3):
        return None
    few = random_rows(comparison.data.test, len(comparison.scored[0].chosen), comparison.seed)
    return figures.Display.of(few)


def _title(comparison: Comparison) -> str:
    names = [one.name for one in comparison.scored]
    what = " and ".join(names) if len(names) < 3 and len("".join(names)) < 40 else f"{_in_words(len(names))} runs"
    return f"{what} on {comparison.data.source.name}"


def _in_words(count: int) -> str:
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    return words[count] if count < len(words) else str(count)


def lead(comparison: Comparison) -> list[str]:
    """What is shown or compared, for those who have not met it before; terminal and page begin with it."""
    data, scored = comparison.data, comparison.scored
    shape = "×".join(map(str, data.shape[1:] if comparison.images else data.shape))
    channels = f" and {data.shape[0]} channels" if comparison.images and data.shape[0] > 1 else ""
    each = f"{shape} pixels{channels}" if comparison.images else f"{shape} column{'' if data.shape[0] == 1 else 's'}"
    who = "A variational autoencoder" if len(scored) == 1 else f"{_in_words(len(scored))} variational autoencoders"
    paragraphs = [
        f"{who} learnt {data.source.name}: {comparison.several(len(data.train))} of {each} to train on, "
        f"{len(data.validation):,} to validate. Unless said otherwise, the numbers below are from the "
        f"{len(data.test):,} of the test part, which training never saw.",
        _encoders(comparison),
    ]
    for one in scored:
        if not one.finished:
            done, asked = len(one.history.epochs), one.run.settings.training.epochs
            paragraphs.append(
                f"{one.name} is not finished: it has trained {done} of {asked} epochs, and what is shown are its best "
                "weights so far."
            )
    return paragraphs


def _encoders(comparison: Comparison) -> str:
    """What the encoders are, and whether the runs differ in anything else."""
    scored = comparison.scored
    what = f"the encoder, the network that infers the latent code of {comparison.one}"
    named = listed([f"{one.name} ({type(one.vae.inference).title.partition(': ')[2]})" for one in scored])
    if len(scored) == 1:
        about = f"The method of {what}, is {named}."
    elif differing([flat_settings(one.run) for one in scored]) == ["method"]:
        about = f"They differ only in {what}: {named}."
    else:
        about = f"The methods of {what}, are {named}."
    certain = [one.name for one in scored if one.uncertainty is not None]
    return about + (f" Each answer of {listed(certain)} comes with its uncertainty." if certain else "")


# Scores ----------------------------------------------------------------------------------------------


def _scores(page: Page, comparison: Comparison) -> None:
    scored = comparison.scored
    section = page.section("How good is the model?" if len(scored) == 1 else "Which model is better?")
    section.table(Table(["", *(one.name for one in scored)], score_rows(comparison), series=True))
    if len(scored) == 2:
        section.text(verdict(comparison), kind="key")
    elif len(scored) > 2:
        section.text(summary(comparison), kind="key")
        section.table(differences(comparison))
    section.text(
        f"The log-likelihood is the score: how probable the model finds {comparison.one} that it has never seen. It "
        f"cannot be computed, only estimated from {comparison.samples} proposed codes per {comparison.noun}: those of "
        f"the encoder, or better ones, found for each {comparison.noun} by Gauss–Newton steps. The effective samples "
        f"say how many proposals matter; k̂ warns where too few do. {units(comparison)}{caution(comparison)}",
        kind="note",
    )


# Learning --------------------------------------------------------------------------------------------


def _curves(page: Page, comparison: Comparison) -> None:
    scored = comparison.scored
    section = page.section("How it learnt" if len(scored) == 1 else "How they learnt")
    if not any(one.history.epochs for one in scored):
        section.text("The history of training is no longer in the run’s folder.")
        return
    drawn = plots.svg(figures.curves(scored, comparison.one))
    section.drawing(drawn, alt="Learning curves: the ELBO by epoch.")
    lost = [one.name for one in scored if not one.history.epochs]
    if lost:
        section.text(f"The history of training is no longer in the folder of {listed(lost)}.")
    several = len({one.run.model.method for one in scored}) > 1
    rising = [one.name for one in scored if one.finished and 0 < one.history.best == len(one.history.epochs)]
    section.text(
        f"The ELBO by epoch, on validation {comparison.noun}s (solid) and training {comparison.noun}s (dashed). A dot "
        "marks the epoch whose weights were kept, the best in validation. Where dashed and solid part, a model begins "
        "to learn its training part by heart."
        + (" Bounds differ in what they leave out, so compare heights within a method only." if several else "")
        + (f" The last epoch was the best of {listed(rising)}: longer training may help." if rising else ""),
        kind="note",
    )


# Images ----------------------------------------------------------------------------------------------


def _pictures(page: Page, comparison: Comparison, display: figures.Display) -> None:
    scored, data = comparison.scored, comparison.data
    section = page.section("Reconstructions")
    section.strips(figures.reconstructions(scored, data, display))
    section.text(
        f"Test images, and each painted again from the {_codes(scored)} numbers that the encoder made of it. Blur is "
        "what the numbers did not keep.",
        kind="note",
    )
    section = page.section("Samples")
    section.pictures(
        (one.name, figures.samples(one, display, comparison.seed), f"Samples of {one.name}") for one in scored
    )
    section.text(
        "Images that are in no data set: painted from a code drawn at random. The more they look like the test images "
        "above, the better the model knows them.",
        kind="note",
    )


# Tables ----------------------------------------------------------------------------------------------


def _rebuilt_rows(page: Page, comparison: Comparison) -> None:
    data, scored = comparison.data, comparison.scored
    few = spread_rows(data.test, 3)
    x = few[:]
    with seeded(comparison.seed):
        shown = [data.scaling.undo(x), *(data.scaling.undo(one.vae.reconstruct(x)) for one in scored)]
    section = page.section("Reconstructions")
    for place, *beside in zip(few.rows.tolist(), *shown, strict=True):
        head = [f"Row {place}", "as it is", *(one.name for one in scored)]
        section.table(Table(head, _by_column(comparison, np.stack(beside))))
    section.text(
        f"{_in_words(len(few))} test row{'' if len(few) == 1 else 's'} in the units of the data, and beside each what "
        f"a model makes of the {_codes(scored)} numbers of its code. {_row_note(comparison)}"
        + _left_out(comparison, COLUMNS),
        kind="note",
    )


def _by_column(comparison: Comparison, values: np.ndarray) -> list[list[str]]:
    """Instances `(n, columns)` side by side, a row for each of the first columns."""
    named = zip(comparison.columns[:COLUMNS], values.T, comparison.moments[1], strict=False)
    return [[name, *(number(value, spread) for value in column)] for name, column, spread in named]


def _codes(scored: Sequence[ScoredRun]) -> str:
    return " or ".join(map(str, sorted({one.vae.latent_dim for one in scored})))


def _drawn_columns(page: Page, comparison: Comparison) -> None:
    data, names = comparison.data, comparison.columns[:DESCRIBED]
    drawn = (sample_rows(one.vae, DRAWS, noise=True, seed=comparison.seed) for one in comparison.scored)
    found = [comparison.moments, *(column_moments(parts, data.scaling) for parts in drawn)]
    spread = comparison.moments[1]
    rows = [
        [name, *(f"{number(mean[k], spread[k])} ({number(deviation[k], spread[k])})" for mean, deviation in found)]
        for k, name in enumerate(names)
    ]
    section = page.section("Samples")
    head = ["mean (deviation)", "Test rows", *(one.name for one in comparison.scored)]
    section.table(Table(head, rows))
    section.text(
        f"Mean and standard deviation of {len(data.test):,} test rows, and of {DRAWS:,} rows drawn from each model, "
        "noise included, in the units of the data. A model that knows the data comes close; how columns hang together "
        "is not seen here." + _left_out(comparison, DESCRIBED),
        kind="note",
    )


def _row_note(comparison: Comparison) -> str:
    part = "data" if comparison.data.source.test is None else "data’s test part"
    return f"Numbers of {comparison.noun}s are those in the {part}, from 0."


def _left_out(comparison: Comparison, shown: int) -> str:
    count = len(comparison.columns)
    return f" The first {shown} of {count} columns are shown." if count > shown else ""


# Uncertainty -----------------------------------------------------------------------------------------


WHAT = (
    "Uncertainty is the variance of the encoder’s own answer, summed over the latent dimensions; it comes with the "
    "answer, from one pass through the encoder."
)


def _from_certain(page: Page, comparison: Comparison, one: ScoredRun, display: figures.Display, count: int) -> None:
    """`count` test images from certain to uncertain."""
    section = page.section(f"What {one.name} is sure of")
    section.tiles(figures.tiles(one, comparison.data, display, count))
    section.text(
        f"Test images from the least uncertain to the most, at evenly spaced ranks among all "
        f"{len(comparison.data.test):,}: the image, what {one.name} makes of it, and its uncertainty. {WHAT} See for "
        "yourself whether the last look odder than the first.",
        kind="note",
    )


def _most_uncertain(page: Page, comparison: Comparison, one: ScoredRun) -> None:
    """The test instances with the largest uncertainty, by their numbers."""
    assert one.uncertainty is not None
    noun, test = comparison.noun, comparison.data.test
    order = one.uncertainty.argsort(descending=True, stable=True)[:20].tolist()
    places = test.rows[order].tolist()
    rows = [["uncertainty", *(f"{one.uncertainty[i].item():#.2g}" for i in order[:MOST])]]
    if not comparison.images:
        rows += _by_column(comparison, comparison.data.scaling.undo(test.__getitems__(order[:MOST])))
    section = page.section(f"What {one.name} is least sure of")
    section.table(Table(["", *(f"{noun.capitalize()} {place}" for place in places[:MOST])], rows))
    median = f"{one.uncertainty.median().item():#.2g}"
    following = f" Next come {noun}s {', '.join(map(str, places[MOST:]))}." if places[MOST:] else ""
    section.text(
        f"The test {noun}s with the largest uncertainty, of {len(test):,}; the median of all is {median}.{following} "
        f"{WHAT} {_row_note(comparison)}" + ("" if comparison.images else _left_out(comparison, COLUMNS)),
        kind="note",
    )


def _finds(page: Page, comparison: Comparison, one: ScoredRun, index: int, alone: bool) -> None:
    """Uncertainty against the inference gap, for the `index`-th run."""
    noun, count = comparison.noun, len(one.chosen)
    section = page.section(f"Does {'' if alone else f'{one.name}’s '}uncertainty find the difficult {noun}s?")
    section.drawing(
        plots.svg(figures.inference_gap(one, index)),
        alt=f"Uncertainty of {one.name} against the inference gap, a point for each of {comparison.several(count)}.",
    )
    section.text(relation(comparison, one), kind="key")
    line = "The line joins the medians of ten groups of equal size; where uncertainty finds the difficult, it rises. "
    section.text(
        f"Each point is a test {noun}. Its inference gap is the refined log-likelihood less the ELBO of the encoder’s "
        f"posterior: what the encoder’s answer leaves out. {line if count >= 50 else ''}The negative ELBO is the "
        "baseline to beat; it needs the decoder as well, and has an advantage, since it is part of the gap itself.",
        kind="note",
    )


# Settings --------------------------------------------------------------------------------------------


def _settings(page: Page, comparison: Comparison) -> None:
    scored, data = comparison.scored, comparison.data
    settings = [{**flat_settings(one.run), **surroundings(one.run.folder)} for one in scored]
    section = page.section("Settings")
    different = differing(settings)
    if different:
        rows = [[name, *(mine.get(name, "—") for mine in settings)] for name in different]
        head = ["What differs", *(one.name for one in scored)]
        section.table(Table(head, rows, numeric=False, series=True))
    shared = {name: value for mine in settings for name, value in mine.items() if name not in different}
    shape = "×".join(map(str, data.shape))
    sizes = f"{len(data.train):,} to train, {len(data.validation):,} to validate, {len(data.test):,} to test"
    about = [
        ["data", f"{data.source.name}, {shape}: {sizes}"],
        ["scaling", _scaling(comparison)],
        *([name, value] for name, value in data_settings(scored[0].run.settings.data).items() if name != "scaling"),
        *([_owned(name, settings), value] for name, value in shared.items()),
        ["this page", f"samples {comparison.samples}, seed {comparison.seed}, refined {comparison.refined_count}"],
    ]
    head = ["The same for all" if different else "Setting", "Value"]
    section.table(Table(head, about, numeric=False))


def _owned(name: str, settings: Sequence[dict[str, str]]) -> str:
    """A setting's name, and whose it is where not all have it."""
    owners = list(dict.fromkeys(mine["method"] for mine in settings if name in mine))
    return name if all(name in mine for mine in settings) else f"{name} ({', '.join(owners)})"


def _scaling(comparison: Comparison) -> str:
    scaling = comparison.data.scaling
    return {
        "pixels": "pixels: bytes divided by 255",
        "standardised": "standardised by the training part: mean 0, variance 1"
        + ("" if comparison.images else ", each column by itself"),
        "binary": "binary: 0 or 1",
        "none": "none",
    }[scaling.kind]
