"""Distributions that torch.distributions lacks."""

from gpin.distributions.base import (
    LOG_STD_RANGE,
    DiagonalNormal,
    LatentDistribution,
    LatentNormal,
    TemperedDistribution,
    gaussian_kl,
    rsample_and_log_prob,
    sample_and_log_prob,
    tempered,
)
from gpin.distributions.flows import FlowNormal
from gpin.distributions.gaussians import CholeskyNormal, LowRankNormal, PrecisionNormal, ReflectedNormal, as_normal
from gpin.distributions.mixtures import NormalMixture, PrecisionMixture
from gpin.distributions.random_moments import RandomMomentsNormal

__all__ = [
    "LOG_STD_RANGE",
    "CholeskyNormal",
    "DiagonalNormal",
    "FlowNormal",
    "LatentDistribution",
    "LatentNormal",
    "LowRankNormal",
    "NormalMixture",
    "PrecisionMixture",
    "PrecisionNormal",
    "RandomMomentsNormal",
    "ReflectedNormal",
    "TemperedDistribution",
    "as_normal",
    "gaussian_kl",
    "rsample_and_log_prob",
    "sample_and_log_prob",
    "tempered",
]
