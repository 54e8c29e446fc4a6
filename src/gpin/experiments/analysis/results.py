"""All tables of an experiment, from what its store has."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gpin.experiments.analysis.gathering import Gathered
from gpin.experiments.analysis.tables import ResultTable, likelihood_tables, posterior_tables
from gpin.experiments.analysis.times import read_times, time_tables
from gpin.experiments.execution.store import Store
from gpin.experiments.protocols import Entry, Experiment, Protocol
from gpin.report.numbers import without_nan

__all__ = ["result_record", "result_tables"]


def result_tables(
    experiment: Experiment, protocol: Protocol, store: Store, entries: Sequence[Entry]
) -> tuple[list[ResultTable], Gathered]:
    """The tables, and the runs that they are of.

    Arguments:
        experiment: What it is about.
        protocol: At which expense.
        store: Where the results are.
        entries: Those of the experiment that are wanted.
    """
    gathered = Gathered(store, entries)
    tables: list[ResultTable] = []
    if gathered.done:
        tables += posterior_tables(gathered) if experiment.grid else []
        tables += likelihood_tables(experiment, protocol, gathered)
    times = _times(experiment, protocol, gathered)
    return tables + (time_tables(experiment, times) if times is not None else []), gathered


def _times(experiment: Experiment, protocol: Protocol, gathered: Gathered) -> dict[str, Any] | None:
    """Of the rows and columns that are wanted; of all where nothing is trained."""
    found = read_times(gathered.store, experiment, protocol)
    if found is None or not experiment.trained:
        return found
    wanted, rows = gathered.columns(), {entry.row for entry in gathered.entries}
    columns = [
        {**column, "rows": {row: times for row, times in column["rows"].items() if row in rows}}
        for column in found["columns"]
        if (column["data"], column["latent_dim"]) in wanted
    ]
    return {**found, "columns": columns}


def result_record(experiment: Experiment, protocol: Protocol, gathered: Gathered) -> dict[str, Any]:
    """The numbers of the tables, ready for JSON; what is not known is None."""
    columns = []
    for data, dim in gathered.columns():
        lines = [asdict(line) for line in gathered.lines(data, dim)]
        for line in lines:
            for name in ("ess", "bad", "mc_error", "differences"):  # of both proposals
                line[name] = dict(zip(("encoder", "refined"), line[name], strict=False))
            if experiment.grid:
                line["posterior"] = asdict(gathered.posterior_line(line["row"], data, dim))
        columns.append({"data": data, "latent_dim": dim, "rows": lines})
    record = {
        "experiment": experiment.name,
        "protocol": protocol.name,
        "runs": len(gathered.entries),
        "done": gathered.done,
        "columns": columns,
        "times": _times(experiment, protocol, gathered),
    }
    known: dict[str, Any] = without_nan(record)
    return known
