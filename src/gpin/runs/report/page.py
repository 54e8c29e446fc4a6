"""`write_report`: one self-contained page that compares runs on the same data and explains each figure."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpin._core.files import as_path, write_whole
from gpin._core.messages import Tell, to_stderr
from gpin._core.seeding import seeded
from gpin.data import BENCHMARKS
from gpin.report import Finding, Page, Table
from gpin.runs.differences import data_settings, differing, flat_settings, short_names, surroundings
from gpin.runs.outputs import check_output
from gpin.runs.report.columns import add_columns, add_details, add_hardest_rows
from gpin.runs.report.commands import Command, run_name
from gpin.runs.report.comparison import (
    Comparison,
    DataNotFoundError,
    compare,
    differences,
    listed,
    open_runs,
    summary,
    verdict,
)
from gpin.runs.report.diagnostics import add_calibration, add_curves, add_gap, add_scores
from gpin.runs.report.display import Display, Words, series_channels, words_for
from gpin.runs.report.instances import add_hardest, add_reconstructions, add_samples
from gpin.runs.report.latent import Codes, codes_of
from gpin.runs.report.scored_run import TrainedRun, open_trained
from gpin.runs.report.space import add_space, add_traversals
from gpin.runs.report.verdict import best_of, findings, glance, training
from gpin.runs.rows import OnStage, example_conditions, random_rows

__all__ = ["compose", "compose_without_data", "lead", "write_report"]

MISSING = (
    "It has moved, has changed, or is on another machine. What needs it is left out: scores, reconstructions, the "
    "map of the latent space and the hardest instances. With the new location of the data, they are shown:"
)
FOOT = "Made by gpin. This page is self-contained: it can be sent, printed and archived as a single file."


def write_report(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    samples: int = 100,
    limit: int | None = 1000,
    seed: int = 0,
    data: str | os.PathLike[str] | None = None,
    tell: Tell = to_stderr,
    on_stage: OnStage = lambda what, done, total: None,
) -> None:
    """Write the page about one or more runs, as `gpin report` does.

    If the data of the runs is not found, the page is written without what needs it, and says so.

    Arguments:
        runs: The folders of the runs; the first is the reference for the others.
        out: The file to write.
        samples: K, the number of proposals for each log-likelihood.
        limit: The largest number of test instances with a refined log-likelihood; None for all.
        seed: The seed of all noise and of the choice of these instances.
        data: The new location of the data, if it has moved.
        tell: Called with each message for the user.
        on_stage: Called with what is being done, the number of instances or parts done and their total.
    """
    out = as_path(out, "the page")
    check_output(out, "a page", tell=tell)
    try:
        found = compare(runs, samples=samples, limit=limit, seed=seed, data=data, tell=tell, on_stage=on_stage)
        on_stage("drawing the page", 0, 1)
        page = compose(found)
    except DataNotFoundError as error:
        if data is not None:
            raise
        tell(f"{error}; the page is written without what needs it")
        opened = open_runs(runs)
        trained = [open_trained(name, run, tell) for name, run in zip(short_names(opened), opened, strict=True)]
        page = compose_without_data(trained, seed)
    write_whole(out, page.html().encode())


# The page --------------------------------------------------------------------------------------------


def compose(comparison: Comparison) -> Page:
    """The page about a comparison: the verdict and the pictures first, then the details."""
    page = Page(_title(comparison.scored, comparison.data.source.name), lead=lead(comparison), foot=FOOT)
    codes = [codes_of(one, comparison.data, comparison.seed) for one in comparison.scored]
    _verdict(page, comparison, codes)
    if comparison.table:
        marginals = add_columns(page, comparison)
        add_space(page, comparison, codes, None)
        add_hardest_rows(page, comparison)
        add_details(page, comparison, marginals)
    else:
        display = _display(comparison)
        add_reconstructions(page, comparison, display)
        add_samples(page, comparison.scored, display, comparison.words, comparison.seed)
        add_space(page, comparison, codes, display)
        add_hardest(page, comparison, display)
    add_curves(page, comparison.scored, comparison.words)
    add_scores(page, comparison)
    add_gap(page, comparison)
    add_calibration(page, comparison)
    _settings(page, comparison.scored, _about(comparison))
    return page


def compose_without_data(runs: Sequence[TrainedRun], seed: int = 0) -> Page:
    """The page about runs whose data is not at hand: samples, traversals, learning curves and settings."""
    first = runs[0].run
    words = words_for(first.model.shape, first.scaling)
    source = first.location if first.location in BENCHMARKS else Path(first.location).stem
    page = Page(_title(runs, source), lead=[f"{_who(runs)} trained on {source}.", _encoders(runs, words)], foot=FOOT)
    found = [
        replace(finding, title=f"{one.name}: {finding.title}" if len(runs) > 1 else finding.title)
        for one in runs
        if (finding := training(one)) is not None
    ]
    again = str(Command("report", [run_name(one.run) for one in runs], {"data": "NEW-LOCATION"}))
    page.section("In short").findings([Finding("The data of this page was not found.", MISSING, "bad", again), *found])
    if len(first.model.shape) > 1:
        with seeded(seed):
            drawn = [one.vae.sample(64, y=example_conditions(one.vae, 64)) for one in runs]
        display = Display.fitting(first.model.shape, first.scaling, drawn)
        add_samples(page, runs, display, words, seed)
        add_traversals(page, runs, display)
    add_curves(page, runs, words)
    _settings(page, runs, [["shape", "×".join(map(str, first.model.shape))], ["this page", f"seed {seed}"]])
    return page


def _verdict(page: Page, comparison: Comparison, codes: Sequence[Codes]) -> None:
    """What the numbers amount to, before anything else."""
    scored = comparison.scored
    section = page.section("In short")
    if len(scored) > 1:
        section.text(verdict(comparison) if len(scored) == 2 else summary(comparison), kind="key")
        section.table(glance(comparison, codes))
    if len(scored) > 2:
        section.table(differences(comparison))
    best = best_of(comparison)
    if len(scored) > 1:
        section.heading(f"The best of them: {best.name}")
    section.findings(findings(comparison, best, codes[list(scored).index(best)]))


def _display(comparison: Comparison) -> Display:
    """How images and series are displayed, by the range of some of them."""
    return Display.of(random_rows(comparison.data.test, len(comparison.scored[0].chosen), comparison.seed))


def _title(runs: Sequence[TrainedRun], source: str) -> str:
    names = [one.name for one in runs]
    what = " and ".join(names) if len(names) < 3 and len("".join(names)) < 40 else f"{_in_words(len(names))} runs"
    return f"{what} on {source}"


def _who(runs: Sequence[TrainedRun]) -> str:
    condition = runs[0].vae.condition  # the same for all
    given = "" if condition is None else f", conditional on {condition} and"
    who = "A variational autoencoder" if len(runs) == 1 else f"{_in_words(len(runs))} variational autoencoders"
    return who + given


def _in_words(count: int) -> str:
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    return words[count] if count < len(words) else str(count)


def lead(comparison: Comparison) -> list[str]:
    """The paragraphs that introduce the data and the models, on the page and in the terminal."""
    data, scored = comparison.data, comparison.scored
    paragraphs = [
        f"{_who(scored)} trained on {data.source.name}: {comparison.several(len(data.train))} of {_each(comparison)} "
        f"for training, {len(data.validation):,} for validation. Unless stated otherwise, the numbers below are for "
        f"the {comparison.several(len(data.test))} of the test part, which were not used in training.",
        _encoders(scored, comparison.words),
    ]
    for one in scored:
        if not one.finished:
            done, asked = len(one.history.epochs), one.run.settings.training.epochs
            paragraphs.append(
                f"{one.name} is not finished: it has trained for {done} of {asked} epochs, and its best weights so far "
                "are used here."
            )
    return paragraphs


def _each(comparison: Comparison) -> str:
    """The size of an instance, in words."""
    shape = comparison.data.shape
    if comparison.table:
        count = len(comparison.columns)  # a categorical column has one value of x for each level
        return f"{count} column{'' if count == 1 else 's'}"
    channels = series_channels(shape, comparison.data.scaling)
    if channels:
        return f"{channels} channel{'' if channels == 1 else 's'} of length {math.prod(shape) // channels}"
    return "×".join(map(str, shape[1:])) + " pixels" + (f" and {shape[0]} channels" if shape[0] > 1 else "")


def _encoders(scored: Sequence[TrainedRun], words: Words) -> str:
    """The encoders of the runs, and whether the runs differ in anything else."""
    what = f"the encoder, the network that infers the latent code of {words.one}"
    named = listed([f"{one.name} ({type(one.vae.inference).title.partition(': ')[2]})" for one in scored])
    if len(scored) == 1:
        about = f"The method of {what}, is {named}."
    elif differing([flat_settings(one.run) for one in scored]) == ["method"]:
        about = f"They differ only in {what}: {named}."
    else:
        about = f"The methods of {what}, are {named}."
    certain = [one.name for one in scored if one.vae.inference.has_uncertainty]
    return about + (f" Each posterior inferred by {listed(certain)} comes with its uncertainty." if certain else "")


# Settings --------------------------------------------------------------------------------------------


def _about(comparison: Comparison) -> list[list[str]]:
    """The data and the page itself, as rows of the table of settings."""
    data = comparison.data
    sizes = f"{len(data.train):,} for training, {len(data.validation):,} for validation, {len(data.test):,} for testing"
    return [
        ["data", f"{data.source.name}, {'×'.join(map(str, data.shape))}: {sizes}"],
        ["scaling", _scaling(comparison)],
        ["this page", f"samples {comparison.samples}, seed {comparison.seed}, refined {comparison.refined_count}"],
    ]


def _settings(page: Page, runs: Sequence[TrainedRun], about: list[list[str]]) -> None:
    """What differs between the runs, and what is the same for all, beginning with `about`."""
    settings = [{**flat_settings(one.run), **surroundings(one.run.folder)} for one in runs]
    section = page.section("Settings")
    different = differing(settings)
    if different:
        rows = [[name, *(own.get(name, "—") for own in settings)] for name in different]
        head = ["What differs", *(one.name for one in runs)]
        section.table(Table(head, rows, numeric=False, series=True))
    shared = {name: value for own in settings for name, value in own.items() if name not in different}
    of_data = data_settings(runs[0].run.settings.data)
    rows = [
        *about,
        *([name, value] for name, value in of_data.items() if name != "scaling"),
        *([_owned(name, settings), value] for name, value in shared.items()),
    ]
    section.table(Table(["The same for all" if different else "Setting", "Value"], rows, numeric=False))


def _owned(name: str, settings: Sequence[dict[str, str]]) -> str:
    """The name of a setting, with the methods that have it if not all do."""
    owners = list(dict.fromkeys(own["method"] for own in settings if name in own))
    return name if all(name in own for own in settings) else f"{name} ({', '.join(owners)})"


def _scaling(comparison: Comparison) -> str:
    scaling = comparison.data.scaling
    return {
        "pixels": "pixels: bytes divided by 255",
        "standardised": "standardised to mean 0 and variance 1 in the training part"
        + (f", separately for each {'column' if comparison.table else 'channel'}" if len(scaling.scale) > 1 else ""),
        "binary": "binary: 0 or 1",
        "none": "none",
        "columns": "by the kind of each column",
    }[scaling.kind]
