"""Instances with their true posteriors in a latent plane, as arrays that a store keeps for the figure of the paper."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gpin.data import Rows
from gpin.evaluation.grid import posteriors
from gpin.report.numbers import even_ranks
from gpin.vae import VAE

__all__ = ["plane_arrays"]

SHOWN = 6
"""The number of instances."""

PIXELS = 80
"""The width and height of the image of a posterior."""

DEPTH = 6.0
"""The image shows where the posterior is at most this many nats below its maximum, and the encoder's Gaussian."""


@torch.no_grad()
def plane_arrays(vae: VAE, rows: Rows, scores: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Six instances from the most certain to the most uncertain, with their true posteriors on a grid.

    Arguments:
        vae: A model with two latent dimensions, whose encoder has an uncertainty.
        rows: The instances that were scored.
        scores: Their scores, see `gpin.experiments.execution.jobs.score_instances`.

    Returns:
        `uncertainty` `(n,)`; the coordinates `x` and `y` of the pixels, each `(n, pixels)`; the `density` of the
        true posterior `(n, pixels, pixels)`, of which the rows belong to y; `mean` and `std` of the encoder's Gaussian,
        each `(n, 2)`; and `images`, the instances and their reconstructions, `(n, 2, channels, height, width)`.
    """
    uncertainty = np.asarray(scores["uncertainty"])
    chosen = even_ranks(uncertainty, SHOWN)
    place = {int(number): i for i, number in enumerate(rows.rows)}
    x = vae.check(rows.__getitems__([place[int(scores["instance"][i])] for i in chosen]))
    q, rebuilt = vae.encode(x), vae.reconstruct(x)
    means, deviations = q.mean.cpu().double(), q.stddev.cpu().double()
    axes, densities = [], []
    for one, mean, std, posterior in zip(x.split(1), means, deviations, posteriors(vae, x), strict=True):
        core = posterior.points[posterior.log_joint > posterior.log_joint.max() - DEPTH].cpu().double()
        corners = torch.cat([core, (mean - 2.5 * std).unsqueeze(0), (mean + 2.5 * std).unsqueeze(0)])
        ticks = [
            torch.linspace(low, high, PIXELS, dtype=torch.float64)
            for low, high in zip(corners.amin(0).tolist(), corners.amax(0).tolist(), strict=True)
        ]
        z = torch.cartesian_prod(*ticks).to(x)
        log_joint = torch.cat([vae.log_joint(one, part.unsqueeze(1)) for part in z.split(512)])[:, 0]
        axes.append(ticks)
        densities.append((log_joint.cpu().double() - posterior.log_evidence).exp().reshape(PIXELS, PIXELS).T)
    found = {
        "x": torch.stack([ticks[0] for ticks in axes]),
        "y": torch.stack([ticks[1] for ticks in axes]),
        "density": torch.stack(densities),
        "mean": means,
        "std": deviations,
        "images": torch.stack([x, rebuilt], dim=1),
    }
    arrays = {name: values.cpu().numpy().astype(np.float32) for name, values in found.items()}
    return {"uncertainty": uncertainty[chosen], **arrays}
