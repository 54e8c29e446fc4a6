"""The validation score, by which the best epoch is chosen, and the warning when training and validation diverge."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gpin._core.seeding import seeded
from gpin.data import Batches
from gpin.evaluation.importance import importance_weighted
from gpin.training.history import Epoch
from gpin.training.processes import Processes
from gpin.vae import VAE

__all__ = ["SAMPLES", "scores", "training_bound", "validate", "warning_of_overfitting"]

SAMPLES = 4
"""K, the number of samples of q(z|x) per validation instance. More samples make the score depend less on how tight the
encoder is, and cost more: four cost about as much as another twentieth of an epoch of training."""

PATIENCE = 5
"""After this many epochs below the best one, a training ELBO that still rises counts as overfitting."""

NOTABLE = 0.5
"""A smaller fall of the validation score, or rise of the training ELBO, in nats, is not worth a warning."""


@torch.no_grad()
def scores(vae: VAE, x: Tensor) -> Tensor:
    """The validation score of each instance, and the ELBO of q(z|x) from the same samples, `(2, batch)`.

    The score is log (1/K) Σ_k p(x, z_k) / q(z_k|x), z_k ~ q(z|x), the importance-weighted bound on log p(x) with K = 4.
    It is defined in the same way for every method, by q(z|x) and the model alone: neither the KL of random weights nor
    a method's own estimator of the bound enters. It depends less on the encoder than the ELBO does, and with K = 100 it
    is the log-likelihood that `gpin evaluate` reports.
    """
    x = vae.check(x)
    q, chunk = vae.inference(x, vae), max(1, 512 // len(x))
    if not torch.isfinite(q.mean).all():  # torch refuses to sample from such a distribution
        return x.new_full((2, len(x)), torch.nan, dtype=torch.float64)
    estimate = importance_weighted(partial(vae.log_joint, x), q, SAMPLES, chunk)
    return torch.stack([estimate.values, estimate.elbo])


def validate(vae: VAE, batches: Batches, seed: int, processes: Processes) -> tuple[float, float]:
    """The means of both `scores` over all instances, with the same noise in every call."""
    score, elbo = _means(partial(scores, vae), vae, batches, seed, processes)
    return score, elbo


def training_bound(vae: VAE, batches: Batches, seed: int, processes: Processes) -> float:
    """The mean of the method's own bound, from one sample, by which versions before the score chose the best epoch."""
    (value,) = _means(lambda x: vae.elbo(x).value.double()[None], vae, batches, seed, processes)
    return value


@torch.no_grad()
def _means(
    values: Callable[[Tensor], Tensor], vae: VAE, batches: Batches, seed: int, processes: Processes
) -> list[float]:
    """The means over all instances of `values`, which maps x to `(numbers, batch)`, with the same noise every time."""
    vae.eval()
    total = torch.zeros((), dtype=torch.float64, device=processes.device)
    count = 0
    with seeded(seed):
        for x, _, size in batches.shares(processes.share):
            with processes.part(size):
                sums = values(x).sum(1)
            start, end = processes.share.bounds(size)
            total = total + (sums if end > start else torch.zeros_like(sums))
            count += size
    return (processes.sum(total) / count).tolist()


def warning_of_overfitting(epochs: list[Epoch], patient: bool = False) -> str | None:
    """A sentence after the first epoch at which training and validation diverge; None after all others.

    They part when the validation score has been below its best for `PATIENCE` epochs, and a third as many as it took to
    reach it, notably in the last, while the training ELBO has notably risen, and lies above the validation ELBO by more
    than in the best epoch. Only the present stage of training counts. Patience is recommended unless training has it.
    """
    if not epochs:
        return None
    first = next(number for number, epoch in enumerate(epochs) if epoch.stage == epochs[-1].stage)
    best = first
    for now in range(first, len(epochs)):
        then, epoch = epochs[best], epochs[now]
        if _score(epoch) >= _score(then):
            best = now
        elif (
            now - best >= max(PATIENCE, (best - first) // 3)  # late in training, a better epoch takes longer to come
            and _score(then) - _score(epoch) > NOTABLE
            and epoch.train - then.train > NOTABLE
            and epoch.train - epoch.validation > max(0.0, then.train - then.validation)
        ):
            if now < len(epochs) - 1:
                return None  # it was said then
            return (
                f"training and validation diverge: from epoch {best + 1} to {now + 1} the training ELBO rose from "
                f"{_nats(then.train)} to {_nats(epoch.train)} nats, but the validation score fell from "
                f"{_nats(_score(then))} to {_nats(_score(epoch))} nats; the best weights, of epoch {best + 1}, are "
                f"kept; {REMEDY}" + ("" if patient else f"; `patience={2 * PATIENCE}` would end training early")
            )
    return None


REMEDY = "try `weight_decay=0.01`, `ema=0.999`, for images `augmentation=shift`, or `gpin.improve` afterwards"


def _nats(value: float) -> str:
    return f"{value:,.1f}".replace("-", "−")


def _score(epoch: Epoch) -> float:
    return epoch.validation if epoch.score is None else epoch.score
