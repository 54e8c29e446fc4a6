"""The calibration of a trained model's gap with its training and validation data."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

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


def calibrate_with(
    vae: VAE, training: Batches, validation: Batches, seed: int, tell: Tell, steps: Sequence[int | None] = (None,)
) -> None:
    """Calibrate `vae.gap` with training and validation data, unless there are fewer validation instances than a
    calibration needs.

    A model that cannot be calibrated, for instance because its decoder draws random numbers, is reported: nothing that
    goes wrong here may cost the user the trained model.

    Arguments:
        vae: The trained model.
        training: The training data, from which the predicted gap learns too if there is enough of it.
        validation: The validation data.
        seed: The seed of all noise.
        tell: Called with the reason if the model cannot be calibrated.
        steps: The numbers of natural-gradient steps for which it is calibrated, see :meth:`VAE.calibrate`.
    """
    if validation.size < LEAST:
        return
    try:
        x = torch.cat(list(_spread(validation, MOST)))
        for number in steps:
            seen = _spread(training, MOST_TRAINING) if training.size >= LEAST_TRAINING else None
            vae.calibrate(x, training=seen, steps=number, refined=REFINED, seed=seed)
    except Exception as error:
        tell(f"the gap of this model is not calibrated: {one_line(error)}")


def _spread(data: Batches, most: int) -> Iterator[Tensor]:
    """Batches of at most `most` instances, evenly spaced over the data; the first ones of a loader that hides them."""
    if (indexed := data.indexed()) is not None:
        yield from (indexed.read(rows) for rows in evenly_spaced(indexed.size, most).split(BATCH))
        return
    for x, _ in data:
        yield x[:most]
        most -= len(x)
        if most <= 0:
            return
