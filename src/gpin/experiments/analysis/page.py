"""One page with all tables and figures of a store."""

import json
from collections.abc import Sequence
from contextlib import suppress

from gpin._core.errors import InputError
from gpin._core.files import read_record
from gpin.experiments.analysis.figures import uncertainty_figure
from gpin.experiments.analysis.progress import paper_scores, processors_note, progress_figure, progress_of
from gpin.experiments.analysis.results import Results, experiment_times
from gpin.experiments.analysis.tables import column_title, experiment_tables
from gpin.experiments.execution.store import JOB, VERSION, Store
from gpin.experiments.protocols import EXPERIMENTS, VARIANTS, Entry, Experiment, Protocol, variant_named
from gpin.report import Page, Section, plots
from gpin.report.tables import ResultTable

__all__ = ["compose_page"]


def compose_page(store: Store, protocol: Protocol) -> Page:
    """The page of all experiments that have results under a protocol."""
    page = Page(
        f"The experiments, {protocol.name} protocol",
        lead=_lead(protocol),
        foot="Made by gpin experiment report. This page is self-contained: it can be sent, printed and archived.",
    )
    environments: list[dict[str, object]] = []
    said: set[str] = set()
    for experiment in EXPERIMENTS.values():
        if protocol.name not in experiment.rows:
            continue
        entries = _entries(experiment, protocol, store)
        rows = list(dict.fromkeys(entry.row for entry in entries)) or experiment.rows[protocol.name]
        results = Results(store, entries)
        times = experiment_times(experiment, protocol, results, rows)
        tables = experiment_tables(experiment, protocol, results, times)
        if not tables:
            continue
        section = page.section(experiment.title)
        if results.done < len(entries):
            done = f"{results.done} of the {len(entries)} runs of the protocol are done."
            section.text(f"{done} Rows without results are left out.", kind="note")
        _add_tables(section, tables, said)
        if protocol.limit is None:
            _add_progress(section, experiment, results)
        if experiment.grid and results.done:
            for row in experiment.rows[protocol.name]:
                _add_figure(section, store, entries, row)
        environments += [one for one in results.environments if one not in environments]
    if not page.sections:
        raise InputError(f"{store.root} has no results of the {protocol.name} protocol yet: run an experiment first")
    section = page.section("How it was made")
    section.text(f"Protocol: {json.dumps(protocol.model_dump(mode='json'))}", kind="note")
    for environment in environments:
        section.text("Machine: " + ", ".join(f"{key} {value}" for key, value in environment.items()), kind="note")
    return page


def _entries(experiment: Experiment, protocol: Protocol, store: Store) -> list[Entry]:
    """The entries of the protocol, and those of other variants and dimensions for which the store has results."""
    asked = {(entry.row, entry.latent_dim) for entry in experiment.entries(protocol)}
    dims = sorted({dim for _, dim in asked} | (set() if experiment.grid else _latent_dims(store)))
    every = experiment.entries(protocol, dims, list(VARIANTS)) if asked else []
    here = {(entry.row, entry.latent_dim) for entry in every if (store.folder(entry.job) / "result.json").exists()}
    return [entry for entry in every if (entry.row, entry.latent_dim) in asked | here]


def _latent_dims(store: Store) -> set[int]:
    """The latent dimensions of all jobs in a store."""
    found = set()
    for path in store.root.glob("*/job.json"):
        with suppress(InputError, OSError):
            found.add(int(read_record(path, JOB, VERSION, "a job")["settings"]["model"]["latent_dim"]))
    return found


def _lead(protocol: Protocol) -> list[str]:
    images = "all training images" if protocol.limit is None else f"at most {protocol.limit:,} training images"
    starts = (
        ""
        if protocol.initialisations == 1
        else f", with {protocol.initialisations} initialisations each, of which the best on validation data counts"
    )
    splits = "one random split" if protocol.splits == 1 else f"{protocol.splits} random splits"
    return [
        f"Models were trained for {protocol.epochs} epochs, unless stated otherwise in the row, on {images} of "
        f"{splits}{starts}. Each training keeps the epoch that is best on validation data. The test part was used for "
        "scores only.",
    ]


def _add_tables(section: Section, tables: Sequence[ResultTable], said: set[str]) -> None:
    """Add tables with their notes, except for notes that the page has already, which are `said`."""
    for table in tables:
        section.heading(table.title)
        section.table(table.page_table(captioned=False))
        for note in table.notes:
            if note not in said:
                section.text(note, kind="note")
        said.update(table.notes)


def _add_progress(section: Section, experiment: Experiment, results: Results) -> None:
    """Add a figure of the validation scores over epochs and over time for every column of the tables."""
    for data, dim in results.columns():
        if found := progress_of(results, data, dim):
            title, targets = (
                f"{column_title(experiment, data, dim)}: validation scores",
                paper_scores(experiment, data, dim),
            )
            caption = (
                "The validation score (K = 4 samples of the method's own posterior) after each epoch, over epochs and "
                "over the processor time of training."
            )
            if targets:
                caption += " Dashed: the paper's test log-likelihoods after 2000 epochs, with K = 100 samples."
            caption = " ".join([caption, *processors_note(found)])
            section.heading(title)
            alt = f"{title} of each training over epochs and over processor time"
            section.drawing(plots.svg(progress_figure(found, targets)), alt, caption)


def _add_figure(section: Section, store: Store, entries: Sequence[Entry], row: str) -> None:
    """Add the figure of a variant, or the reason why it is missing."""
    try:
        figure = uncertainty_figure(store, entries, row)
    except InputError as error:
        section.text(f"The figure is missing: {error}.", kind="note")
        return
    title = variant_named(row).title
    section.picture(
        plots.png(figure),
        f"{title}: six instances by rising uncertainty, each with its true posterior, the encoder's Gaussian, image "
        "and reconstruction",
        f"{title}, from the most certain to the most uncertain: the true posterior on a grid (blue), the encoder's "
        "Gaussian at one and two standard deviations (ellipses), the image and its reconstruction.",
    )
