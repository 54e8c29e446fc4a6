"""Everything that a store has, on one page."""

import json
from collections.abc import Sequence
from contextlib import suppress

from gpin._core.errors import InputError
from gpin._core.files import read_record
from gpin.experiments.analysis.figures import uncertainty_figure
from gpin.experiments.analysis.gathering import Gathered
from gpin.experiments.analysis.results import result_tables
from gpin.experiments.analysis.tables import ResultTable
from gpin.experiments.execution.store import JOB, VERSION, Store
from gpin.experiments.protocols import EXPERIMENTS, ROWS, Entry, Experiment, Protocol
from gpin.report import Page, Section, plots

__all__ = ["compose"]


def compose(store: Store, protocol: Protocol) -> Page:
    """The page of all experiments that have results under a protocol."""
    page = Page(
        f"The experiments, {protocol.name} protocol",
        lead=_lead(protocol),
        foot="Made by gpin experiment report. The page needs nothing else: it can be mailed, printed and kept.",
    )
    environments: list[dict[str, object]] = []
    for experiment in EXPERIMENTS.values():
        entries = _entries(experiment, protocol, store)
        tables, gathered = result_tables(experiment, protocol, store, entries)
        if not tables:
            continue
        section = page.section(experiment.title)
        if gathered.done < len(entries):
            section.text(f"{gathered.done} of {len(entries)} runs are done.", kind="note")
        _put(section, tables)
        if experiment.grid and gathered.done:
            for row in experiment.rows[protocol.name]:
                _draw(section, store, gathered, row)
        environments += [one for one in gathered.environments if one not in environments]
    if not page.sections:
        raise InputError(f"{store.root} has no result of the {protocol.name} protocol yet: gpin experiment run …")
    section = page.section("How it was made")
    section.text(f"Protocol: {json.dumps(protocol.model_dump(mode='json'))}", kind="note")
    for environment in environments:
        section.text("Machine: " + ", ".join(f"{key} {value}" for key, value in environment.items()), kind="note")
    return page


def _entries(experiment: Experiment, protocol: Protocol, store: Store) -> list[Entry]:
    """What the protocol asks for, and whatever else the store has of the experiment: other rows, other dimensions."""
    asked = {(entry.row, entry.latent_dim) for entry in experiment.entries(protocol)}
    dims = sorted({dim for _, dim in asked} | (set() if experiment.grid else _latent_dims(store)))
    every = experiment.entries(protocol, dims, list(ROWS)) if asked else []
    here = {(entry.row, entry.latent_dim) for entry in every if (store.folder(entry.job) / "result.json").exists()}
    return [entry for entry in every if (entry.row, entry.latent_dim) in asked | here]


def _latent_dims(store: Store) -> set[int]:
    """Of all jobs in a store."""
    found = set()
    for path in store.root.glob("*/job.json"):
        with suppress(InputError, OSError):
            found.add(int(read_record(path, JOB, VERSION, "a job")["settings"]["model"]["latent_dim"]))
    return found


def _lead(protocol: Protocol) -> list[str]:
    images = "all training images" if protocol.limit is None else f"at most {protocol.limit:,} training images"
    starts = (
        "" if protocol.initialisations == 1 else f", with {protocol.initialisations} starts each, of which the best"
    )
    chosen = " on validation data counts" if starts else ""
    return [
        f"Trained for {protocol.epochs} epochs, unless the row says otherwise, on {images} of {protocol.splits} random "
        f"splits{starts}{chosen}; of every training the epoch that is best on validation data. The test part chooses "
        "nothing.",
    ]


def _put(section: Section, tables: Sequence[ResultTable]) -> None:
    for table in tables:
        section.table(table.page_table())
        for note in table.notes:
            section.text(note, kind="note")


def _draw(section: Section, store: Store, gathered: Gathered, row: str) -> None:
    """The figure, where the model that it needs is at hand."""
    try:
        figure = uncertainty_figure(store, gathered.entries, row)
    except InputError as error:
        section.text(f"The figure is missing: {error}.", kind="note")
        return
    section.picture(
        plots.png(figure),
        f"{ROWS[row].title}: six instances by rising uncertainty, each with its true posterior, the encoder's "
        "Gaussian, image and reconstruction",
        f"{ROWS[row].title}, from the most certain to the most uncertain: the true posterior on a grid (blue), the "
        "encoder's Gaussian at one and two standard deviations (ellipses), the image and its reconstruction.",
    )
