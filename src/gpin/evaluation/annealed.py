r"""Annealed importance sampling: log p(x) from chains that move gradually from a Gaussian to the posterior.

The chains of an instance x pass through the densities

.. math:: f_\beta(z) \propto q(z)^{1 - \beta} \, p(x, z)^\beta, \qquad 0 = \beta_0 < \beta_1 < … < \beta_T = 1

from the start q to the posterior. A chain starts with z₀ ~ q, and a transition of Hamiltonian Monte Carlo, which leaves
f at β_t invariant, leads from z_{t−1} to z_t. Its weight (Neal 2001)

.. math:: \log w = \sum_{t=1}^{T} (\beta_t - \beta_{t-1}) \, \log \frac{p(x, z_{t-1})}{q(z_{t-1})}

has the expectation E[w] = p(x), so the log of the mean weight is a lower bound of log p(x) in expectation. With T = 1
it is plain importance sampling. For an x that was simulated from the model together with its z, this z is an exact
draw from the posterior. The same chain in reverse, from this z to q, has E[1/w] = 1/p(x), so minus the log of the mean
of 1/w is an *upper* bound in expectation (bidirectional Monte Carlo, Grosse et al. 2015).

The start is either the prior or the refined Gaussian N(m, Λ⁻¹) of x (:meth:`gpin.VAE.refine`), which needs far fewer
temperatures. Its precision is that of the prior plus that of the likelihood, Λ = I + JᵀWJ. The latter is reduced,
Λ_τ = I + τ (Λ − I) with τ = 0.1, because a start must not be narrower than the posterior: posteriors of many dimensions
are often curved, so that a typical draw lies far in the tails of N(m, Λ⁻¹), which chains reach late.

The chains move in the coordinates u in which q is standard normal, z = m + L u. There the Hamiltonian of f_β is that of
a standard normal plus −β r(u), where r = log p(x, z)/q(z). A step rotates u and its momentum exactly, which solves the
first part, between two half kicks by the gradient of the second (Shahbaba et al. 2014). So it is limited only by how
much the posterior differs from q. The step sizes, one for each instance and temperature, are tuned in a pilot run of
chains that are then discarded. They are fixed thereafter, so that the weights are unbiased.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from gpin._core.errors import InputError
from gpin._core.inputs import whole_number
from gpin._core.memory import available_memory
from gpin.distributions import PrecisionNormal
from gpin.evaluation.importance import Annealing, LogLikelihood
from gpin.evaluation.reliability import Bias
from gpin.generative import Generative, log_joint_and_gradient

__all__ = ["STARTS", "AnnealingOptions", "Path", "Sandwich", "Start", "batch_size", "standard_start", "widened"]

WIDENING = 0.1
"""τ, the factor of the likelihood's part of the precision of a refined start."""

TARGET = 0.75
"""The mean acceptance rate for which the pilot tunes the step sizes."""

PILOT_CHAINS = 8
PILOT_TEMPERATURES = 20, 60
"""The smallest and the largest number of temperatures of the pilot, which otherwise has as many as the chains."""
SMOOTHING = 2
"""The step sizes of the pilot are averaged, as logarithms, over this many temperatures on either side."""

COPIES = 12
"""How many tensors of the size of the chains exist at a time, at most."""


# Options ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """The start of the chains, and what suits it.

    Attributes:
        schedule: The position on the way, from 0 to 1 → β, both `(temperatures + 1,)`.
        temperatures: The default number of temperatures.
        leapfrog: The default number of leapfrog steps per transition.
    """

    schedule: Callable[[Tensor], Tensor]
    temperatures: int
    leapfrog: int


def _sigmoid(position: Tensor, sharpness: float = 4.0) -> Tensor:
    """A schedule with small steps at both ends, as Grosse et al. 2015 use it."""
    ends = torch.sigmoid(torch.tensor([-sharpness, sharpness], dtype=position.dtype))
    return (torch.sigmoid(sharpness * (2 * position - 1)) - ends[0]) / (ends[1] - ends[0])


STARTS: dict[str, Start] = {
    "refined": Start(lambda position: position, temperatures=200, leapfrog=4),
    "prior": Start(_sigmoid, temperatures=1000, leapfrog=10),
}
"""The distributions from which the chains can start, by name."""


@dataclass(frozen=True)
class AnnealingOptions:
    """The options of annealed importance sampling.

    Attributes:
        temperatures: T, the number of temperatures after the start; 1 is plain importance sampling.
        chains: The number of chains per instance.
        start: "refined" or "prior".
        leapfrog: The number of leapfrog steps, with one gradient of the decoder each, per transition.
    """

    temperatures: int
    chains: int
    start: str
    leapfrog: int

    @classmethod
    def of(
        cls,
        temperatures: int | None = None,
        chains: int | None = None,
        start: str | None = None,
        leapfrog: int | None = None,
    ) -> "AnnealingOptions":
        """The options, with defaults for those that are None; unusable values raise InputError.

        Example:
            >>> AnnealingOptions.of(temperatures=50)
            AnnealingOptions(temperatures=50, chains=8, start='refined', leapfrog=4)
        """
        start = "refined" if start is None else start
        if start not in STARTS:
            raise InputError(f"unknown start {start!r}: choose {' or '.join(map(repr, STARTS))}")
        chosen = STARTS[start]
        chains = whole_number(8 if chains is None else chains, "chains")
        if chains == 1:
            raise InputError("chains must be at least 2, got 1: the error of the estimate comes from their spread")
        return cls(
            whole_number(chosen.temperatures if temperatures is None else temperatures, "temperatures"),
            chains,
            start,
            whole_number(chosen.leapfrog if leapfrog is None else leapfrog, "leapfrog"),
        )


def standard_start(x: Tensor, latent_dim: int) -> PrecisionNormal:
    """The prior as the start of the chains of each instance."""
    eye = torch.eye(latent_dim, dtype=x.dtype, device=x.device)
    return PrecisionNormal(x.new_zeros(len(x), latent_dim), eye.expand(len(x), latent_dim, latent_dim))


def widened(q: PrecisionNormal) -> PrecisionNormal:
    """The start from a refined Gaussian N(m, Λ⁻¹): N(m, Λ_τ⁻¹), Λ_τ = I + τ (Λ − I)."""
    factor = q.factor.double()  # in float32, Λ may round the I away
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    precision = WIDENING * factor @ factor.mT + (1 - WIDENING) * eye
    return PrecisionNormal(q.mean, torch.linalg.cholesky(precision).to(q.factor.dtype))


def batch_size(model: Generative, x: Tensor, latent_dim: int, chains: int, chunk: int) -> int:
    """How many instances are annealed at a time; chains or chunks that do not fit into memory raise InputError.

    Arguments:
        model: The generative model.
        x: `(batch, *shape)`.
        latent_dim: d.
        chains: The number of chains per instance.
        chunk: How many pairs (x, z) are decoded at a time.
    """
    size = max(1, min(len(x), 128, chunk, 2**20 // chains))
    free = available_memory(x.device)
    if free is None:
        return size
    chain, pair = COPIES * latent_dim * x.element_size(), _bytes_per_pair(model, x, latent_dim)
    if pair > free:
        raise InputError(f"the gradient of the decoder needs {_written(pair)} for one pair (x, z), {_left(free)}")
    if chains * chain > free:
        raise InputError(
            f"chains={chains} need {_written(chains * chain)} for one instance, {_left(free)}: "
            f"at most {free // chain} chains fit"
        )
    size = min(size, free // (chains * chain))
    pairs = min(chunk, size * chains)
    if pairs * pair > free:
        raise InputError(
            f"chunk_size={chunk} needs {_written(pairs * pair)} for the gradient of the decoder, {_left(free)}: "
            f"a chunk_size of at most {free // pair} fits"
        )
    return size


def _written(count: int) -> str:
    """A number of bytes as text."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _left(count: int) -> str:
    return f"but only {_written(count)} are available"


def _bytes_per_pair(model: Generative, x: Tensor, latent_dim: int) -> int:
    """About how much memory the gradient of log p(x, z) takes for one pair: twice what its backward pass keeps."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.decoder.parameters(), *model.decoder.buffers())}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        log_joint_and_gradient(model, x[:1], x.new_zeros(1, latent_dim))
    return 2 * sum(kept.values())


# Chains ----------------------------------------------------------------------------------------------


class State(NamedTuple):
    """The chains of a batch of instances in the coordinates u.

    Attributes:
        u: `(chains, batch, d)`.
        ratio: r(u) = log p(x, z)/q(z), `(chains, batch)`.
        gradient: ∂r/∂u, `(chains, batch, d)`.
    """

    u: Tensor
    ratio: Tensor
    gradient: Tensor


class Path:
    """The way from a Gaussian q to the posteriors of a batch of instances, with tuned step sizes.

    Arguments:
        model: The generative model, in evaluation mode.
        x: `(batch, *shape)`.
        q: The start, N(m, Λ⁻¹) for each instance.
        options: The options of the chains.
        chunk: How many pairs (x, z) are decoded at a time.
    """

    def __init__(self, model: Generative, x: Tensor, q: PrecisionNormal, options: AnnealingOptions, chunk: int) -> None:
        self.model, self.x, self.q, self.options = model, x, q, options
        self.chains_at_once = max(1, chunk // len(x))
        eye = torch.eye(q.event_shape[0], dtype=x.dtype, device=x.device)
        self.inverse = torch.linalg.solve_triangular(q.factor, eye, upper=False)  # of the factor of Λ, (batch, d, d)
        self.log_det = -q.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # of ∂z/∂u, (batch,)
        self.betas = self._betas(options.temperatures)
        self.step_sizes = self._tuned() if options.temperatures > 1 else x.new_zeros(2, len(x))

    def _betas(self, temperatures: int) -> list[float]:
        position = torch.linspace(0, 1, temperatures + 1, dtype=torch.float64)
        return STARTS[self.options.start].schedule(position).tolist()

    def start(self, chains: int) -> State:
        """Chains at draws from q."""
        shape = (chains, *self.q.mean.shape)
        return self._at(torch.randn(shape, dtype=self.x.dtype, device=self.x.device))

    def end(self, z: Float[Tensor, "batch d"], chains: int) -> State:
        """Chains at the given z."""
        u = ((z - self.q.mean).unsqueeze(1) @ self.q.factor).squeeze(1)
        return self._at(u.expand(chains, *u.shape).contiguous())

    def _at(self, u: Tensor) -> State:
        return State(u, *self._ratio(u))

    def _ratio(self, u: Float[Tensor, "chains batch d"]) -> tuple[Tensor, Tensor]:
        """r(u) = log p(x, z) − log q(z) and its gradient in u, where z = m + L⁻ᵀu and Λ = LLᵀ."""
        values, gradients = [], []
        for part in u.split(self.chains_at_once):
            z = self.q.mean + torch.einsum("bji,cbj->cbi", self.inverse, part)
            value, gradient = log_joint_and_gradient(self.model, self.x, z)
            values.append(value)
            gradients.append(torch.einsum("bij,cbj->cbi", self.inverse, gradient))
        log_standard = -0.5 * (u.square().sum(-1) + u.shape[-1] * math.log(2 * math.pi))
        return torch.cat(values) + self.log_det - log_standard, torch.cat(gradients) + u

    def lower(self, keep_weights: bool = False) -> LogLikelihood:
        """log p(x) from chains that start at q; a lower bound in expectation."""
        log_weights, acceptance, _ = self._weights(self.start(self.options.chains))
        annealing = Annealing(self.options.temperatures, self.options.start, acceptance)
        return LogLikelihood.of(log_weights, "annealed", keep_weights, annealing=annealing)

    def upper(self, z: Float[Tensor, "batch d"]) -> LogLikelihood:
        """log p(x) from chains that run back to q from exact draws z of the posteriors; an upper bound in expectation.

        The diagnostics are those of the weights 1/w. The chains of an instance have one start, so their spread does not
        tell the whole error.
        """
        log_weights, acceptance, _ = self._weights(self.end(z, self.options.chains), reverse=True)
        annealing = Annealing(self.options.temperatures, self.options.start, acceptance)
        inverse = LogLikelihood.of(-log_weights, "annealed, reverse", annealing=annealing)
        return replace(inverse, values=-inverse.values, elbo=-inverse.elbo, upper=True)

    def draws(self) -> tuple[Float[Tensor, "chains batch d"], Float[Tensor, "chains batch"]]:
        """Where chains that start at q end, and their log weights, with which they are draws from the posterior."""
        log_weights, _, state = self._weights(self.start(self.options.chains))
        return self.q.mean + torch.einsum("bji,cbj->cbi", self.inverse, state.u), log_weights

    def _weights(self, state: State, *, reverse: bool = False) -> tuple[Tensor, Tensor, State]:
        """Move the chains along the whole path, or back, with fixed step sizes.

        Returns:
            The log weights, `(chains, batch)` in float64, the mean acceptance rates, `(batch,)`, and the last state.
        """
        count = self.options.temperatures
        log_weights = torch.zeros_like(state.ratio, dtype=torch.float64)
        accepted = torch.zeros_like(state.ratio[0])
        for step in range(count):
            t = count - 1 - step if reverse else step
            log_weights += (self.betas[t + 1] - self.betas[t]) * state.ratio
            if step < count - 1:
                at = t if reverse else t + 1
                state, probability = self._transition(state, self.betas[at], self._step_size(at / count))
                accepted += probability.mean(0)
        return log_weights, accepted / max(1, count - 1), state

    def _step_size(self, position: float) -> Float[Tensor, " batch"]:
        """The tuned step sizes at a position from 0 to 1, interpolated."""
        place = position * (len(self.step_sizes) - 1)
        index = min(int(place), len(self.step_sizes) - 2)
        return torch.lerp(self.step_sizes[index], self.step_sizes[index + 1], place - index)

    def _transition(self, state: State, beta: float, step_size: Tensor) -> tuple[State, Tensor]:
        """One transition of Hamiltonian Monte Carlo that leaves f_β invariant, and its acceptance probabilities.

        Each step rotates u and its momentum by the angle `step_size` `(batch,)`, between two half kicks by the gradient
        of β r. A random factor for each chain keeps trajectories from closing.
        """
        momentum = torch.randn_like(state.u)
        jitter = 0.8 + 0.4 * torch.rand_like(state.ratio)
        angle = (step_size * jitter).unsqueeze(-1)
        cos, sin, kick = angle.cos(), angle.sin(), 0.5 * beta * angle
        moved, before = state, _energy(state, momentum, beta)
        for _ in range(self.options.leapfrog):
            momentum = momentum + kick * moved.gradient
            u, momentum = cos * moved.u + sin * momentum, cos * momentum - sin * moved.u
            moved = self._at(u)
            momentum = momentum + kick * moved.gradient
        # A trajectory that left the finite numbers has an energy of NaN or infinity and is rejected.
        probability = (before - _energy(moved, momentum, beta)).clamp(max=0).exp().nan_to_num(nan=0.0)
        accept = torch.rand_like(probability) < probability
        every = accept.unsqueeze(-1)
        kept = State(
            torch.where(every, moved.u, state.u),
            torch.where(accept, moved.ratio, state.ratio),
            torch.where(every, moved.gradient, state.gradient),
        )
        return kept, probability

    def _tuned(self) -> Float[Tensor, "temperatures batch"]:
        """Step sizes along the path, `(temperatures, batch)`, from a pilot run whose chains are then discarded.

        After each transition the logarithm of an instance's step size moves by the difference of its mean acceptance
        rate and the target. No trajectory is longer than a quarter of a rotation, which makes draws from a standard
        normal independent.
        """
        largest = math.log(math.pi / 2 / self.options.leapfrog)
        state, found = self.start(PILOT_CHAINS), []
        log_size = self.x.new_full((len(self.x),), largest)
        least, most = PILOT_TEMPERATURES
        for beta in self._betas(min(max(self.options.temperatures, least), most)):
            state, probability = self._transition(state, beta, log_size.exp())
            log_size = (log_size + probability.mean(0) - TARGET).clamp(max=largest)
            found.append(log_size)
        padded = functional.pad(torch.stack(found, dim=1).unsqueeze(0), (SMOOTHING, SMOOTHING), mode="replicate")
        return functional.avg_pool1d(padded, 2 * SMOOTHING + 1, stride=1)[0].T.exp()


def _energy(state: State, momentum: Tensor, beta: float) -> Float[Tensor, "chains batch"]:
    """½‖u‖² + ½‖momentum‖² − β r(u)."""
    return 0.5 * (state.u.square().sum(-1) + momentum.square().sum(-1)) - beta * state.ratio


# The sandwich ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sandwich:
    """Bounds of log p(x) from both sides for instances simulated from the model; see :meth:`gpin.VAE.sandwich`.

    The bounds hold in expectation, so that with few chains a lower bound can exceed its upper bound by chance.

    Attributes:
        x: The simulated instances, `(n, *shape)`.
        forward: The annealed estimate; its `values` are the lower bounds.
        reverse: The estimate from reverse chains; its `values` are the upper bounds.
        others: Other estimates of log p(x) of the same instances by name, such as importance sampling with proposals
            from the encoder.
    """

    x: Tensor
    forward: LogLikelihood
    reverse: LogLikelihood
    others: Mapping[str, LogLikelihood]

    @property
    def lower(self) -> Tensor:
        """The lower bound of each instance, `(n,)`."""
        return self.forward.values

    @property
    def upper(self) -> Tensor:
        """The upper bound of each instance, `(n,)`."""
        return self.reverse.values

    @property
    def width(self) -> float:
        """The mean of upper minus lower bound, in nats."""
        return (self.upper - self.lower).mean().item()

    @property
    def width_error(self) -> float:
        """The standard error of the width over instances (NaN for one instance)."""
        count = len(self.lower)
        return (self.upper - self.lower).std().item() / math.sqrt(count) if count > 1 else math.nan

    def bias(self, estimate: LogLikelihood | Tensor) -> Bias:
        """How far an estimate of log p(x) of the instances in `x` is too low on average.

        Arguments:
            estimate: The estimate, such as `vae.log_likelihood(sandwich.x, 1000)`, or its values, `(n,)`.
        """
        values = estimate.values if isinstance(estimate, LogLikelihood) else estimate
        if values.shape != self.lower.shape:
            raise InputError(f"the estimate must have one value for each of the {len(self.lower)} instances in x")
        differences = [(bound - values).double() for bound in (self.lower, self.upper)]
        low, high = (difference.mean().item() for difference in differences)
        count = len(values)
        error = max(float(each.std()) for each in differences) / math.sqrt(count) if count > 1 else math.nan
        return Bias(low, high, count, error)

    @property
    def biases(self) -> dict[str, Bias]:
        """The bias of each of the other estimates, by name."""
        return {name: self.bias(other) for name, other in self.others.items()}

    def record(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        annealing = cast(Annealing, self.forward.annealing)
        return {
            "instances": len(self.lower),
            "temperatures": annealing.temperatures,
            "chains": self.forward.samples,
            "start": annealing.start,
            "lower": self.forward.mean,
            "upper": self.reverse.mean,
            "width": self.width,
            "width_error": self.width_error,
            "too_low": {
                name: {
                    "samples": self.others[name].samples,
                    "at_least": bias.at_least,
                    "at_most": bias.at_most,
                    "error": bias.error,
                }
                for name, bias in self.biases.items()
            },
        }

    def __str__(self) -> str:
        bounds = (
            f"log p(x) of {len(self.lower)} instances simulated from the model is between {self.forward.mean:.2f} and "
            f"{self.reverse.mean:.2f} nats on average"
        )
        others = (
            f"importance sampling ({name}, K = {self.others[name].samples}) is {bias} here"
            for name, bias in self.biases.items()
        )
        return "; ".join([bounds, *others])
