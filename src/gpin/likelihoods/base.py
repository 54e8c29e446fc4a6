"""The base class of likelihoods, p(x|z) given the decoder's output for z."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

import torch
from pydantic import ConfigDict
from torch import Tensor, nn

from gpin._core.config import KindConfig
from gpin._core.errors import InputError

__all__ = ["Curvature", "Factorised", "Likelihood", "LikelihoodConfig"]

Curvature = Tensor | Callable[[Tensor], Tensor]
"""The expected curvature W of a likelihood, see :meth:`Likelihood.score_and_precision`."""


class LikelihoodConfig(KindConfig):
    """The options of a likelihood; `kind` is its name in `gpin.likelihoods.LIKELIHOODS`."""

    model_config = ConfigDict(strict=True)  # "2" is not 2, and True is not 1


OptionsT = TypeVar("OptionsT", bound=LikelihoodConfig)


class Likelihood(nn.Module, ABC, Generic[OptionsT]):
    """p(x|z) given the decoder's output for z.

    x is `(batch, *shape)`. The output is `(..., batch, *shape)` if each value of x needs one output of the decoder, and
    `(..., batch, outputs, *shape)` if it needs several. Log densities are summed over the shape.

    Arguments:
        shape: The shape of one instance.
        options: The options of the likelihood.
    """

    name: ClassVar[str] = "own"
    title: ClassVar[str] = "A likelihood of your own"
    Options: ClassVar[type[LikelihoodConfig]] = LikelihoodConfig
    options: OptionsT

    outputs: int = 1
    """The number of decoder outputs for each value of x."""
    density: bool = True
    """Whether p(x|z) is a density, so that its value depends on the units of x; otherwise it is a probability."""
    support: tuple[float, float] = (-math.inf, math.inf)
    """The closed interval in which every value of x must lie."""
    missing: ClassVar[bool] = False
    """Whether NaN in x may stand for a value that was not observed."""
    weight_decays: ClassVar[bool] = False
    """Whether weight decay applies to its parameters, which would pull variances towards one."""

    def __init__(self, shape: Sequence[int], options: OptionsT | None = None) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.options = self.Options() if options is None else options  # type: ignore[assignment]

    @property
    def counts(self) -> Tensor | None:
        """Which values of an instance are counts, `shape`, of which encoders take the logarithm; None if none is."""
        return None

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the decoder's output for one instance."""
        return self.shape if self.outputs == 1 else (self.outputs, *self.shape)

    @abstractmethod
    def log_prob(self, x: Tensor, output: Tensor) -> Tensor:
        """log p(x|z), `(..., batch)`."""

    def log_prob_each(self, x: Tensor, output: Tensor) -> Tensor | None:
        """log p(x_i|z) of each value, `(..., batch, *shape)`, which :meth:`log_prob` sums; None if it is not known.

        A likelihood of independent values overrides this. Without it, an unusual instance cannot be traced to the
        values that make it unusual.
        """
        return None

    @abstractmethod
    def mean(self, output: Tensor) -> Tensor:
        """E[x|z], `(..., batch, *shape)`."""

    @abstractmethod
    def sample(self, output: Tensor) -> Tensor:
        """A sample of x given z, `(..., batch, *shape)`."""

    @abstractmethod
    def score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Curvature]:
        """The score r = ∂ log p(x|output)/∂output, and the expected curvature W = −E[∂² log p(x|output)/∂output²].

        The expectation is over x given the output, so that W is positive semidefinite. The score has the shape of
        the output, here `(batch, *output_shape)`. The curvature is the diagonal of W, in the same shape, if W is
        diagonal; or a factor R of shape `(batch, rank, *output_shape)` such that W = RᵀR over the flattened output of
        size D; or, where R would be too large, a function that maps A `(batch, d, D)` to ARᵀ `(batch, d, rank)`.
        """

    def center(self, mean: Tensor, spread: Tensor) -> Tensor | None:
        """A constant of shape `output_shape` that is added to the decoder's output, or None for no centring.

        Arguments:
            mean: The mean of the training data, with the shape of one instance.
            spread: The mean squared deviation from that mean, with the same shape.
        """
        return None

    def variables(self, x: Tensor) -> Tensor:
        """The number of variables that are observed in each instance, at least one, `(batch,)` in float64."""
        return (~x.isnan()).flatten(1).sum(1).clamp(min=1).double()

    def check(self, x: Tensor) -> None:
        """Raise InputError if a value of x lies outside the support."""
        if self.support == (-math.inf, math.inf):
            return
        low, high = x.min().item(), x.max().item()
        if math.isnan(low) and not x.isnan().all():
            known = x[~x.isnan()]
            low, high = known.min().item(), known.max().item()
        if low < self.support[0] or high > self.support[1]:
            interval = f"[{self.support[0]:g}, {self.support[1]:g}]"
            raise InputError(
                f"the likelihood {self.name!r} needs data in {interval}, got values from {low:.4g} to {high:.4g}"
            )

    def prepare(self, spread: Tensor) -> None:
        """Initialise from the training data.

        Arguments:
            spread: The mean squared deviation of the data from its mean, with the shape of one instance.
        """

    def observe(self, x: Tensor, output: Tensor, weights: Tensor | None = None) -> None:
        """Update running statistics with one training batch.

        Arguments:
            x: The batch, `(batch, *shape)`.
            output: The output of the decoder.
            weights: The weights of the outputs, `(..., batch)`; None weights all equally.
        """

    def _sum(self, values: Tensor) -> Tensor:
        return values.flatten(-len(self.shape)).sum(-1)


class Factorised(Likelihood[OptionsT]):
    """A likelihood under which the values of x are independent given z, and under which values may be missing.

    NaN in x stands for a value that was not observed. It contributes nothing to log p(x|z), to the score and to the
    curvature, so that p(x|z) is the likelihood of the observed values. Subclasses define `_log_prob_each` and
    `_score_and_precision` for complete x.
    """

    missing = True

    @abstractmethod
    def _log_prob_each(self, x: Tensor, output: Tensor) -> Tensor:
        """log p of each value of a complete x, `(..., batch, *shape)`."""

    @abstractmethod
    def _score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Curvature]:
        """The score and the curvature for a complete x, see :meth:`score_and_precision`."""

    def log_prob_each(self, x: Tensor, output: Tensor) -> Tensor:
        """log p(x_i|z) of each value, `(..., batch, *shape)`; zero for values that were not observed."""
        observed = ~x.isnan()
        # Zero takes the place of a missing value, because a NaN would spoil the gradient even where it is not used.
        return self._log_prob_each(x.where(observed, 0.0), output).where(observed, 0.0)

    def log_prob(self, x: Tensor, output: Tensor) -> Tensor:
        return self._sum(self.log_prob_each(x, output))

    def score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Curvature]:
        observed = ~x.isnan()
        score, curvature = self._score_and_precision(x.where(observed, 0.0), output)
        known = observed if self.outputs == 1 else observed.unsqueeze(-len(self.shape) - 1)
        return score.where(known, 0.0), masked_curvature(curvature, known.expand_as(output))


def masked_curvature(curvature: Curvature, known: Tensor) -> Curvature:
    """The curvature without the outputs of values that were not observed, see :meth:`Likelihood.score_and_precision`.

    Arguments:
        curvature: The curvature for complete x.
        known: Which outputs belong to observed values, `(batch, *output_shape)`.
    """
    if not isinstance(curvature, Tensor):
        return lambda slopes: curvature(slopes.where(known.flatten(1).unsqueeze(1), 0.0))
    if curvature.shape == known.shape:  # the square root of a curvature has no gradient at zero
        return curvature.where(known, torch.finfo(curvature.dtype).tiny)
    return curvature.where(known.unsqueeze(1), 0.0)
