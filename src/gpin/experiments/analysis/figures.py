"""The figure of the paper: true posteriors in two latent dimensions with the encoder's, by rising uncertainty."""

from collections.abc import Sequence

import numpy as np
import pyarrow.parquet as parquet

from gpin._core.errors import InputError
from gpin.building import load
from gpin.experiments.execution.planes import plane_arrays
from gpin.experiments.execution.store import Store
from gpin.experiments.protocols import Entry
from gpin.report import plots
from gpin.runs import open_run

__all__ = ["uncertainty_figure"]


def uncertainty_figure(store: Store, entries: Sequence[Entry], row: str = "gp") -> plots.Figure:
    """Six instances by rising uncertainty, with posteriors, images and reconstructions.

    Arguments:
        store: The store, which has the posteriors of the run or, from an older version, at least its model.
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
    found = store.planes(entry.job) or _from_model(store, entry)
    uncertainty = found["uncertainty"]
    digits = ".1e" if uncertainty.min() < 1e-3 else "#.2g"  # the same format for all
    names = ("x", "y", "density", "mean", "std", "images")
    return plots.posterior_panels(
        [
            plots.Panel(f"uncertainty {value:{digits}}", **{name: found[name][i] for name in names})
            for i, value in enumerate(uncertainty)
        ]
    )


def _from_model(store: Store, entry: Entry) -> dict[str, np.ndarray]:
    """The arrays of the figure, computed with the trained model."""
    folder = next(iter((store.folder(entry.job) / "run").glob("*/model")), None)
    if folder is None:
        raise InputError(
            f"the figure needs the true posteriors of {entry}, and {store.folder(entry.job)} has neither them nor the "
            "model: move the folder away and run the experiment again"
        )
    scores = parquet.read_table(store.scores(entry.job)).to_pydict()
    return plane_arrays(load(folder), open_run(folder.parent).data().test, scores)
