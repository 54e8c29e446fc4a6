"""What every refinement is: a map from x, a posterior and the generative model to a better posterior."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from gpin.generative import Generative

__all__ = ["Refinement"]

PosteriorT = TypeVar("PosteriorT", bound=Distribution, covariant=True)


class Refinement(ABC, Generic[PosteriorT]):
    """Improves a posterior over z for each instance, by what the generative model says about it.

    A refinement is called with

    - x, `(batch, *shape)`;
    - q, any distribution with batch shape `(batch,)` and event shape `(d,)`. What a refinement reads of it is its own
      choice: the mean, the standard deviations, or a covariance or precision where q has one;
    - the generative model, which scores pairs (x, z) and offers its decoder and likelihood,

    and returns a distribution of the same batch and event shape. Instances do not influence each other. Refining works
    under `torch.no_grad` and `torch.inference_mode`; where gradients are enabled, a refinement that is part of an
    inference model must be differentiable with respect to q's parameters and those of the model, so that training sees
    through it. All noise is drawn with the shape `(..., batch, d)`.

    A new refinement is a file of its own in `gpin.refinement` with one subclass, which keeps its options and defines
    :meth:`refine`.

    Example:
        >>> import gpin
        >>> from gpin.refinement import GaussNewton, GaussNewtonConfig
        >>> vae, x = gpin.build((6,), "vae", latent_dim=2).eval(), torch.rand(3, 6)
        >>> GaussNewton(GaussNewtonConfig(steps=4))(x, vae.encode(x), vae).covariance_matrix.shape
        torch.Size([3, 2, 2])
    """

    @abstractmethod
    def refine(self, x: Tensor, q: Distribution, model: Generative) -> PosteriorT:
        """The better posterior; called by `refinement(x, q, model)`, outside of inference mode."""

    def __call__(self, x: Tensor, q: Distribution, model: Generative) -> PosteriorT:
        """The better posterior, with the batch and event shape of q."""
        if torch.is_inference_mode_enabled():  # in which nothing can be differentiated
            with torch.inference_mode(False), torch.no_grad():
                return self.refine(x.clone(), q, model)
        return self.refine(x, q, model)
