"""The figure of the paper: true posteriors in two latent dimensions with the encoder's, by rising uncertainty."""

from collections.abc import Sequence

import numpy as np
import pyarrow.parquet as parquet
import torch
from torch import Tensor

from gpin._core.errors import InputError
from gpin.building import load
from gpin.evaluation.grid import posteriors
from gpin.experiments.execution.store import Store
from gpin.experiments.protocols import Entry
from gpin.report import plots
from gpin.runs import open_run
from gpin.vae import VAE

__all__ = ["uncertainty_figure"]

SHOWN = 6
PIXELS = 80
"""The width and height of the image of a posterior."""


def uncertainty_figure(store: Store, entries: Sequence[Entry], row: str = "gp") -> plots.Figure:
    """Six instances by rising uncertainty, with posteriors, images and reconstructions.

    Arguments:
        store: The store, which must have the model of the run.
        entries: The entries of the experiment.
        row: The variant whose first finished run is shown.
    """
    entry = next((e for e in entries if e.row == row and store.result(e.job) is not None), None)
    if entry is None:
        raise InputError(f"{store.root} has no results of {row} with two latent dimensions yet")
    folder = next(iter((store.folder(entry.job) / "run").glob("*/model")), None)
    if folder is None:
        raise InputError(f"the figure needs the model of {entry}, which is no longer in {store.folder(entry.job)}")
    vae, run = load(folder), open_run(folder.parent)
    scores = parquet.read_table(store.scores(entry.job)).to_pydict()
    if "uncertainty" not in scores:
        raise InputError(
            f"the figure orders instances by uncertainty, and the encoder of {row} has none: choose another `row`"
        )
    uncertainty = np.asarray(scores["uncertainty"])
    chosen = plots.even_ranks(uncertainty, SHOWN)
    test = run.data().test
    place = {int(number): i for i, number in enumerate(test.rows)}
    x = test.__getitems__([place[scores["instance"][i]] for i in chosen])
    return plots.posterior_panels(_panels(vae, x, uncertainty[chosen]))


@torch.no_grad()
def _panels(vae: VAE, x: Tensor, uncertainty: np.ndarray) -> list[plots.Panel]:
    q, rebuilt = vae.encode(x), vae.reconstruct(x)
    panels = []
    digits = ".1e" if uncertainty.min() < 1e-3 else "#.2g"  # the same format for all
    for i, posterior in enumerate(posteriors(vae, x)):
        mean, std = q.mean[i].double(), q.stddev[i].double()
        core = posterior.points[posterior.log_joint > posterior.log_joint.max() - 6]
        corners = torch.cat([core, (mean - 2.5 * std).unsqueeze(0), (mean + 2.5 * std).unsqueeze(0)])
        low, high = corners.min(0).values, corners.max(0).values
        ticks = [torch.linspace(low[k].item(), high[k].item(), PIXELS, dtype=torch.float64) for k in range(2)]
        z = torch.cartesian_prod(*ticks).to(x)
        log_joint = torch.cat([vae.log_joint(x[i : i + 1], part.unsqueeze(1)) for part in z.split(512)])[:, 0]
        density = (log_joint.double() - posterior.log_evidence).exp().reshape(PIXELS, PIXELS).T
        panels.append(
            plots.Panel(
                f"uncertainty {uncertainty[i]:{digits}}",
                x=ticks[0].numpy(),
                y=ticks[1].numpy(),
                density=density.numpy(),
                mean=mean.numpy(),
                std=std.numpy(),
                images=torch.stack([x[i], rebuilt[i].cpu()]).numpy(),
            )
        )
    return panels
