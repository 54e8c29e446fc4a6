"""An inference model that is an encoder followed by a refinement."""

from abc import abstractmethod

from torch import Tensor
from torch.distributions import Distribution

from gpin.generative import Generative
from gpin.inference.base import InferenceModel, OptionsT, moments_of
from gpin.refinement import Refinement

__all__ = ["RefinedEncoder"]


class RefinedEncoder(InferenceModel[OptionsT]):
    """The posterior of an encoder, improved by a refinement for each instance; training differentiates through both.

    Subclasses set `refinement` and define :meth:`encode`. Any encoder can be combined with any refinement.

    Attributes:
        refinement: The refinement of the encoder's posterior.
    """

    refinement: Refinement[Distribution]

    @abstractmethod
    def encode(self, x: Tensor, model: Generative) -> Distribution:
        """The encoder's posterior before refinement."""

    def features(self, x: Tensor, model: Generative) -> Tensor:
        """The mean and the log standard deviations of the posterior before refinement."""
        return moments_of(self.encode(x, model))

    def forward(self, x: Tensor, model: Generative) -> Distribution:
        return self.refinement(x, self.encode(x, model), model)
