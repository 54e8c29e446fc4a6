r"""The paper's encoder: mean and standard deviation are random functions with Gaussian-process priors.

.. math::
    q(z|x, f, h) = \mathcal{N}(z; f(x), \mathrm{diag}\, h(x)^2), \quad
    f = b + W \psi^m, \quad h = c + U \psi^s, \quad W, U \sim q(W, U)

By default deviations are relative, f = b + c W ψᵐ and h = c (1 + U ψˢ) instead. q(W, U) is Gaussian, learnt
by variational inference against N(0, I), and marginalised in q(z|x).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.distributions import Distribution

from gpin._core.errors import InputError
from gpin.distributions import DiagonalNormal, RandomMomentsNormal, gaussian_kl
from gpin.generative import Generative
from gpin.inference.base import ELBO, InferenceModel, MethodConfig, Uncertainty, tamed_mean
from gpin.inference.gaussian import GaussianEncoder
from gpin.inference.gp.bayesian_linear import COVARIANCES, BayesianLinear, CovarianceName, DeterministicLinear
from gpin.inference.gp.log_square import expected_log_square
from gpin.networks import Trunk

__all__ = ["GPConfig", "GPEncoder", "RandomFunctions"]


class GPConfig(MethodConfig):
    """Options of the GP encoder.

    Arguments:
        covariance: The family of the posterior covariances: "full" (Cholesky, as in the paper), "diagonal", or
            "shared_basis" (full rank, one basis for all latent dimensions).
        shared_trunk: Whether the prior means of f and h and the features of both kernels share one trunk, so that
            inference costs about as much as the VAE's; otherwise there are three separate towers, as in the paper.
        deviations: "relative" measures the deviations Wψᵐ and Uψˢ in units of the standard deviation c(x);
            "absolute" adds them as they are, as in the paper.
        marginal: "moment" uses the Gaussian with the moments of the marginal, as in the paper; "exact"
            samples the marginal itself and computes its density by quadrature.
        log_square: Whether E[log h²] is "exact", in closed form, or "sampled", as in the paper.
        log_square_samples: The number of samples for log_square="sampled".
        initial_std: The initial standard deviation of the weights. It is reduced if V[f] or V[h] would otherwise
            exceed a hundredth of E[h]², as after a warm start.
        min_variance: A constant added to the variance of q(z|x).
        weight_kl_factor: The factor of the KL of the weights in the loss. With 1, training maximises the bound itself,
            as in the paper; a smaller factor lets the weights move further from their prior.
        towers: "deterministic" keeps the towers and removes the randomness, for an ablation of equal capacity.
    """

    covariance: CovarianceName = "shared_basis"
    shared_trunk: bool = True
    deviations: Literal["relative", "absolute"] = "relative"
    marginal: Literal["moment", "exact"] = "moment"
    log_square: Literal["exact", "sampled"] = "exact"
    log_square_samples: int = Field(default=1, ge=1)
    initial_std: float = Field(default=0.001, gt=0)
    min_variance: float = Field(default=0.0, ge=0)
    weight_kl_factor: float = Field(default=1.0, ge=0)
    towers: Literal["random", "deterministic"] = "random"

    presets = {
        "paper": {
            "covariance": "full",
            "shared_trunk": False,
            "deviations": "absolute",
            "marginal": "moment",
            "log_square": "sampled",
            "initial_std": 0.02,  # not given in the paper; see results/details.md
        },
    }

    formerly = {"deviations": "absolute", "weight_kl_factor": 1.0}

    @model_validator(mode="after")
    def _applies(self) -> "GPConfig":
        random_only = {
            "covariance",
            "marginal",
            "log_square",
            "log_square_samples",
            "initial_std",
            "weight_kl_factor",
        }
        given = [name for name in self.changed() if name in random_only]
        if self.towers == "deterministic" and given:
            raise ValueError(f"{given[0]!r} does not apply to towers='deterministic', which has no random weights")
        if self.log_square == "exact" and "log_square_samples" in self.changed():
            raise ValueError("'log_square_samples' applies to log_square='sampled' only")
        if self.marginal == "exact" and self.min_variance > 0:
            raise ValueError("'min_variance' applies to marginal='moment' only")
        return self


@dataclass(frozen=True)
class RandomFunctions:
    """Moments of f(x) and h(x) under q(W, U), each `(batch, d)`."""

    mean: Float[Tensor, "batch d"]
    mean_variance: Float[Tensor, "batch d"]
    std: Float[Tensor, "batch d"]
    std_variance: Float[Tensor, "batch d"]

    @property
    def variance(self) -> Tensor:
        """V[z|x] = h̄² + s_h² + s_f², `(batch, d)`."""
        return self.std.square() + self.std_variance + self.mean_variance

    @property
    def uncertainty(self) -> Uncertainty:
        """Tr V[f(x)] and Tr V[h(x)], each `(batch,)`."""
        return Uncertainty(self.mean_variance.sum(-1), self.std_variance.sum(-1))


class GPEncoder(InferenceModel[GPConfig]):
    """The encoder with the GP posterior marginalised; inference takes one forward pass."""

    name = "gp"
    label = "GPVAE"
    title = "GP: mean and standard deviation with Gaussian-process priors, marginalised"
    reference = "Kim & Pavlovic 2021, Reducing the Amortization Gap in VAEs, arXiv:2102.03151"
    Options = GPConfig
    closed_form_kl = True
    has_uncertainty = True

    training_size: Tensor
    calibrated: Tensor

    def __init__(self, make_trunk: Callable[[], Trunk], latent_dim: int, options: GPConfig | None = None) -> None:
        super().__init__(make_trunk, latent_dim, options)
        self.has_uncertainty = self.options.towers == "random"
        self.base = GaussianEncoder(make_trunk, latent_dim)
        self.towers = nn.ModuleList() if self.options.shared_trunk else _pair(make_trunk)
        p = self.base.trunk.out_features
        family = COVARIANCES[self.options.covariance] if self.has_uncertainty else DeterministicLinear
        # With a shared trunk, f and h are 2d functions of the same features, so one process suffices.
        outputs = [2 * latent_dim] if self.options.shared_trunk else [latent_dim, latent_dim]
        self.processes = nn.ModuleList(family(p, count, self.options.initial_std) for count in outputs)
        self.register_buffer("training_size", torch.zeros((), dtype=torch.long))
        self.register_buffer("calibrated", torch.zeros((), dtype=torch.bool))

    def _feeds(self, x: Tensor, features: Tensor) -> list[tuple[BayesianLinear, Tensor]]:
        """The random processes, each with the features it reads."""
        inputs = [features] if self.options.shared_trunk else [tower(x) for tower in self.towers]
        return list(zip(cast(list[BayesianLinear], self.processes), inputs, strict=True))

    def functions(self, x: Tensor) -> RandomFunctions:
        """Moments of the random functions f and h at x."""
        features = self.base.trunk(x)
        base_mean, base_std, _ = self.base.moments(features)
        moments = [process.moments(psi) for process, psi in self._feeds(x, features)]
        if self.options.shared_trunk:
            moments = list(zip(*(moment.chunk(2, -1) for moment in moments[0]), strict=True))
        (f, f_variance), (h, h_variance) = moments
        if self.options.deviations == "relative":
            f, f_variance = base_std * f, base_std.square() * f_variance
            h, h_variance = base_std * h, base_std.square() * h_variance
        return RandomFunctions(base_mean + f, f_variance, base_std + h, h_variance)

    def marginal(self, functions: RandomFunctions) -> Distribution:
        """q(z|x) with W and U integrated out."""
        if self.options.marginal == "exact":
            return RandomMomentsNormal(
                functions.mean, functions.mean_variance.sqrt(), functions.std, functions.std_variance.sqrt()
            )
        return DiagonalNormal(functions.mean, (functions.variance + self.options.min_variance).sqrt())

    def features(self, x: Tensor, model: Generative) -> Tensor:
        """Those of the Gaussian encoder on which the method builds."""
        return self.base.features(x, model)

    def forward(self, x: Tensor, model: Generative) -> Distribution:
        return self.marginal(self.functions(x))

    def expected_kl(self, functions: RandomFunctions) -> Float[Tensor, " batch"]:
        """E_q(W,U)[KL(q(z|x,W,U) ‖ p(z))] = ½ Σ_j (v_j + m_j² − 1 − E[log h_j²]), `(batch,)`."""
        if self.options.log_square == "exact":
            log_square = expected_log_square(functions.std, functions.std_variance)
        else:
            shape = (self.options.log_square_samples, *functions.std.shape)
            noise = torch.randn(shape, dtype=functions.std.dtype, device=functions.std.device)
            draws = functions.std + functions.std_variance.sqrt() * noise
            # About once in ten million samples, mean and noise cancel to exactly zero, whose logarithm is infinite.
            rounding = 0.5 * torch.finfo(draws.dtype).eps * functions.std.detach()
            log_square = torch.maximum(draws.square(), rounding.square()).log().mean(0)
        # With min_variance > 0 this is an upper bound on the KL, because E[log h²] ≤ E[log(h² + min_variance)].
        return gaussian_kl(functions.mean, functions.variance + self.options.min_variance, log_square)

    def weight_kl(self) -> Float[Tensor, ""]:
        """KL(q(W, U) ‖ N(0, I)), a scalar."""
        return torch.stack([process.kl() for process in cast(list[BayesianLinear], self.processes)]).sum()

    def elbo(self, x: Tensor, model: Generative, samples: int = 1) -> ELBO:
        """The paper's bound, in which the KL of the weights is divided by the number of training instances, N."""
        if self.training_size == 0:
            raise InputError(
                "the bound of method 'gp' needs the size of the training set, which is not known yet: "
                "train with gpin.fit, or call vae.prepare(x_train) first"
            )
        functions = self.functions(x)
        z = self.marginal(functions).rsample((samples,))
        kl = self.expected_kl(functions)
        weight_kl = (self.weight_kl() / self.training_size).expand_as(kl)
        return ELBO(model.reconstruction(x, z).mean(0), kl, weight_kl)

    def objective(
        self, x: Tensor, model: Generative, samples: int = 1, kl_weight: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The negative bound, in which the KL of the weights has the factor `weight_kl_factor`, and the bound."""
        bound = self.elbo(x, model, samples)
        trained = replace(bound, weight_kl=self.options.weight_kl_factor * bound.weight_kl)
        return tamed_mean(-trained.weighted(kl_weight), x), bound.value.mean().detach()

    @torch.no_grad()
    def prepare(self, x: Tensor, training_size: int, model: Generative) -> None:
        """Store N and initialise the covariances to initial_std², or less if V[f] or V[h] would exceed c²/100."""
        self.training_size.fill_(training_size)
        if self.calibrated:
            return
        features = self.base.trunk(x)
        relative = self.options.deviations == "relative"
        unit = 1.0 if relative else self.base.moments(features)[1].square().mean().sqrt().item()
        for process, psi in self._feeds(x, features):
            length = psi.square().sum(-1).mean().sqrt().item()
            process.reset(min(self.options.initial_std, 0.1 * unit / length))
        self.calibrated.fill_(True)

    @torch.no_grad()
    def start_from(self, other: InferenceModel[Any]) -> None:
        """Copy b and c from a trained VAE, whose trunk is copied to the feature towers; or copy all weights of a GP."""
        if other.gaussian_encoder is None:
            super().start_from(other)
            return
        self.base.start_from(other)
        for tower in self.towers:
            tower.load_state_dict(self.base.trunk.state_dict())
        self.calibrated.fill_(False)  # because the features have changed

    @torch.no_grad()
    def uncertainty(self, x: Tensor) -> Uncertainty:
        """Tr V[f(x)] and Tr V[h(x)] under the posterior of the weights."""
        if not self.has_uncertainty:
            raise InputError("method 'gp' with towers='deterministic' has no uncertainty: nothing in it is random")
        return self.functions(x).uncertainty

    def posterior_and_uncertainty(self, x: Tensor, model: Generative) -> tuple[Distribution, Uncertainty | None]:
        """q(z|x) and the uncertainty from one pass of the networks."""
        functions = self.functions(x)
        return self.marginal(functions), functions.uncertainty if self.has_uncertainty else None


def _pair(make: Callable[[], nn.Module]) -> nn.ModuleList:
    return nn.ModuleList([make(), make()])
