"""Per-instance refinement of any posterior by gradient ascent on the ELBO, natural-gradient steps or Gauss–Newton."""

from gpin.refinement.base import Refinement
from gpin.refinement.gauss_newton import GaussNewton, GaussNewtonConfig, Laplace, LaplaceConfig
from gpin.refinement.gradient import Gradient, GradientConfig
from gpin.refinement.natural import Ascent, Natural, NaturalConfig

__all__ = [
    "Ascent",
    "GaussNewton",
    "GaussNewtonConfig",
    "Gradient",
    "GradientConfig",
    "Laplace",
    "LaplaceConfig",
    "Natural",
    "NaturalConfig",
    "Refinement",
]
