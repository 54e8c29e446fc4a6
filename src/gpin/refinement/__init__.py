"""Per-instance refinement of any posterior by gradient ascent on the ELBO or by Gauss–Newton."""

from gpin.refinement.base import Refinement
from gpin.refinement.gauss_newton import GaussNewton, GaussNewtonConfig, Laplace, LaplaceConfig
from gpin.refinement.gradient import Gradient, GradientConfig

__all__ = [
    "GaussNewton",
    "GaussNewtonConfig",
    "Gradient",
    "GradientConfig",
    "Laplace",
    "LaplaceConfig",
    "Refinement",
]
