"""The base class of inference models, which map x to a distribution over z and define their training objective."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from gpin._core.config import MethodConfig
from gpin._core.errors import InputError
from gpin.distributions import LatentNormal, rsample_and_log_prob
from gpin.generative import Generative
from gpin.networks import Trunk
from gpin.refinement import Natural, NaturalConfig

if TYPE_CHECKING:
    from gpin.inference.gaussian import GaussianEncoder

__all__ = ["ELBO", "InferenceModel", "MethodConfig", "Stage", "Uncertainty", "moments_of", "tamed_mean", "taming"]

EXTREME = 50.0
"""How many times the spread of a batch a loss must exceed its median by for the instance to count for less."""

ORDINARY = 100.0
"""The excess over the median, in nats per value of x, that is never extreme, however small the spread of the batch."""


@dataclass(frozen=True)
class ELBO:
    """The evidence lower bound and its terms, each `(batch,)`.

    value = reconstruction − kl − weight_kl.

    Attributes:
        reconstruction: E_q[log p(x|z)].
        kl: KL(q(z|x) ‖ p(z)), or its expectation over random encoders.
        weight_kl: The KL of the encoder's random weights to their prior, divided by the size of the training set.
    """

    reconstruction: Float[Tensor, " batch"]
    kl: Float[Tensor, " batch"]
    weight_kl: Float[Tensor, " batch"]

    @property
    def value(self) -> Float[Tensor, " batch"]:
        """The bound, `(batch,)`."""
        return self.weighted(1.0)

    def weighted(self, kl_weight: float) -> Float[Tensor, " batch"]:
        """reconstruction − kl_weight·kl − weight_kl, `(batch,)`: what training maximises during a KL warm-up."""
        return self.reconstruction - kl_weight * self.kl - self.weight_kl


@dataclass(frozen=True)
class Uncertainty:
    """The uncertainty of the encoder about its own output: the variances of its random functions, each `(batch,)`.

    Attributes:
        mean_part: Σ_j V[f_j(x)], the variance of the posterior mean.
        std_part: Σ_j V[h_j(x)], the variance of the posterior standard deviation.
    """

    mean_part: Float[Tensor, " batch"]
    std_part: Float[Tensor, " batch"]

    @property
    def total(self) -> Tensor:
        """The sum of both parts, `(batch,)`; larger values indicate harder instances."""
        return self.mean_part + self.std_part


@dataclass(frozen=True)
class Stage:
    """A stage of training: its name, and its share of the epochs relative to the other stages."""

    name: str
    share: float = 1.0


OptionsT = TypeVar("OptionsT", bound=MethodConfig)


class InferenceModel(nn.Module, ABC, Generic[OptionsT]):
    """Maps a batch x to q(z|x), and defines the training objective.

    Arguments:
        make_trunk: Creates a new network x → features.
        latent_dim: d.
        options: The options of the method.

    Every method receives the generative model along with x; simple methods ignore it. Other parts of gpin learn about
    a method only from the attributes below.

    A method that overrides :meth:`objective` honours its argument `kl_weight`, β, wherever its loss contains
    KL(q(z|x) ‖ p(z)): `elbo.weighted(β)` instead of `elbo.value`, and log p(x|z) + β (log p(z) − log q(z|x)) where
    densities at samples are used. The bound that it returns is that of β = 1. `gpin.fit` passes `kl_weight` during
    a KL warm-up only, and refuses the warm-up of a method whose objective does not take it.
    """

    name: ClassVar[str]
    """The name that users pass to `gpin.build(shape, method=name)`, and the key in `gpin.inference.METHODS`."""
    label: ClassVar[str]
    """The name in tables and figures, such as "GPVAE"; a table appends the options of a row, as in "SA (4)"."""
    title: ClassVar[str]
    """One line for listings: the label and what the method does."""
    reference: ClassVar[str]
    """The publication that describes the method."""
    Options: ClassVar[type[MethodConfig]]
    """The class of the method's options, which `gpin.build` accepts as keyword arguments."""

    closed_form_kl: ClassVar[bool] = False
    """Whether the KL term of the bound has a closed form, which :meth:`kl` computes; it is estimated from samples of z
    otherwise."""
    export_refusal: str | None = None
    """Why the computation of the moments of q(z|x) from x cannot be exported as a static graph, as a clause that
    continues "method … cannot be exported:"; None if it can. On the class, with the default options; on an instance,
    with its own."""
    takes_steps: ClassVar[bool] = False
    """Whether q(z|x) includes natural-gradient steps, so that :meth:`initial` is the posterior of the encoder alone."""
    has_uncertainty: bool = False
    """Whether :meth:`uncertainty` is available: on the class, with the default options; on an instance, with its
    own."""

    options: OptionsT

    def __init__(self, make_trunk: Callable[[], Trunk], latent_dim: int, options: OptionsT | None = None) -> None:
        super().__init__()
        self.latent_dim = latent_dim
        self.options = self.Options() if options is None else options  # type: ignore[assignment]

    @abstractmethod
    def forward(self, x: Tensor, model: Generative) -> Distribution:
        """q(z|x) with batch shape `(batch,)` and event shape `(d,)`."""

    @property
    def draws(self) -> int:
        """The number of draws over which its own natural-gradient steps average, see `gpin.refinement.NaturalConfig`;
        0 if they follow the gradient at the mean, or if there are none."""
        return getattr(self.options, "draws", 0)

    def initial(self, x: Tensor, model: Generative) -> Distribution:
        """The posterior from which :meth:`with_steps` begins: by default q(z|x). A method whose q(z|x) already includes
        such steps returns the posterior before them."""
        return self(x, model)

    def with_steps(
        self, x: Tensor, model: Generative, steps: int, tolerance: float | None = None, **options: Any
    ) -> LatentNormal:
        """The posterior after natural-gradient steps in the metric of its covariance; see
        :class:`gpin.refinement.Natural`.

        Arguments:
            x: `(batch, *shape)`.
            model: The generative model.
            steps: The number of steps, or the maximum if a tolerance is given.
            tolerance: The estimated remaining gap, in nats, at which an instance stops.
            options: Other options of the steps, see :class:`gpin.refinement.NaturalConfig`.
        """
        return Natural(NaturalConfig(steps=steps, **options), tolerance)(x, self.initial(x, model), model)

    def taking(self, steps: int) -> AbstractContextManager[None]:
        """A context within which training and q(z|x) take this number of natural-gradient steps instead of the method's
        own. A method with `takes_steps` defines this."""
        raise InputError(f"method {self.name!r} cannot be trained with another number of steps: leave out `steps`")

    def features(self, x: Tensor, model: Generative) -> Float[Tensor, "batch p"]:
        """What the encoder alone knows about x, from which :meth:`gpin.VAE.gap` predicts how far it is from the
        posterior: by default the mean and the log standard deviations of :meth:`initial`. A method may return features
        of its networks as well, but must not use the decoder."""
        return moments_of(self.initial(x, model))

    def kl(self, q: Distribution) -> Tensor:
        """KL(q ‖ N(0, I)), `(batch,)`, if it has a closed form; by default `q.standard_normal_kl()`."""
        return cast(Tensor, cast(Any, q).standard_normal_kl())

    def elbo(self, x: Tensor, model: Generative, samples: int = 1) -> ELBO:
        """The bound of q(z|x) and its terms, from `samples` reparametrised samples of z for each instance."""
        return self.elbo_of(self(x, model), x, model, samples)

    def elbo_of(self, q: Distribution, x: Tensor, model: Generative, samples: int = 1) -> ELBO:
        """The bound of any posterior q of this method and its terms, like :meth:`elbo`."""
        if self.closed_form_kl:
            z, kl = q.rsample((samples,)), self.kl(q)
        else:
            z, log_prob = rsample_and_log_prob(q, (samples,))
            kl = (log_prob - model.log_prior(z)).mean(0)
        return ELBO(model.reconstruction(x, z).mean(0), kl, torch.zeros_like(kl))

    def objective(
        self, x: Tensor, model: Generative, samples: int = 1, kl_weight: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The loss and the mean ELBO over the batch, two scalars; by default the loss is the negative ELBO.

        Arguments:
            x: `(batch, *shape)`.
            model: The generative model.
            samples: The number of samples of z per instance.
            kl_weight: The weight of KL(q(z|x) ‖ p(z)) in the loss, below 1 during a KL warm-up. It does not change the
                ELBO that is returned.
        """
        bound = self.elbo(x, model, samples)
        return tamed_mean(-bound.weighted(kl_weight), x), bound.value.mean().detach()

    def stages(self) -> Sequence[Stage]:
        """The stages of training, in order; most methods have one."""
        return [Stage("all")]

    def begin_stage(self, index: int) -> None:
        """Hook that is called when a stage of training begins."""

    def prepare(self, x: Tensor, training_size: int, model: Generative) -> None:
        """Hook that is called before training with one batch of x and the number of training instances."""

    def start_from(self, other: "InferenceModel[Any]") -> None:
        """Initialise this model from another trained one: by default one of the same method, whose weights are copied.

        A method that builds on the encoder of a plain VAE can also take the `gaussian_encoder` of the other model.
        """
        if type(other) is not type(self):
            raise InputError(f"method {self.name!r} cannot start from a trained {other.name!r}")
        if other.options != self.options:
            raise InputError(
                f"cannot start from a model of method {self.name!r} with other options: give both the same options"
            )
        self.copy_weights(other)

    @torch.no_grad()
    def copy_weights(self, other: "InferenceModel[Any]") -> None:
        """Copy all weights of a model with the same networks; others raise InputError."""
        if other.latent_dim != self.latent_dim:
            raise InputError(
                f"cannot start a model with latent_dim={self.latent_dim} from one with latent_dim={other.latent_dim}"
            )
        try:
            self.load_state_dict(other.state_dict())
        except RuntimeError:
            raise InputError("cannot start from a VAE with another data shape or architecture") from None

    @property
    def gaussian_encoder(self) -> "GaussianEncoder | None":
        """The model itself if it is the plain VAE's encoder, from which others can start; None otherwise."""
        return None

    def uncertainty(self, x: Tensor) -> Uncertainty:
        """The uncertainty of the encoder at x; available only if `has_uncertainty`."""
        raise InputError(f"method {self.name!r} has no uncertainty: choose a method that has one, such as 'gp'")

    def posterior_and_uncertainty(self, x: Tensor, model: Generative) -> tuple[Distribution, Uncertainty | None]:
        """q(z|x), and the uncertainty if the method has one; a method may compute both in one pass."""
        return self(x, model), self.uncertainty(x) if self.has_uncertainty else None


def moments_of(q: Distribution) -> Tensor:
    """The mean and the log standard deviations of q, side by side: `(batch, 2d)`."""
    return torch.cat([q.mean, q.stddev.log()], dim=-1)


@torch.no_grad()
def taming(sizes: Float[Tensor, " batch"], x: Float[Tensor, "batch ..."]) -> Float[Tensor, " batch"] | None:
    """Factors of at most 1, one per instance, that keep single instances from dominating a batch; None if none does.

    An instance is extreme if its size, in nats or, for a gradient, in nats per unit of z, exceeds the median of the
    batch by more than `ORDINARY` per value of x and by more than `EXTREME` times the spread, which is the distance from
    the median that three quarters of the instances do not exceed. Its factor reduces the excess to that limit. In a
    batch without such an instance, as is usual, there is nothing to reduce. With several processes, each judges its
    own part of the batch.

    Example:
        >>> x = torch.zeros(5, 2)
        >>> taming(torch.tensor([1.0, 2.0, 3.0, 4.0, 1e6]), x), taming(torch.tensor([1.0, 2.0, 3.0, 4.0, 180.0]), x)
        (tensor([1.0000e+00, 1.0000e+00, 1.0000e+00, 1.0000e+00, 2.0000e-04]), None)
    """
    excess = sizes - sizes.median()
    spread = excess.abs().kthvalue(math.ceil(0.75 * len(sizes))).values
    limit = torch.clamp(EXTREME * spread, min=ORDINARY * x[0].numel())
    extreme = excess > limit
    return torch.where(extreme, limit / excess, 1.0) if extreme.any() else None


def tamed_mean(losses: Float[Tensor, " batch"], x: Float[Tensor, "batch ..."]) -> Tensor:
    """The mean over the batch, to which instances with an extreme loss contribute by the factors of :func:`taming`."""
    factors = taming(losses.detach(), x)
    return losses.mean() if factors is None else (factors * losses).mean()
