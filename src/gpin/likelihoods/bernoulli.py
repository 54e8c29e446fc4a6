"""The Bernoulli likelihood, for binary data and intensities in [0, 1]."""

from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor
from torch.nn import functional

from gpin.likelihoods.base import Factorised, LikelihoodConfig

__all__ = ["Bernoulli", "BernoulliOptions"]

WRITTEN = {"variance": "learnt", "initial_variance": 0.0, "min_variance": 1e-4}
"""The further entries of a Bernoulli likelihood in version 1 of the files and in the identity of a run."""


class BernoulliOptions(LikelihoodConfig):
    """The Bernoulli likelihood has no options."""

    kind: Literal["bernoulli"] = "bernoulli"

    @model_validator(mode="before")
    @classmethod
    def _read(cls, options: Any) -> Any:
        if not isinstance(options, dict):
            return options
        return {name: value for name, value in options.items() if name not in WRITTEN or value != WRITTEN[name]}

    def record(self) -> dict[str, Any]:
        return {**super().record(), **WRITTEN}


class Bernoulli(Factorised[BernoulliOptions]):
    """Independent Bernoulli values of x in [0, 1], with the decoder's output as logits."""

    name = "bernoulli"
    title = "Bernoulli: binary data, or intensities in [0, 1]"
    Options = BernoulliOptions

    density = False
    support = (0.0, 1.0)

    def _log_prob_each(self, x: Tensor, output: Tensor) -> Tensor:
        return x * output - functional.softplus(output)

    def mean(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    def sample(self, output: Tensor) -> Tensor:
        return torch.bernoulli(output.sigmoid())

    def _score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """x − p and p (1 − p), where p is the sigmoid of the logits."""
        p = output.sigmoid()
        # In float32, 1 − p is zero for logits above 17, and the square root has no gradient at zero.
        precision = p * (-output).sigmoid()
        return x - p, precision.clamp(min=torch.finfo(precision.dtype).tiny)
