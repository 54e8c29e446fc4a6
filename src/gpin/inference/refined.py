"""An inference model that is an encoder followed by a refinement."""

from abc import abstractmethod

from torch import Tensor
from torch.distributions import Distribution

from gpin.generative import Generative
from gpin.inference.base import InferenceModel, OptionsT
from gpin.refinement import Refinement

__all__ = ["RefinedEncoder"]


class RefinedEncoder(InferenceModel[OptionsT]):
    """q(z|x) is the posterior of an encoder, improved by a refinement for each instance; trained through both.

    Subclasses set `refinement` and define :meth:`encode`; any encoder goes with any refinement.

    Attributes:
        refinement: What improves the encoder's posterior.
    """

    refinement: Refinement[Distribution]

    @abstractmethod
    def encode(self, x: Tensor, model: Generative) -> Distribution:
        """The encoder's own posterior, before it is refined."""

    def forward(self, x: Tensor, model: Generative) -> Distribution:
        return self.refinement(x, self.encode(x, model), model)
