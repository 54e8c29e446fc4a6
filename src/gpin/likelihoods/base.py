"""The base class of likelihoods, p(x|z) given the decoder's output for z."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from pydantic import ConfigDict
from torch import Tensor, nn

from gpin._core.config import KindConfig
from gpin._core.errors import InputError

__all__ = ["Likelihood", "LikelihoodConfig"]


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
    weight_decays: ClassVar[bool] = False
    """Whether weight decay applies to its parameters, which would pull variances towards one."""

    def __init__(self, shape: Sequence[int], options: OptionsT | None = None) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.options = self.Options() if options is None else options  # type: ignore[assignment]

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
    def score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """The score r = ∂ log p(x|output)/∂output, and the expected curvature W = −E[∂² log p(x|output)/∂output²].

        The expectation is over x given the output, so that W is positive semidefinite. The score has the shape of
        the output, here `(batch, *output_shape)`. The curvature is either the diagonal of W, in the same shape, if W
        is diagonal, or a factor R of shape `(batch, rank, *output_shape)` such that W = RᵀR over the flattened output.
        """

    def center(self, mean: Tensor, spread: Tensor) -> Tensor | None:
        """A constant of shape `output_shape` that is added to the decoder's output, or None for no centring.

        Arguments:
            mean: The mean of the training data, with the shape of one instance.
            spread: The mean squared deviation from that mean, with the same shape.
        """
        return None

    def check(self, x: Tensor) -> None:
        """Raise InputError if a value of x lies outside the support."""
        if self.support == (-math.inf, math.inf):
            return
        low, high = x.min().item(), x.max().item()
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
