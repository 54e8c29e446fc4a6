r"""The expected values of what was not observed: E[x|x_o] = ∫ E[x|z] p(z|x_o) dz.

The integral is estimated from draws of a proposal q(z), weighted by w ∝ p(x_o, z)/q(z), where p(x_o|z) is the density
of the observed values alone. The weights are normalised to the sum one.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution

from gpin._core.errors import InputError
from gpin.evaluation.importance import importance_draws

__all__ = ["expected_values", "with_missing"]


def with_missing(x: Tensor, mask: Tensor | None) -> Tensor:
    """x with NaN where the mask is true or nonzero; the mask has the shape of x, or of one instance."""
    if mask is None:
        return x
    if tuple(mask.shape) not in (tuple(x.shape), tuple(x.shape[1:])):
        raise InputError(
            f"the mask must have the shape of x, {tuple(x.shape)}, or of one instance, got {tuple(mask.shape)}"
        )
    if mask.is_floating_point() and not ((mask == 0) | (mask == 1)).all():
        raise InputError("the mask must be true or 1 for a missing value and false or 0 for an observed one")
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return x.masked_fill(mask.to(device=x.device, dtype=torch.bool), torch.nan)


def expected_values(
    decode: Callable[[Tensor], Tensor],
    log_joint: Callable[[Tensor], Tensor],
    q: Distribution,
    samples: int,
    chunk: int,
) -> Tensor:
    """E[x|x_o] of a batch of instances, `(batch, *shape)`.

    Arguments:
        decode: z `(samples, batch, d)` → E[x|z].
        log_joint: z `(samples, batch, d)` → log p(x_o, z), `(samples, batch)`.
        q: The proposal, with batch shape `(batch,)`.
        samples: The number of draws.
        chunk: How many of them are decoded at a time.
    """
    z, log_weights = importance_draws(log_joint, q, samples, chunk)
    total: Tensor | None = None
    for part, weights in zip(z.split(chunk), log_weights.softmax(0).split(chunk), strict=True):
        values = decode(part)
        weights = weights.to(values.dtype).reshape(*weights.shape, *[1] * (values.dim() - weights.dim()))
        share = (weights * values).sum(0)
        total = share if total is None else total + share
    assert total is not None
    return total
