"""Per-instance refinement of any posterior: gradient ascent on the ELBO, natural-gradient steps, quasi-Newton,
Gauss–Newton, and searches from several starts."""

from gpin.refinement.base import Refinement
from gpin.refinement.gauss_newton import GaussNewton, GaussNewtonConfig, Laplace, LaplaceConfig
from gpin.refinement.gradient import Gradient, GradientConfig
from gpin.refinement.modes import Modes, ModesConfig
from gpin.refinement.natural import Ascent, Natural, NaturalConfig, Steps
from gpin.refinement.quasi_newton import QuasiNewton, QuasiNewtonConfig

__all__ = [
    "Ascent",
    "GaussNewton",
    "GaussNewtonConfig",
    "Gradient",
    "GradientConfig",
    "Laplace",
    "LaplaceConfig",
    "Modes",
    "ModesConfig",
    "Natural",
    "NaturalConfig",
    "QuasiNewton",
    "QuasiNewtonConfig",
    "Refinement",
    "Steps",
]
