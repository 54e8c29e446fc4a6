"""The Gaussian-process encoder, its Bayesian linear layers, and E[log h²] in closed form."""

from gpin.inference.gp.encoder import GPConfig, GPEncoder, RandomFunctions
from gpin.inference.gp.log_square import expected_log_square

__all__ = ["GPConfig", "GPEncoder", "RandomFunctions", "expected_log_square"]
