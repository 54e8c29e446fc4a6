"""What every inference model is: a map from x to a distribution over z that knows its own objective."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from gpin._core.config import MethodConfig
from gpin._core.errors import InputError
from gpin.distributions import rsample_and_log_prob
from gpin.generative import Generative
from gpin.networks import Trunk

if TYPE_CHECKING:
    from gpin.inference.gaussian import GaussianEncoder

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

    Every method gets the generative model along with x; simple ones do not look at it. What other parts of gpin must
    know about a method, they read from the attributes below.
    """

    name: ClassVar[str]
    """What a user types: `gpin.build(shape, method=name)`. It is the method's key in `gpin.inference.METHODS`."""
    label: ClassVar[str]
    """What tables and figures call the method, such as "GPVAE"; a table adds what its row sets, as in "SA (4)"."""
    title: ClassVar[str]
    """One line for listings: the label and what the method does."""
    reference: ClassVar[str]
    """The publication that describes the method."""
    Options: ClassVar[type[MethodConfig]]
    """The method's own options, which `gpin.build` takes as keywords."""

    closed_form_kl: ClassVar[bool] = False
    """Whether the KL term of the bound is a formula in the parameters of q, which :meth:`kl` computes, and not an
    estimate from the samples of z."""
    export_refusal: ClassVar[str | None] = None
    """Why the path from x to the moments of q(z|x) cannot be exported as a fixed graph, as a clause that continues
    "method … cannot be exported:"; None where it can."""
    has_uncertainty: bool = False
    """Whether :meth:`uncertainty` has an answer. Of a class it says what the default options give, of an instance what
    its own do."""

    options: OptionsT

    def __init__(self, make_trunk: Callable[[], Trunk], latent_dim: int, options: OptionsT | None = None) -> None:
        super().__init__()
        self.latent_dim = latent_dim
        self.options = self.Options() if options is None else options  # type: ignore[assignment]

    @abstractmethod
    def forward(self, x: Tensor, model: Generative) -> Distribution:
        """q(z|x) with batch shape `(batch,)` and event shape `(d,)`."""

    def kl(self, q: Distribution) -> Tensor:
        """KL(q ‖ N(0, I)), `(batch,)`, where it has a closed form: what q says, unless a method overrides this."""
        return cast(Tensor, cast(Any, q).standard_normal_kl())

    def elbo(self, x: Tensor, model: Generative, samples: int = 1) -> ELBO:
        """The bound with its terms, from `samples` reparametrised draws of z for each instance."""
        q = self(x, model)
        if self.closed_form_kl:
            z, kl = q.rsample((samples,)), self.kl(q)
        else:
            z, log_prob = rsample_and_log_prob(q, (samples,))
            kl = (log_prob - model.log_prior(z)).mean(0)
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
        """Take over what another trained inference model has learnt, such as its `gaussian_encoder`."""
        raise InputError(f"method {self.name!r} cannot start from a trained {other.name!r}")

    @property
    def gaussian_encoder(self) -> "GaussianEncoder | None":
        """The plain VAE's encoder where this model is one, from which others can start; None where it is not."""
        return None

    def uncertainty(self, x: Tensor) -> Uncertainty:
        """How uncertain the encoder is of its answer for x; only where `has_uncertainty`."""
        raise InputError(f"method {self.name!r} has no uncertainty: choose a method that has one, such as 'gp'")

    def posterior_and_uncertainty(self, x: Tensor, model: Generative) -> tuple[Distribution, Uncertainty | None]:
        """q(z|x), and the uncertainty where the method has one; a method may compute both in one pass."""
        return self(x, model), self.uncertainty(x) if self.has_uncertainty else None
