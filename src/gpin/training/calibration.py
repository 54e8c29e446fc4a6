"""The calibration of a trained model's gap with its validation data."""

import torch

from gpin._core.messages import Tell
from gpin.data import Batches
from gpin.data.io import one_line
from gpin.evaluation.gap_prediction import LEAST, MOST, evenly_spaced
from gpin.vae import VAE

__all__ = ["calibrate_with"]

REFINED = 500
"""The largest number of validation instances that are refined."""


def calibrate_with(vae: VAE, validation: Batches, seed: int, tell: Tell) -> None:
    """Calibrate `vae.gap` with validation data, unless there are fewer instances than a calibration needs.

    A model that cannot be calibrated, for instance because its decoder draws random numbers, is reported: nothing that
    goes wrong here may cost the user the trained model.
    """
    if validation.size < LEAST:
        return
    chosen, start, parts = evenly_spaced(validation.size, MOST), 0, []
    for x, _ in validation:
        inside = chosen[(chosen >= start) & (chosen < start + len(x))] - start
        parts.append(x[inside.to(x.device)])
        start += len(x)
    try:
        vae.calibrate(torch.cat(parts), refined=REFINED, seed=seed)
    except Exception as error:
        tell(f"the gap of this model is not calibrated: {one_line(error)}")
