"""`write_report`: one self-contained page that compares runs on the same data and explains each figure."""

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
"""The number of instances with the largest gap that are shown."""
COLUMNS = 10
"""The number of columns that are shown for an instance of a table."""
DESCRIBED = 20
"""The number of columns whose means and standard deviations are shown."""
DRAWS = 10_000
"""The number of samples from which means and standard deviations are computed."""


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
    """Write the page about one or more runs, as `gpin report` does.

    Arguments:
        runs: The folders of the runs; the first is the reference for the others.
        out: The file to write.
        samples: K, the number of proposals for each log-likelihood.
        limit: The largest number of test instances with a refined log-likelihood; None for all.
        seed: The seed of all noise and of the choice of these instances.
        data: The new location of the data, if it has moved.
        tell: Called with each message for the user.
    """
    out = as_path(out, "the page")
    check_output(out, "a page", tell=tell)
    page = compose(compare(runs, samples=samples, limit=limit, seed=seed, data=data, tell=tell))
    write_whole(out, page.html().encode())


# The page --------------------------------------------------------------------------------------------


def compose(comparison: Comparison) -> Page:
    """The page about a comparison."""
    page = Page(
        _title(comparison),
        lead=lead(comparison),
        foot="Made by gpin. This page is self-contained: it can be sent, printed and archived as a single file.",
    )
    _scores(page, comparison)
    _curves(page, comparison)
    display = _display(comparison)
    if display is not None:
        _pictures(page, comparison, display)
    elif comparison.images:
        page.section("Reconstructions and samples").text(
            f"Images of {comparison.data.shape[0]} channels are neither grey nor coloured, so they are not shown."
        )
    else:
        _rebuilt_rows(page, comparison)
        _drawn_columns(page, comparison)
    alone = len(comparison.scored) == 1
    for i, one in enumerate(comparison.scored):
        if one.gap is None:
            continue
        if display is None:
            _largest_gaps(page, comparison, one)
        else:
            _by_gap(page, comparison, one, display, count=36 if alone else 24)
        _finds(page, comparison, one, i, alone)
    _calibration(page, comparison)
    _settings(page, comparison)
    return page


def _display(comparison: Comparison) -> figures.Display | None:
    """How images are displayed, by the range of some of them; None for data that cannot be shown as images."""
    if not comparison.images or comparison.data.shape[0] not in (1, 3):
        return None
    subset = random_rows(comparison.data.test, len(comparison.scored[0].chosen), comparison.seed)
    return figures.Display.of(subset)


def _title(comparison: Comparison) -> str:
    names = [one.name for one in comparison.scored]
    what = " and ".join(names) if len(names) < 3 and len("".join(names)) < 40 else f"{_in_words(len(names))} runs"
    return f"{what} on {comparison.data.source.name}"


def _in_words(count: int) -> str:
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    return words[count] if count < len(words) else str(count)


def lead(comparison: Comparison) -> list[str]:
    """The paragraphs that introduce the data and the models, on the page and in the terminal."""
    data, scored = comparison.data, comparison.scored
    shape = "×".join(map(str, data.shape[1:] if comparison.images else data.shape))
    channels = f" and {data.shape[0]} channels" if comparison.images and data.shape[0] > 1 else ""
    each = f"{shape} pixels{channels}" if comparison.images else f"{shape} column{'' if data.shape[0] == 1 else 's'}"
    who = "A variational autoencoder" if len(scored) == 1 else f"{_in_words(len(scored))} variational autoencoders"
    paragraphs = [
        f"{who} trained on {data.source.name}: {comparison.several(len(data.train))} of {each} for training, "
        f"{len(data.validation):,} for validation. Unless stated otherwise, the numbers below are for the "
        f"{comparison.several(len(data.test))} of the test part, which were not used in training.",
        _encoders(comparison),
    ]
    for one in scored:
        if not one.finished:
            done, asked = len(one.history.epochs), one.run.settings.training.epochs
            paragraphs.append(
                f"{one.name} is not finished: it has trained for {done} of {asked} epochs, and its best weights so far "
                "are used here."
            )
    return paragraphs


def _encoders(comparison: Comparison) -> str:
    """The encoders of the runs, and whether the runs differ in anything else."""
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
    return about + (f" Each posterior inferred by {listed(certain)} comes with its uncertainty." if certain else "")


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
        f"The log-likelihood measures how probable the model finds {comparison.one} that it has never seen. It cannot "
        f"be computed exactly, so it is estimated from {comparison.samples} proposed codes per {comparison.noun}: "
        f"those of the encoder, or better ones that a search for the mode finds for each {comparison.noun}. The "
        "effective sample size is the number of proposals that matter; k̂ warns if it is too small. ± is the standard "
        f"error of the mean over {comparison.noun}s; the Monte-Carlo error is that of the estimation itself. "
        f"{units(comparison)}{caution(comparison)}",
        kind="note",
    )


# Learning --------------------------------------------------------------------------------------------


def _curves(page: Page, comparison: Comparison) -> None:
    scored = comparison.scored
    section = page.section("How it learnt" if len(scored) == 1 else "How they learnt")
    if not any(one.history.epochs for one in scored):
        section.text("The training history is no longer in the folder of the run.")
        return
    drawn = plots.svg(figures.curves(scored, comparison.one))
    section.drawing(drawn, alt="Learning curves: the ELBO by epoch.")
    lost = [one.name for one in scored if not one.history.epochs]
    if lost:
        section.text(f"The training history is no longer in the folder of {listed(lost)}.")
    several = len({one.run.model.method for one in scored}) > 1
    rising = [one.name for one in scored if one.finished and 0 < one.history.best == len(one.history.epochs)]
    section.text(
        f"The ELBO by epoch, on validation {comparison.noun}s (solid) and training {comparison.noun}s (dashed). A dot "
        "marks the epoch whose weights were kept, the best in validation. Where the dashed curve leaves the solid one, "
        "the model begins to overfit."
        + (" The bounds of different methods are not comparable: compare only curves of one method." if several else "")
        + (f" The last epoch of {listed(rising)} was the best: longer training may help." if rising else ""),
        kind="note",
    )


# Images ----------------------------------------------------------------------------------------------


def _pictures(page: Page, comparison: Comparison, display: figures.Display) -> None:
    scored, data = comparison.scored, comparison.data
    section = page.section("Reconstructions")
    section.strips(figures.reconstructions(scored, data, display))
    section.text(
        f"Test images and their reconstructions from the {_codes(scored)} numbers of the latent code. Blur shows what "
        "the code does not retain.",
        kind="note",
    )
    section = page.section("Samples")
    section.pictures(
        (one.name, figures.samples(one, display, comparison.seed), f"Samples of {one.name}") for one in scored
    )
    section.text(
        "New images, decoded from codes drawn at random. The more they look like the test images above, the better the "
        "model.",
        kind="note",
    )


# Tables ----------------------------------------------------------------------------------------------


def _rebuilt_rows(page: Page, comparison: Comparison) -> None:
    data, scored = comparison.data, comparison.scored
    chosen = spread_rows(data.test, 3)
    x = chosen[:]
    with seeded(comparison.seed):
        shown = [data.scaling.undo(x), *(data.scaling.undo(one.vae.reconstruct(x)) for one in scored)]
    section = page.section("Reconstructions")
    for place, *beside in zip(chosen.rows.tolist(), *shown, strict=True):
        head = [f"Row {place}", "original", *(one.name for one in scored)]
        section.table(Table(head, _by_column(comparison, np.stack(beside))))
    section.text(
        f"{_in_words(len(chosen))} test row{'' if len(chosen) == 1 else 's'} in the units of the data, each next to "
        f"its reconstructions from the {_codes(scored)} numbers of the latent code. {_row_note(comparison)}"
        + _left_out(comparison, COLUMNS),
        kind="note",
    )


def _by_column(comparison: Comparison, values: np.ndarray) -> list[list[str]]:
    """Instances `(n, columns)` side by side, one row for each of the first columns."""
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
        "noise included, in the units of the data. A good model comes close; dependences between columns are not shown "
        "here." + _left_out(comparison, DESCRIBED),
        kind="note",
    )


def _row_note(comparison: Comparison) -> str:
    part = "data" if comparison.data.source.test is None else "data’s test part"
    return f"{comparison.noun.capitalize()}s are numbered as in the {part}, from 0."


def _left_out(comparison: Comparison, shown: int) -> str:
    count = len(comparison.columns)
    return f" The first {shown} of {count} columns are shown." if count > shown else ""


# The gap ---------------------------------------------------------------------------------------------


def _what(comparison: Comparison) -> str:
    return (
        f"The estimated gap says in nats how far the posterior that the encoder infers for {comparison.one} is from "
        "the best one; it takes one gradient of the decoder."
    )


def _by_gap(page: Page, comparison: Comparison, one: ScoredRun, display: figures.Display, count: int) -> None:
    """`count` test images from the smallest estimated gap to the largest."""
    section = page.section(f"Which images {one.name} infers well")
    section.tiles(figures.tiles(one, comparison.data, display, count))
    section.text(
        f"Test images from the smallest estimated gap to the largest, at evenly spaced ranks among all "
        f"{len(comparison.data.test):,}: the image, its reconstruction by {one.name}, and its estimated gap in nats. "
        f"{_what(comparison)} See for yourself whether the last ones look more unusual than the first.",
        kind="note",
    )


def _largest_gaps(page: Page, comparison: Comparison, one: ScoredRun) -> None:
    """The test instances with the largest estimated gap, by their numbers."""
    assert one.gap is not None
    noun, test = comparison.noun, comparison.data.test
    order = one.gap.argsort(descending=True, stable=True)[:20].tolist()
    places = test.rows[order].tolist()
    rows = [["estimated gap, nats", *(f"{one.gap[i].item():.1f}" for i in order[:MOST])]]
    if not comparison.images:
        rows += _by_column(comparison, comparison.data.scaling.undo(test.__getitems__(order[:MOST])))
    section = page.section(f"Which {noun}s {one.name} infers worst")
    section.table(Table(["", *(f"{noun.capitalize()} {place}" for place in places[:MOST])], rows))
    median = f"{one.gap.median().item():.1f}"
    following = f" Next come {noun}s {', '.join(map(str, places[MOST:]))}." if places[MOST:] else ""
    section.text(
        f"The test {noun}s with the largest estimated gap, of {len(test):,}; the median of all is {median}.{following} "
        f"{_what(comparison)} {_row_note(comparison)}" + ("" if comparison.images else _left_out(comparison, COLUMNS)),
        kind="note",
    )


def _finds(page: Page, comparison: Comparison, one: ScoredRun, index: int, alone: bool) -> None:
    """The estimated gap against the inference gap, for the `index`-th run."""
    noun, count = comparison.noun, len(one.chosen)
    section = page.section(f"Does the estimated gap{'' if alone else f' of {one.name}'} find the difficult {noun}s?")
    section.drawing(
        plots.svg(figures.inference_gap(one, index)),
        alt=f"Estimated gap of {one.name} against the inference gap, a point for each of {comparison.several(count)}.",
    )
    section.text(relation(comparison, one), kind="key")
    line = f"The line joins the medians of ten groups of equal size; it rises if the estimate finds difficult {noun}s. "
    section.text(
        f"Each point is a test {noun}. Its inference gap is the refined log-likelihood minus the ELBO of "
        f"the encoder’s posterior: what is lost by using that posterior. {line if count >= 50 else ''}The negative "
        "ELBO is a simple baseline, but it has an advantage, since it is part of the inference gap itself.",
        kind="note",
    )


# Calibration -----------------------------------------------------------------------------------------


def _calibration(page: Page, comparison: Comparison) -> None:
    scored = [(i, one) for i, one in enumerate(comparison.scored) if one.coverage]
    if not scored:
        return
    section = page.section("Do the intervals of the posteriors hold?")
    section.drawing(
        plots.svg(figures.coverage(comparison.scored)),
        alt="The share of true codes inside central intervals against the probability of the intervals.",
    )
    for _, one in scored:
        shares = [f"{100 * row.mean(0.8):.0f} % ({row.posterior})" for row in one.coverage]
        section.text(f"The 80 % intervals of {one.name} cover {', '.join(shares)} of the true codes.", kind="key")
    rows = [row for _, one in scored for row in one.coverage]
    count, error = rows[0].count, max(row.stderr(0.8) for row in rows)
    calibrated = ""
    if any("calibrated" in row.posterior for row in rows):
        calibrated = "“Calibrated” posteriors have their covariance multiplied by a temperature, see vae.calibrate. "
    section.text(
        f"The share of the true latent codes inside central intervals of the posteriors, for {count:,} instances "
        "simulated from each model, whose true codes are known, averaged over the latent dimensions; its standard "
        f"error is at most {100 * error:.1f} %. A curve below the diagonal belongs to a posterior whose intervals are "
        f"too narrow. {calibrated}An encoder can be worse for simulated {comparison.noun}s than for real ones, with "
        "which it was trained.",
        kind="note",
    )
    for index, one in scored:
        shown = min(one.vae.latent_dim, plots.MOST_DIMENSIONS)
        section.drawing(
            plots.svg(figures.ranks(one, index)),
            alt=f"Histograms of the ranks of the true codes among draws of the posteriors of {one.name}.",
        )
        which = "each latent dimension" if shown == one.vae.latent_dim else f"the first {shown} latent dimensions"
        section.text(
            f"The ranks of the true codes among draws of the posteriors of {one.name}, for {which}. If a posterior is "
            "exact, all bars of a panel end in the grey band with a probability of 95 %. A U shape means that its "
            "intervals are too narrow.",
            kind="note",
        )


# Settings --------------------------------------------------------------------------------------------


def _settings(page: Page, comparison: Comparison) -> None:
    scored, data = comparison.scored, comparison.data
    settings = [{**flat_settings(one.run), **surroundings(one.run.folder)} for one in scored]
    section = page.section("Settings")
    different = differing(settings)
    if different:
        rows = [[name, *(own.get(name, "—") for own in settings)] for name in different]
        head = ["What differs", *(one.name for one in scored)]
        section.table(Table(head, rows, numeric=False, series=True))
    shared = {name: value for own in settings for name, value in own.items() if name not in different}
    shape = "×".join(map(str, data.shape))
    sizes = f"{len(data.train):,} for training, {len(data.validation):,} for validation, {len(data.test):,} for testing"
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
    """The name of a setting, with the methods that have it if not all do."""
    owners = list(dict.fromkeys(own["method"] for own in settings if name in own))
    return name if all(name in own for own in settings) else f"{name} ({', '.join(owners)})"


def _scaling(comparison: Comparison) -> str:
    scaling = comparison.data.scaling
    return {
        "pixels": "pixels: bytes divided by 255",
        "standardised": "standardised to mean 0 and variance 1 in the training part"
        + ("" if comparison.images else ", separately for each column"),
        "binary": "binary: 0 or 1",
        "none": "none",
    }[scaling.kind]
