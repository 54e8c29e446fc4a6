"""The base class of refinements, which map x, a posterior and the generative model to a better posterior."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from gpin.generative import Generative

__all__ = ["Refinement"]

PosteriorT = TypeVar("PosteriorT", bound=Distribution, covariant=True)


class Refinement(ABC, Generic[PosteriorT]):
    """Improves a posterior over z for each instance, using the generative model.

    A refinement is called with

    - x, `(batch, *shape)`;
    - q, any distribution with batch shape `(batch,)` and event shape `(d,)`. A refinement may use its mean, its
      standard deviations, or its covariance or precision if it has one;
    - the generative model, which computes log p(x, z) and exposes its decoder and likelihood,

    and returns a distribution of the same batch and event shape. Instances do not influence each other. Refinement
    works under `torch.no_grad` and `torch.inference_mode`. If gradients are enabled, a refinement that is part of an
    inference model must be differentiable with respect to the parameters of q and of the model, so that it can be
    trained through. All noise is drawn with the shape `(..., batch, d)`.

    To add a refinement, add a file to `gpin.refinement` with one subclass that stores its options and defines
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
        """Return the refined posterior; `refinement(x, q, model)` calls this outside inference mode."""

    def __call__(self, x: Tensor, q: Distribution, model: Generative) -> PosteriorT:
        """Return the refined posterior, which has the batch and event shape of q."""
        if torch.is_inference_mode_enabled():  # where nothing can be differentiated
            with torch.inference_mode(False), torch.no_grad():
                return self.refine(x.clone(), q, model)
        return self.refine(x, q, model)
