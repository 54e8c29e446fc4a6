r"""Natural-gradient amortization: an encoder of mean and covariance, whose covariance is the metric of a few steps.

The encoder returns q_0 = N(m_0, Σ) with Σ = L Lᵀ, L = diag(s)(I + A), A strictly lower triangular. Natural-gradient
steps move the mean, m_{t+1} = m_t + α_t Σ ∇ log p(x, m_t) + β_t (m_t − m_{t−1}), see `gpin.refinement.natural`, and
q_T = N(m_T, Σ). Training maximises

.. math:: \mathrm{ELBO}(q_T) + \mathrm{sg}\Big(\lambda\, g_0 + \rho\, \Sigma^{-1} (m_T - m_0)\Big)^\top m_0

The ELBO is differentiated through the steps, with α_t and β_t held constant. Because the steps correct the encoder's
mean, the ELBO alone does not require m_0 to be good. The second term does, at no further cost: with λ, m_0 ascends
log p(x, m_0) by the gradient g_0 that the first step has computed (sg: a constant). With ρ, m_0 is regressed on the m_T
that the steps reach: this is the gradient of −½ (m_T − m_0)ᵀ Σ⁻¹ (m_T − m_0). It needs no inverse, because
Σ⁻¹(m_T − m_0) is a weighted sum of the gradients in the steps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from gpin._core.shards import batch_sum
from gpin.distributions import CholeskyNormal, DiagonalNormal, LatentNormal, LowRankNormal
from gpin.generative import Generative
from gpin.inference.base import ELBO, InferenceModel, tamed_mean, taming
from gpin.inference.gaussian import GaussianEncoder
from gpin.inference.refined import RefinedEncoder
from gpin.networks import Trunk
from gpin.refinement import Natural, NaturalConfig, Steps

__all__ = ["NaturalEncoder", "NaturalEncoderConfig"]


class NaturalEncoderConfig(NaturalConfig):
    """Options of the natural-gradient encoder.

    Arguments:
        steps: T, the number of steps in training, and in inference unless the caller chooses another number.
        step_size: The first step size α that is tried; 1 is Newton's step.
        backtracking: The factor by which α is reduced while log p(x, m) would fall.
        trials: How many step sizes are tried before an instance stays where it is.
        draws: The number of points of q over which the gradient is averaged, a multiple of two; 0 takes the gradient
            at the mean. Steps with draws lead close to the mean of a skewed posterior rather than to its mode.
        check: Whether inference checks, with a forward pass of the decoder, that a step does not lower its objective.
            Training uses `check_interval` instead.
        accelerated: Whether steps after the first add a share of the step before, which brings an instance closer to
            the mode where several nats are left to gain.
        covariance: The covariance that the encoder returns, which is the metric of the steps: "full", "low_rank"
            (diagonal plus `rank` directions) or "diagonal".
        rank: The number of directions of a low-rank covariance; other covariances ignore it.
        encoder_weight: λ, the weight with which the encoder's own mean climbs log p(x, m_0).
        regression: ρ, the weight with which the encoder's own mean is regressed on the mean after the steps.
        differentiate: "through" differentiates the steps with respect to the encoder and the decoder; "first_order"
            treats the gradients in the steps as constants, which is cheaper and less accurate.
        check_interval: The largest number of training batches from one check of the step sizes to the next. A check
            costs a decoder pass. While the check rejects the first step of some instance, every batch is checked; after
            each check without a rejection the distance doubles, up to this number. 1 checks every batch.
        interval: Steps are taken in every `interval`-th batch of training; the other batches maximise the ELBO of
            q_0, as a VAE does, at its cost.
    """

    covariance: Literal["full", "low_rank", "diagonal"] = "full"
    rank: int = Field(default=4, ge=1)
    encoder_weight: float = Field(default=1.0, ge=0)
    regression: float = Field(default=1.0, ge=0)
    differentiate: Literal["through", "first_order"] = "through"
    check_interval: int = Field(default=16, ge=1)
    interval: int = Field(default=1, ge=1)


class NaturalEncoder(RefinedEncoder[NaturalEncoderConfig]):
    """A Gaussian encoder with a covariance, followed by natural-gradient steps in the metric of that covariance."""

    name = "natural"
    label = "Natural"
    title = "Natural: a full covariance, and natural-gradient steps in its metric"
    reference = "gpin; the natural gradient of the ELBO as in Khan & Rue 2023, arXiv:2107.04562"
    Options = NaturalEncoderConfig
    closed_form_kl = True
    takes_steps = True
    export_refusal: str | None = (
        "its steps follow the gradient of the decoder, which ONNX does not have (steps=0 exports its encoder)"
    )

    batches: Tensor
    checking: Tensor
    below: Tensor
    refinement: Natural

    def __init__(
        self, make_trunk: Callable[[], Trunk], latent_dim: int, options: NaturalEncoderConfig | None = None
    ) -> None:
        super().__init__(make_trunk, latent_dim, options)
        self.base = GaussianEncoder(make_trunk, latent_dim)
        self.refinement = Natural(self.options)
        if self.options.steps == 0:
            self.export_refusal = None
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))
        self.register_buffer("checking", torch.tensor([0, 1]))  # batches before the next check, and their distance
        entries = {
            "full": latent_dim * (latent_dim - 1) // 2,
            "low_rank": latent_dim * self.options.rank,
            "diagonal": 0,
        }[self.options.covariance]
        self.correlations = nn.Linear(self.base.trunk.out_features, entries) if entries else None
        if self.correlations is not None:
            with torch.no_grad():
                self.correlations.weight.mul_(0.1)  # begin near a diagonal covariance
                self.correlations.bias.zero_()
        below = torch.tril_indices(latent_dim, latent_dim, -1)
        self.register_buffer("below", below[0] * latent_dim + below[1], persistent=False)

    def encode(self, x: Tensor, model: Generative) -> LatentNormal:
        """The encoder's posterior q_0, in one forward pass."""
        features = self.base.trunk(x)
        mean, scale, log_scale = self.base.moments(features)
        if self.correlations is None:
            return DiagonalNormal(mean, scale, log_scale)
        entries = self.correlations(features)
        if self.options.covariance == "low_rank":
            return LowRankNormal(mean, scale, entries.unflatten(-1, (self.latent_dim, self.options.rank)))
        unit = torch.eye(self.latent_dim, dtype=entries.dtype, device=entries.device)
        unit_factor = unit.flatten().expand(x.shape[0], -1).index_copy(1, self.below, entries)  # I + A
        factor = scale.unsqueeze(-1) * unit_factor.unflatten(-1, unit.shape)
        return CholeskyNormal(mean, factor, log_scale)

    def features(self, x: Tensor, model: Generative) -> Tensor:
        """Those of the Gaussian encoder on which the method builds."""
        return self.base.features(x, model)

    def initial(self, x: Tensor, model: Generative) -> LatentNormal:
        """The encoder's posterior q_0, before any step."""
        return self.encode(x, model)

    def with_steps(
        self, x: Tensor, model: Generative, steps: int, tolerance: float | None = None, **options: Any
    ) -> LatentNormal:
        """The posterior q_k after any number of steps; options that are not given here default to those of the
        method."""
        chosen = self.options.model_copy(update={"steps": steps, **options})
        return Natural(chosen, tolerance)(x, self.encode(x, model), model)

    @contextmanager
    def taking(self, steps: int) -> Iterator[None]:
        """Within the context, training and q(z|x) take this number of steps."""
        options, refinement = self.options, self.refinement
        self.options = options.model_copy(update={"steps": steps})
        self.refinement = Natural(self.options)
        try:
            yield
        finally:
            self.options, self.refinement = options, refinement

    def objective(
        self, x: Tensor, model: Generative, samples: int = 1, kl_weight: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The loss, which adds the terms for the encoder's own mean to the negative ELBO, and the mean ELBO of q_T."""
        q, options = self.encode(x, model), self.options
        plain = options.steps == 0 or int(self.batches) % options.interval != 0
        if self.training:
            self.batches += 1
        if plain:
            bound = self.elbo_of(q, x, model, samples)
            return tamed_mean(-bound.weighted(kl_weight), x), bound.value.mean().detach()
        check = int(self.checking[0]) == 0 if self.training else options.check
        bound, steps = self._steps_and_elbo(x, q, model, samples, check)
        if not check and int(batch_sum((~bound.value.isfinite()).sum())):
            check = True  # a step has left the region in which the decoder is finite
            bound, steps = self._steps_and_elbo(x, q, model, samples, check)
        if self.training:
            self._plan_next_check(steps if check else None)
        pull = options.encoder_weight * steps.gradients[0] + options.regression * steps.pull
        if (factors := taming(pull.norm(dim=-1), x)) is not None:
            pull = factors.unsqueeze(-1) * pull
        loss = -bound.weighted(kl_weight) - (pull * q.mean).sum(-1)
        if (factors := taming(-bound.value.detach(), x)) is not None:
            loss = factors * loss
        return loss.mean(), bound.value.mean().detach()

    def _steps_and_elbo(
        self, x: Tensor, q: LatentNormal, model: Generative, samples: int, check: bool
    ) -> tuple[ELBO, Steps]:
        """The ELBO of q_T, and the steps that lead to it."""
        steps = self.refinement.differentiable_steps(
            x, q, model, second_order=self.options.differentiate == "through", check=check
        )
        return self.elbo_of(q.with_mean(steps.mean), x, model, samples), steps

    def _plan_next_check(self, steps: Steps | None) -> None:
        """Count a batch; if its steps were checked, decide how many of the next batches are not."""
        if self.options.check_interval == 1:
            return  # every batch is checked
        if steps is None:
            self.checking[0] -= 1
            return
        distance = 1 if int(batch_sum(steps.rejected)) else min(2 * int(self.checking[1]), self.options.check_interval)
        self.checking.copy_(torch.tensor([distance - 1, distance]))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Load the state; models saved before `checking` existed begin with a check."""
        state_dict.setdefault(prefix + "checking", torch.tensor([0, 1]))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def start_from(self, other: InferenceModel[Any]) -> None:
        """Copy the encoder of a trained VAE, where the covariance stays nearly diagonal; or copy all weights."""
        if other.gaussian_encoder is None:
            super().start_from(other)
            return
        self.base.start_from(other)
