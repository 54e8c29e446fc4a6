r"""RME: a mixture that grows one component at a time, each placed where the mixture so far is poor.

.. math:: Q_m = (1 - \varepsilon_m(x))\, Q_{m-1} + \varepsilon_m(x)\, q_m

The functional gradient of the ELBO at Q_{m−1} in the direction of q is ELBO(q) + KL(q ‖ Q_{m−1}) up to a
constant: a new component must explain x and differ from the present mixture. Without a bound on the KL, the
component would collapse to a point, so the KL is clipped.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional

from gpin.distributions import NormalMixture
from gpin.generative import Generative, frozen
from gpin.inference.base import ELBO, InferenceModel, MethodConfig, Stage
from gpin.inference.gaussian import GaussianEncoder
from gpin.inference.mixture import mixture_of, stratified_elbo
from gpin.networks import Trunk

__all__ = ["RecursiveMixtureConfig", "RecursiveMixtureEncoder"]


class RecursiveMixtureConfig(MethodConfig):
    """Options of the recursive mixture.

    Arguments:
        components: M, the final number of encoders; the paper uses 2 to 5.
        kl_bound: C, the value at which KL(q_m ‖ Q_{m−1}) is clipped, in nats.
        base_share: The share of the epochs in which the first component is trained alone, as a plain VAE;
            the rest is divided among the others. It has no effect after a warm start.
    """

    components: int = Field(default=2, ge=2, le=64)
    kl_bound: float = Field(default=500.0, gt=0)
    base_share: float = Field(default=0.5, gt=0, lt=1)


class RecursiveMixtureEncoder(InferenceModel[RecursiveMixtureConfig]):
    """A mixture of Gaussian encoders whose components are added in turn; inference takes one pass."""

    name = "rme"
    label = "RME"
    title = "RME: recursive mixture, components added where the mixture fits badly"
    reference = "Kim & Pavlovic 2020, Recursive Inference for Variational Autoencoders, arXiv:2011.08544"
    Options = RecursiveMixtureConfig

    active: Tensor
    started: Tensor

    NEW_COMPONENT_NOISE = 0.1
    """The relative size of the noise added to a new component, which starts as a copy of the first."""

    def __init__(
        self, make_trunk: Callable[[], Trunk], latent_dim: int, options: RecursiveMixtureConfig | None = None
    ) -> None:
        super().__init__(make_trunk, latent_dim, options)
        count = self.options.components
        encoders = [GaussianEncoder(make_trunk, latent_dim) for _ in range(count)]
        self.components = nn.ModuleList(encoders)
        width = encoders[0].trunk.out_features
        self.weight_nets = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.LeakyReLU(0.01), nn.Linear(64, 1)) for _ in range(count - 1)
        )
        self.register_buffer("active", torch.ones((), dtype=torch.long))
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))

    # Training in stages ---------------------------------------------------------------------------

    def stages(self) -> Sequence[Stage]:
        """The first component alone, unless it comes from a trained VAE, then one more component per stage."""
        if self.active == self.options.components:  # complete already, so keep training it
            return [Stage("all components")]
        growing = [Stage(f"component {m}", 1.0) for m in range(2, self.options.components + 1)]
        if self.started:
            return growing
        share = self.options.base_share
        return [Stage("component 1", len(growing) * share / (1 - share)), *growing]

    @torch.no_grad()
    def begin_stage(self, index: int) -> None:
        """Add the stage's component, as a perturbed copy of the first."""
        if self.active == self.options.components:
            return
        self.active.fill_(index + (2 if self.started else 1))
        if self.active > 1:
            newest = self._encoders()[-1]
            newest.load_state_dict(self.components[0].state_dict())
            for parameter in newest.head.parameters():
                noise = self.NEW_COMPONENT_NOISE * parameter.square().mean().sqrt()
                parameter.add_(noise * torch.randn_like(parameter))

    def start_from(self, other: InferenceModel[Any]) -> None:
        """Copy the first component from a trained VAE, and begin with the second; or copy a whole mixture."""
        if other.gaussian_encoder is None:
            super().start_from(other)
            return
        self._encoders()[0].start_from(other)
        self.started.fill_(True)
        self.active.fill_(1)

    # The mixture ----------------------------------------------------------------------------------

    def _encoders(self) -> list[GaussianEncoder]:
        return cast(list[GaussianEncoder], list(self.components))[: int(self.active)]

    def _logits(self, features: Tensor) -> Tensor:
        """The logits of ε_2 … ε_M from the features of the first component, `(batch, active − 1)`."""
        logits = [net(features) for net in self.weight_nets[: int(self.active) - 1]]
        return torch.cat(logits, dim=-1) if logits else features[:, :0]

    def mixture(self, x: Tensor) -> NormalMixture:
        """Q(z|x) of the components so far."""
        features = [encoder.trunk(x) for encoder in self._encoders()]
        return mixture_of(self._encoders(), features, _log_weights(self._logits(features[0])))

    def forward(self, x: Tensor, model: Generative) -> Distribution:
        return self.mixture(x)

    def elbo(self, x: Tensor, model: Generative, samples: int = 1) -> ELBO:
        """The bound, with expectations stratified over the components."""
        return stratified_elbo(self.mixture(x), x, model, samples)

    def objective(
        self, x: Tensor, model: Generative, samples: int = 1, kl_weight: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """A loss whose gradient with respect to each block is that of the block's own objective, and the bound.

        Component m: ELBO(q_m) + min(KL(q_m ‖ Q_{m−1}), C). Weight m: ELBO(Q_m). Decoder: ELBO(Q_M).
        In each objective, the parameters of all other blocks are detached. With `kl_weight` β, every ELBO has the
        weighted KL, and KL(q_m ‖ Q_{m−1}) has the weight β too, as the functional gradient of that ELBO requires.
        """
        if self.active == 1:
            return super().objective(x, model, samples, kl_weight)
        features = [encoder.trunk(x) for encoder in self._encoders()]
        logits = self._logits(features[0].detach())
        q = mixture_of(self._encoders(), features, _log_weights(logits))
        z = q.component_rsample(samples)  # (samples, M, batch, d)
        with frozen(model):
            log_conditional = model.log_conditional(x, z)
        log_prior = model.log_prior(z)
        log_joint = log_conditional + kl_weight * log_prior
        own = q.component_log_prob(z)  # (samples, M, batch, M): component k at samples of component m
        bounds = log_joint - kl_weight * own.diagonal(dim1=1, dim2=3).transpose(1, 2)  # ELBO(q_m), (samples, M, batch)

        loss = -bounds.mean(0).sum(0)
        fixed = NormalMixture(q.log_weights, q.means.detach(), q.stds.detach())
        at = fixed.component_log_prob(z)  # gradients through z only
        z_fixed_at, fixed_joint = at.detach(), log_joint.detach()
        true_joint = (log_conditional + log_prior).detach()
        for m in range(1, int(self.active)):
            before = _log_weights(logits[:, : m - 1]).detach()
            mixture_log_prob = torch.logsumexp(before + at[:, m, :, :m], dim=-1)  # log Q_{m−1} at samples of q_m
            kl = (own[:, m, :, m] - mixture_log_prob).mean(0)
            loss = loss - kl_weight * kl.clamp(max=self.options.kl_bound)

            # ELBO(Q_m) as a function of ε_m alone.
            log_weights = _log_weights(torch.cat([logits[:, : m - 1].detach(), logits[:, m - 1 : m]], dim=-1))
            log_q = torch.logsumexp(log_weights + z_fixed_at[:, : m + 1, :, : m + 1], dim=-1)
            loss = loss - (log_weights.exp().T * (fixed_joint[:, : m + 1] - kl_weight * log_q)).sum(1).mean(0)

        weights = q.log_weights.detach().exp().T  # (M, batch)
        loss = loss - (weights * model.reconstruction(x, z.detach(), weights)).sum(1).mean(0)
        bound = (weights * (true_joint - q.weigh(z_fixed_at).detach())).sum(1).mean(0)
        return loss.mean(), bound.mean()


def _log_weights(logits: Tensor) -> Tensor:
    """log α from the logits of ε_2 … ε_m: α_k = ε_k Π_{l>k} (1 − ε_l), ε_1 = 1; `(batch, m − 1)` → `(batch, m)`."""
    first = logits.new_zeros(logits.shape[0], 1)
    log_epsilon = torch.cat([first, functional.logsigmoid(logits)], dim=-1)
    log_rest = functional.logsigmoid(-logits).flip(-1).cumsum(-1).flip(-1)
    return log_epsilon + torch.cat([log_rest, first], dim=-1)
