"""What every inference model is: a map from x to a distribution over z that knows its own objective."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from gpin._core.config import MethodConfig
from gpin._core.errors import InputError
from gpin.distributions import rsample_and_log_prob
from gpin.generative import Generative
from gpin.networks import Trunk

__all__ = ["ELBO", "InferenceModel", "MethodConfig", "Stage", "Uncertainty"]


@dataclass(frozen=True)
class ELBO:
    """The evidence lower bound with its terms, each `(batch,)`.

    value = reconstruction − kl − weight_kl.

    Attributes:
        reconstruction: E_q[log p(x|z)].
        kl: KL(q(z|x) ‖ p(z)), or its expectation over random encoders.
        weight_kl: KL of the encoder's random weights to their prior, divided by the training set's size.
    """

    reconstruction: Float[Tensor, " batch"]
    kl: Float[Tensor, " batch"]
    weight_kl: Float[Tensor, " batch"]

    @property
    def value(self) -> Float[Tensor, " batch"]:
        """The bound, `(batch,)`."""
        return self.reconstruction - self.kl - self.weight_kl


@dataclass(frozen=True)
class Uncertainty:
    """How far the encoder trusts its own answer: the variances of its random functions, each `(batch,)`.

    Attributes:
        mean_part: Σ_j V[f_j(x)], of the posterior mean.
        std_part: Σ_j V[h_j(x)], of the posterior standard deviation.
    """

    mean_part: Float[Tensor, " batch"]
    std_part: Float[Tensor, " batch"]

    @property
    def total(self) -> Tensor:
        """The sum of the two, `(batch,)`: the larger, the harder the instance."""
        return self.mean_part + self.std_part


@dataclass(frozen=True)
class Stage:
    """A part of training: its name, and its share of the epochs relative to the other stages."""

    name: str
    share: float = 1.0


OptionsT = TypeVar("OptionsT", bound=MethodConfig)


class InferenceModel(nn.Module, ABC, Generic[OptionsT]):
    """Maps a batch x to q(z|x), and knows its own training objective.

    Arguments:
        make_trunk: Makes a fresh network x → features.
        latent_dim: d.
        options: The method's config.

    Every method gets the generative model along with x; simple ones do not look at it.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    reference: ClassVar[str]
    Options: ClassVar[type[MethodConfig]]
    options: OptionsT

    def __init__(self, make_trunk: Callable[[], Trunk], latent_dim: int, options: OptionsT | None = None) -> None:
        super().__init__()
        self.latent_dim = latent_dim
        self.options = self.Options() if options is None else options  # type: ignore[assignment]

    @abstractmethod
    def forward(self, x: Tensor, model: Generative) -> Distribution:
        """q(z|x) with batch shape `(batch,)` and event shape `(d,)`."""

    def kl(self, q: Distribution) -> Tensor | None:
        """KL(q ‖ N(0, I)) in closed form, `(batch,)`, or None where there is none and samples must do."""
        return None

    def elbo(self, x: Tensor, model: Generative, samples: int = 1) -> ELBO:
        """The bound with its terms, from `samples` reparametrised draws of z a point."""
        q = self(x, model)
        kl = self.kl(q)
        if kl is None:
            z, log_prob = rsample_and_log_prob(q, (samples,))
            kl = (log_prob - model.log_prior(z)).mean(0)
        else:
            z = q.rsample((samples,))
        return ELBO(model.reconstruction(x, z).mean(0), kl, torch.zeros_like(kl))

    def objective(self, x: Tensor, model: Generative, samples: int = 1) -> tuple[Tensor, Tensor]:
        """What training minimises, and the mean ELBO over the batch, two scalars; by default one is minus the other."""
        bound = self.elbo(x, model, samples).value.mean()
        return -bound, bound.detach()

    def stages(self) -> Sequence[Stage]:
        """The stages of training, in order; most methods have one."""
        return [Stage("all")]

    def begin_stage(self, index: int) -> None:
        """Told when a stage of training begins."""

    def prepare(self, x: Tensor, training_size: int, model: Generative) -> None:
        """Told before training: one batch of x, and how many training points there are."""

    def start_from(self, other: "InferenceModel[Any]") -> None:
        """Take over what another trained encoder has learnt."""
        raise InputError(f"method {self.name!r} cannot start from a trained {other.name!r}")

    def uncertainty(self, x: Tensor) -> Uncertainty:
        """How uncertain the encoder is of its answer for x."""
        raise InputError(f"method {self.name!r} has no uncertainty; method 'gp' has")
