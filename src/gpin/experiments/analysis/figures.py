"""The figure of the paper: true posteriors in two latent dimensions with the encoder's, by rising uncertainty."""

from collections.abc import Sequence

import pyarrow.parquet as parquet

from gpin._core.errors import InputError
from gpin.experiments.execution.store import Store
from gpin.experiments.protocols import Entry
from gpin.report import plots

__all__ = ["uncertainty_figure"]


def uncertainty_figure(store: Store, entries: Sequence[Entry], row: str = "gp") -> plots.Figure:
    """Six instances by rising uncertainty, with posteriors, images and reconstructions.

    Arguments:
        store: The store.
        entries: The entries of the experiment.
        row: The variant whose first finished run is shown.
    """
    entry = next((e for e in entries if e.row == row and store.result(e.job) is not None), None)
    if entry is None:
        raise InputError(f"{store.root} has no results of {row} with two latent dimensions yet")
    if "uncertainty" not in parquet.read_schema(store.scores(entry.job)).names:
        raise InputError(
            f"the figure orders instances by uncertainty, and the encoder of {row} has none: choose another `row`"
        )
    found = store.planes(entry.job)
    if found is None:
        raise InputError(
            f"{store.folder(entry.job)} lacks the true posteriors of {entry}: it was scored by an older version; move "
            "the folder away and run the experiment again"
        )
    uncertainty = found["uncertainty"]
    digits = ".1e" if uncertainty.min() < 1e-3 else "#.2g"  # the same format for all
    names = ("x", "y", "density", "mean", "std", "images")
    return plots.posterior_panels(
        [
            plots.Panel(f"uncertainty {value:{digits}}", **{name: found[name][i] for name in names})
            for i, value in enumerate(uncertainty)
        ]
    )
