"""The categorical likelihood: variables with several levels, each as one value of x per level."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from gpin._core.errors import InputError
from gpin.likelihoods.base import Curvature, Factorised, LikelihoodConfig

__all__ = ["Categorical", "CategoricalOptions"]

LEAST = 1e-3
"""The least share of a level from which the decoder starts."""


class CategoricalOptions(LikelihoodConfig):
    """The options of the categorical likelihood.

    Arguments:
        levels: The number of levels of each variable, such as [3, 2] for instances of five values; by default all
            values of an instance are the levels of one variable.
    """

    kind: Literal["categorical"] = "categorical"
    levels: tuple[int, ...] = Field(default=(), strict=False)


class Categorical(Factorised[CategoricalOptions]):
    """Independent categorical variables, one-hot encoded in x, with the decoder's output as logits.

    The values of a variable with K levels are K consecutive values of x, all zero but for a one at its level. Its
    probabilities are the softmax of the K outputs. A variable that was not observed is NaN at all its levels.
    """

    name = "categorical"
    title = "Categorical: variables with several levels, one-hot encoded"
    Options = CategoricalOptions

    density = False
    support = (0.0, 1.0)

    variable: Tensor
    """The number of the variable to which each value belongs, `(values,)`."""

    def __init__(self, shape: Sequence[int], options: CategoricalOptions | None = None) -> None:
        super().__init__(shape, options)
        size = math.prod(self.shape)
        levels = self.options.levels or (size,)
        if sum(levels) != size or min(levels) < 1:
            raise InputError(
                f"the levels {list(levels)} must be positive and add up to the {size} values of an instance"
            )
        variable = torch.repeat_interleave(torch.arange(len(levels)), torch.tensor(levels))
        self.register_buffer("variable", variable, persistent=False)
        self.count = len(levels)

    def _log_probabilities(self, output: Tensor) -> Tensor:
        """log softmax over the levels of each variable, `(..., values)`."""
        logits = output.flatten(-len(self.shape))
        highest = self._highest(logits.detach())
        total = logits.new_zeros(*logits.shape[:-1], self.count)
        total = total.index_add(-1, self.variable, (logits - highest).exp())
        return logits - highest - total.log()[..., self.variable]

    def _highest(self, values: Tensor) -> Tensor:
        """The maximum over the levels of each variable, for each of them: `(..., values)` → the same."""
        found = values.new_full((*values.shape[:-1], self.count), -math.inf)
        index = self.variable.expand_as(values)
        return found.scatter_reduce(-1, index, values, "amax").gather(-1, index)

    def _log_prob_each(self, x: Tensor, output: Tensor) -> Tensor:
        return x * self._log_probabilities(output).reshape(output.shape)

    def mean(self, output: Tensor) -> Tensor:
        """The probabilities of the levels."""
        return self._log_probabilities(output).exp().reshape(output.shape)

    def sample(self, output: Tensor) -> Tensor:
        noise = -torch.empty_like(output).exponential_().log()  # Gumbel, whose largest sum is a draw
        keys = (output + noise).flatten(-len(self.shape))
        return (keys == self._highest(keys)).to(output.dtype).reshape(output.shape)

    def _score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Curvature]:
        """x − p and W = diag(p) − ppᵀ for each variable, whose factor is R = diag(√p) (I − 1pᵀ)."""
        p = self._log_probabilities(output).exp()

        def whitened(slopes: Tensor) -> Tensor:
            weights = p.unsqueeze(1)
            mean = slopes.new_zeros(*slopes.shape[:-1], self.count)
            mean = mean.index_add(-1, self.variable, slopes * weights)
            # The square root has no gradient at zero.
            roots = weights.clamp(min=torch.finfo(p.dtype).tiny).sqrt()
            return roots * (slopes - mean[..., self.variable])

        return x - p.reshape(output.shape), whitened

    def center(self, mean: Tensor, spread: Tensor) -> Tensor:
        """The logarithms of the shares of the levels in the training data."""
        return mean.clamp(min=LEAST).log()

    def variables(self, x: Tensor) -> Tensor:
        shares = 1 / torch.bincount(self.variable)[self.variable].double()
        return ((~x.isnan()).flatten(1) * shares).sum(1).clamp(min=1)

    def check(self, x: Tensor) -> None:
        """Raise InputError unless each variable has exactly one level, or is missing."""
        super().check(x)
        flat = x.flatten(1)
        missing, total, sizes = (
            torch.zeros(len(values), self.count, dtype=x.dtype, device=x.device).index_add(-1, self.variable, values)
            for values in (flat.isnan().to(x.dtype), flat.nan_to_num(0.0), torch.ones_like(flat[:1]))
        )
        bad = ((missing > 0) & (missing < sizes)) | ((missing == 0) & (total != 1))
        if bad.any():
            row, number = bad.nonzero()[0].tolist()
            raise InputError(
                f"the likelihood {self.name!r} needs a one at one level of each variable and zeros at the others, or "
                f"NaN at all of them, which is not so for variable {number} of instance {row}"
            )
