"""What every inference model is: a map from x to a distribution over z that knows its own objective."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from gpin.config import Config, suggest
from gpin.errors import InputError
from gpin.networks import Trunk

__all__ = ["ELBO", "Generative", "InferenceModel", "MethodConfig", "Uncertainty"]


@dataclass(frozen=True)
class ELBO:
    """The evidence lower bound with its terms, each `(batch,)`.

    value = reconstruction − kl − weight_kl.

    Attributes:
        reconstruction: E_q[log p(x|z)].
        kl: KL(q(z|x) ‖ p(z)), or its expectation over random encoders.
        weight_kl: KL of the encoder's random weights to their prior, divided by the training set's size.
    """

    reconstruction: Tensor
    kl: Tensor
    weight_kl: Tensor

    @property
    def value(self) -> Tensor:
        """The bound, `(batch,)`."""
        return self.reconstruction - self.kl - self.weight_kl


@dataclass(frozen=True)
class Uncertainty:
    """How far the encoder trusts its own answer: the variances of its random functions, each `(batch,)`.

    Attributes:
        mean_part: Σ_j V[f_j(x)], of the posterior mean.
        std_part: Σ_j V[h_j(x)], of the posterior standard deviation.
    """

    mean_part: Tensor
    std_part: Tensor

    @property
    def total(self) -> Tensor:
        """The sum of the two, `(batch,)`: the larger, the harder the instance."""
        return self.mean_part + self.std_part


class Generative(Protocol):
    """What an inference model may ask of the model whose posterior it infers."""

    def log_conditional(self, x: Tensor, z: Tensor) -> Tensor:
        """Log p(x|z): x `(batch, *shape)`, z `(..., batch, d)` → `(..., batch)`."""

    def log_prior(self, z: Tensor) -> Tensor:
        """Log p(z): `(..., d)` → `(...)`."""

    def reconstruction(self, x: Tensor, z: Tensor) -> Tensor:
        """Log p(x|z) for an objective: in training, running statistics are updated on the way."""


class MethodConfig(Config):
    """The options of a method. `presets` are named sets of options, such as the paper's own."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @classmethod
    def parse(cls, options: Mapping[str, Any], what: str) -> Self:
        """Options checked, after those of the preset they may name."""
        options = dict(options)
        name = options.pop("preset", None)
        if name is not None:
            if name not in cls.presets:
                known = f": {suggest(str(name), list(cls.presets))}" if cls.presets else "; it has none"
                raise InputError(f"{what} has no preset {name!r}{known}")
            options = {**cls.presets[name], **options}
        return super().parse(options, what)


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

    def kl(self, q: Distribution, z: Tensor, model: Generative) -> Tensor:
        """KL(q ‖ p(z)), `(batch,)`; by default from the samples z `(samples, batch, d)` of q."""
        return (q.log_prob(z) - model.log_prior(z)).mean(0)

    def elbo(self, x: Tensor, model: Generative, samples: int = 1) -> ELBO:
        """The bound with its terms, from `samples` reparametrised draws of z a point."""
        q = self(x, model)
        z = q.rsample((samples,))
        reconstruction = model.reconstruction(x, z).mean(0)
        kl = self.kl(q, z, model)
        return ELBO(reconstruction, kl, torch.zeros_like(kl))

    def prepare(self, x: Tensor, training_size: int, model: Generative) -> None:
        """Told before training: one batch of x, and how many training points there are."""

    def start_from(self, other: "InferenceModel[Any]") -> None:
        """Take over what another trained encoder has learnt."""
        raise InputError(f"method {self.name!r} cannot start from a trained {other.name!r}")

    def uncertainty(self, x: Tensor) -> Uncertainty:
        """How uncertain the encoder is of its answer for x."""
        raise InputError(f"method {self.name!r} has no uncertainty; method 'gp' has")
