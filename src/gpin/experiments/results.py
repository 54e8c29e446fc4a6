"""All tables of an experiment, from what its store has."""

from collections.abc import Sequence

from gpin.experiments.gathering import Gathered
from gpin.experiments.protocols import Entry, Experiment, Protocol
from gpin.experiments.store import Store
from gpin.experiments.tables import ResultTable, likelihood_tables, posterior_tables
from gpin.experiments.times import read_times, time_tables

__all__ = ["result_tables"]


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
    times = read_times(store, experiment, protocol)
    return tables + (time_tables(experiment, times) if times is not None else []), gathered
