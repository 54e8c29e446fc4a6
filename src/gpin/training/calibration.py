"""The calibration of a trained model's gap with its training and validation data."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from gpin._core.messages import Tell
from gpin.data import Batches
from gpin.data.io import one_line
from gpin.evaluation.gap_prediction import LEAST, LEAST_TRAINING, MOST, MOST_TRAINING, evenly_spaced
from gpin.vae import VAE

__all__ = ["calibrate_with"]

BATCH = 1024
"""The number of instances that are read at a time."""

REFINED = 500
"""The largest number of validation instances that are refined."""


def calibrate_with(vae: VAE, training: Batches, validation: Batches, seed: int, tell: Tell) -> None:
    """Calibrate `vae.gap` with training and validation data, unless there are fewer validation instances than a
    calibration needs.

    A model that cannot be calibrated, for instance because its decoder draws random numbers, is reported: nothing that
    goes wrong here may cost the user the trained model.
    """
    if validation.size < LEAST:
        return
    seen = _spread(training, MOST_TRAINING) if training.size >= LEAST_TRAINING else None
    try:
        vae.calibrate(torch.cat(list(_spread(validation, MOST))), training=seen, refined=REFINED, seed=seed)
    except Exception as error:
        tell(f"the gap of this model is not calibrated: {one_line(error)}")


def _spread(data: Batches, most: int) -> Iterator[Tensor]:
    """Batches of at most `most` instances, evenly spaced over the data in its own order."""
    chosen, start = evenly_spaced(data.size, most), 0
    if not isinstance(data.data, DataLoader):
        yield from (data.read(rows) for rows in chosen.split(BATCH))
        return
    for x, _ in data:
        inside = chosen[(chosen >= start) & (chosen < start + len(x))] - start
        yield x[inside.to(x.device)]
        start += len(x)
