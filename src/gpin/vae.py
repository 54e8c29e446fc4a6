"""The VAE: a prior, a decoder with a likelihood, and an inference model."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from gpin._core.devices import device_named
from gpin._core.errors import InputError
from gpin._core.files import as_path, write_record, write_whole
from gpin._core.inputs import as_dtype, as_tensor, check_seed, positive_number, warn_of_bytes, whole_number
from gpin._core.memory import keep_freed_memory
from gpin._core.modes import differentiable, evaluating
from gpin._core.seeding import seeded
from gpin._core.tensors import pack_tensors
from gpin.conditions import Condition, beside, joined, parted
from gpin.distributions import PrecisionMixture, PrecisionNormal, tempered
from gpin.evaluation.annealed import AnnealingOptions, Path, Sandwich, batch_size, standard_start, widened
from gpin.evaluation.calibration import LEAST as LEAST_SIMULATED
from gpin.evaluation.calibration import Coverage, Draws, coverage_of, ranked, simulated_pairs
from gpin.evaluation.gap_prediction import (
    LEAST,
    LEAST_TRAINING,
    MOST,
    MOST_TRAINING,
    Calibration,
    Calibrations,
    Temperatures,
    check_count,
    estimate_features,
    evenly_spaced,
    pack_calibrations,
)
from gpin.evaluation.gaps import HOW, PAIRS, Gap, Gaps, decrement, posterior_elbo, refined_gap
from gpin.evaluation.importance import LogLikelihood, importance_draws, importance_weighted
from gpin.evaluation.imputation import expected_values, with_missing
from gpin.evaluation.resampling import PosteriorDraws, Proposal, escalated, resampled
from gpin.inference import ELBO, InferenceModel, Uncertainty
from gpin.likelihoods import Likelihood
from gpin.refinement import Modes, ModesConfig, QuasiNewton, QuasiNewtonConfig
from gpin.refinement.natural import MOST_DRAWS, MOST_STEPS

if TYPE_CHECKING:
    from gpin.building import VAEConfig

__all__ = ["VAE", "Reconstruction"]

ArrayLike = Tensor | np.ndarray
MAX_STEPS = 20
"""The maximum number of natural-gradient steps with a tolerance, unless the caller chooses another."""
STAGES = ("encoder", "steps", "refined", "modes", "annealed")
"""The proposals of :meth:`VAE.posterior`, the cheapest first."""
ANNEALED = 50
"""The number of temperatures of annealed draws in :meth:`VAE.posterior`."""
MANY_STARTS, ROUNDS = 32, 6
"""The options of :meth:`VAE.modes` in :meth:`VAE.posterior`."""
STEPS_TOLERANCE = 0.1
"""The tolerance, in nats, of the natural-gradient steps in :meth:`VAE.posterior`."""
BATCH = 128
"""The number of instances whose gap is determined at a time."""
RANKED = 399
"""The number of draws of each posterior to which a temperature is fitted."""
FORMAT = "gpin-vae"
VERSION = 1


def check_steps(steps: int | None, tolerance: float | None, max_steps: int | None) -> tuple[int | None, float | None]:
    """The number of natural-gradient steps, or None for the method's own posterior, and the tolerance; see `encode`."""
    if tolerance is None:
        if max_steps is not None:
            raise InputError("max_steps applies only with a tolerance: give tolerance in nats, or steps alone")
        return None if steps is None else _at_most(whole_number(steps, "steps", least=0), "steps"), None
    if steps is not None:
        raise InputError("give either steps, the same number for all instances, or tolerance with max_steps")
    most = _at_most(whole_number(MAX_STEPS if max_steps is None else max_steps, "max_steps", least=0), "max_steps")
    return most, positive_number(tolerance, "tolerance")


def check_draws(draws: int) -> int:
    """The number of draws over which natural-gradient steps average; see `encode`."""
    draws = whole_number(draws, "draws", least=0)
    if draws % 2 or draws > MOST_DRAWS:
        raise InputError(
            f"draws must be an even number of at most {MOST_DRAWS}, because they come in pairs; got {draws}"
        )
    return draws


def _at_most(steps: int, name: str) -> int:
    """The number of natural-gradient steps, unless it is too large."""
    if steps > MOST_STEPS:
        raise InputError(f"{name} must be at most {MOST_STEPS}, got {steps}: use vae.refine to come closer to the mode")
    return steps


class Reconstruction(NamedTuple):
    """The result of `vae(x)`.

    Attributes:
        reconstruction: E[x|z] at the posterior mean of z, `(batch, *shape)`.
        q: q(z|x), with batch shape `(batch,)` and event shape `(d,)`.
    """

    reconstruction: Tensor
    q: Distribution


class VAE(nn.Module):
    """A variational autoencoder: p(z) = N(0, I), p(x|z) from decoder and likelihood, q(z|x) from the inference model.

    Most users call :func:`gpin.build`; the constructor accepts any modules of the right shapes.

    A conditional model has p(x|z, c) and q(z|x, c) instead. Its methods take the conditions as `y`, or *joined* rows in
    place of x, which carry their conditions with them, see `gpin.conditions`.

    Arguments:
        inference: The inference model, which maps x to q(z|x); that of a conditional model gets joined rows.
        decoder: z `(..., d)` → output `(..., *shape)`, or `(..., outputs, *shape)` for a likelihood that takes several
            outputs per value. That of a conditional model gets z with the C numbers of the condition beside it.
        likelihood: p(x|output).
        config: The config from which the model was built, if any; it is saved with the weights.
        condition: What the model is conditional on, if anything; by default as in the config.
    """

    condition: Condition | None = None
    """What the model is conditional on; None for most models."""

    prepared: Tensor
    _gpin_fingerprints: tuple[str, str] | None = None
    """The fingerprints of the model before and after its last training in a folder, by which `gpin.fit` recognises it;
    None if it was not needed. They are not saved."""
    _gpin_calibrations: Calibrations = {}
    _gpin_temperatures: Temperatures = {}

    def __init__(
        self,
        inference: InferenceModel[Any],
        decoder: nn.Module,
        likelihood: Likelihood[Any],
        config: "VAEConfig | None" = None,
        condition: Condition | None = None,
    ) -> None:
        super().__init__()
        keep_freed_memory()
        self.inference, self.decoder, self.likelihood, self.config = inference, decoder, likelihood, config
        if condition is None and config is not None:
            condition = config.condition
        if condition is not None:  # an attribute of conditional models alone: attributes are part of an identity
            self.condition = condition
        self.register_buffer("prepared", torch.zeros((), dtype=torch.bool))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one instance."""
        return self.likelihood.shape

    @property
    def latent_dim(self) -> int:
        """The number of latent dimensions."""
        return self.inference.latent_dim

    @property
    def missing(self) -> bool:
        """Whether NaN in x may stand for a value that was not observed, see :func:`gpin.build`."""
        return self.config is not None and self.config.missing

    # The generative model -------------------------------------------------------------------------

    def log_prior(self, z: Tensor) -> Tensor:
        """log N(z; 0, I): `(..., d)` → `(...)`."""
        return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))

    def values(self, x: Tensor) -> Tensor:
        """The values `(batch, *shape)` of x; they are x itself unless its rows carry conditions."""
        return x if self.condition is None else parted(x, self.shape)[0]

    def with_values(self, x: Tensor, values: Tensor) -> Tensor:
        """The rows x with other values `(batch, *shape)`, and with the conditions that they carry, if any."""
        return values if self.condition is None else joined(values, parted(x, self.shape)[1])

    def given(self, x: Tensor, z: Tensor) -> Tensor:
        """The input of the decoder: z `(..., batch, d)`, for a conditional model with the condition of x beside it."""
        return z if self.condition is None else beside(z, parted(x, self.shape)[1])

    def log_conditional(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z): x `(batch, *shape)`, z `(..., batch, d)` → `(..., batch)`."""
        return self.likelihood.log_prob(self.values(x), self.decoder(self.given(x, z)))

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z), `(..., batch)`."""
        return self.log_conditional(x, z) + self.log_prior(z)

    def reconstruction(self, x: Tensor, z: Tensor, weights: Tensor | None = None) -> Tensor:
        """log p(x|z) for an objective. In training mode the likelihood's running statistics are updated first, in which
        `weights` `(..., batch)` weight each z."""
        output, values = self.decoder(self.given(x, z)), self.values(x)
        if self.training:
            self.likelihood.observe(values, output, weights)
        return self.likelihood.log_prob(values, output)

    # Inference and generation ---------------------------------------------------------------------

    def encode(
        self,
        x: ArrayLike,
        *,
        y: Any = None,
        steps: int | None = None,
        tolerance: float | None = None,
        max_steps: int | None = None,
        draws: int | None = None,
        check: bool | None = None,
        accelerated: bool | None = None,
        calibrated: bool = False,
    ) -> Distribution:
        """q(z|x), a distribution with batch shape `(batch,)` and event shape `(d,)`.

        Without further arguments this is the posterior of the method, which is differentiable. With `steps` or
        `tolerance`, the encoder's posterior is improved by natural-gradient steps, which use its covariance as their
        metric and cost one decoder gradient each: m ← m + αΣ∇log p(x, m), where steps after the first add a share of
        the step before (see `gpin.refinement.natural`). With the check (the default), a step never lowers log p(x, m),
        or with `draws` the average of log p(x, z) over the draws. This works with every method, but best with
        "natural", which is trained for it. The result is detached, and its attribute `ascent` holds the number of steps
        taken for each instance and, with a tolerance, the estimated remaining gap.

        Arguments:
            x: `(batch, *shape)`.
            y: The conditions of x, see :meth:`check`; for a conditional model only.
            steps: The number of steps for all instances, from 0.
            tolerance: Continue only with instances whose estimated remaining gap (the Newton decrement ½gᵀΣg) exceeds
                this many nats.
            max_steps: The maximum number of steps with a tolerance; 20 by default.
            draws: The number of points of q(z|x) over which the steps average the gradient, an even number. Steps then
                lead close to the mean of a skewed posterior rather than to its mode, but each costs as many gradients
                of the decoder. The default is the option `draws` of the method, 0 unless set otherwise, which takes the
                gradient at m. Only with `steps` or `tolerance`, and not with `calibrated`.
            check: Whether to reduce the size of a step that would lower its objective. The default is the option
                `check` of the method, True unless set otherwise. False saves the last forward pass of the decoder,
                about a third of the time of one step and a fifth of that of two on a CPU, and nothing with a tolerance.
                Only with `steps` or `tolerance`, and not with `calibrated`.
            accelerated: Whether steps after the first add a share of the step before. The default is the option
                `accelerated` of the method, True unless set otherwise. Only with `steps` or `tolerance`, and not with
                `calibrated`.
            calibrated: Multiply the covariance by the temperature that :meth:`calibrate` has found, so that intervals
                of q(z|x) contain z about as often as they claim. The mean does not change.

        Example:
            >>> import gpin
            >>> vae, x = gpin.build((6,), "natural", latent_dim=2).eval(), torch.rand(3, 6)
            >>> q = vae.encode(x, tolerance=0.5, max_steps=8)
            >>> q.mean.shape, q.ascent.steps.shape, q.ascent.remaining_gap.shape
            (torch.Size([3, 2]), torch.Size([3]), torch.Size([3]))
        """
        x = self.check(x, y)
        steps, tolerance = check_steps(steps, tolerance, max_steps)
        if calibrated and tolerance is not None:
            raise InputError("calibrated applies to a number of steps, not to a tolerance: give steps, or neither")
        switches = {"check": check, "accelerated": accelerated}
        for name, switch in switches.items():
            if switch is not None and not isinstance(switch, bool | np.bool_):
                raise InputError(f"{name} must be True or False, got {switch!r}")
        options: dict[str, Any] = {} if draws is None else {"draws": check_draws(draws)}
        options |= {name: bool(switch) for name, switch in switches.items() if switch is not None}
        if options and steps is None:
            raise InputError(f"{next(iter(options))} needs natural-gradient steps: give steps or tolerance")
        if options and calibrated:
            raise InputError(
                f"{next(iter(options))} cannot be combined with calibrated=True: temperatures are found without"
            )
        temperature = self._temperature(self._own_if_equal(steps)) if calibrated else None
        q = self._encode(x, steps, tolerance, options)
        return q if temperature is None else tempered(q, temperature)

    def _own_if_equal(self, steps: int | None) -> int | None:
        """None, which stands for the method's own posterior, if that takes this number of steps."""
        return None if self.inference.takes_steps and steps == self.inference.options.steps else steps

    def _temperature(self, key: int | str | None) -> float:
        """The temperature of the posterior after this number of steps, or of the refined one."""
        if key not in self._gpin_temperatures:
            arguments = {None: "", "refined": ", simulations=500"}.get(cast(Any, key), f", steps={key}")
            call = f"vae.calibrate(x{arguments})"
            raise InputError(f"this posterior has no temperature yet: call {call} with validation data first")
        return self._gpin_temperatures[key]

    def _encode(
        self, x: Tensor, steps: int | None, tolerance: float | None, options: Mapping[str, Any] | None = None
    ) -> Distribution:
        """The posterior of the method, or that after natural-gradient steps."""
        if steps is None:
            return self.inference(x, self)
        with torch.no_grad():
            return self.inference.with_steps(x, self, steps, tolerance, **(options or {}))

    def forward(self, x: ArrayLike, y: Any = None) -> "Reconstruction":
        """E[x|z] at the posterior mean of z, and q(z|x); both are differentiable."""
        x = self.check(x, y)
        q = self.encode(x)
        return Reconstruction(self.likelihood.mean(self.decoder(self.given(x, q.mean))), q)

    def elbo(self, x: ArrayLike, samples: int = 1, *, y: Any = None) -> ELBO:
        """The evidence lower bound with its terms, each `(batch,)`; y are the conditions of x, see :meth:`check`.

        In training mode a likelihood with variance="analytic" updates its statistics with x.
        """
        return self.inference.elbo(self.check(x, y), self, whole_number(samples, "samples"))

    def loss(self, x: Tensor, samples: int = 1) -> Tensor:
        """The scalar that training minimises; for most methods the mean of −ELBO over the batch."""
        return self.inference.objective(x, self, samples)[0]

    @torch.no_grad()
    def log_likelihood(
        self,
        x: ArrayLike,
        samples: int | None = None,
        proposal: str | Distribution = "encoder",
        chunk_size: int = 512,
        *,
        y: Any = None,
        steps: int | None = None,
        tolerance: float | None = None,
        max_steps: int | None = None,
        return_weights: bool = False,
        estimator: str = "importance",
        temperatures: int | None = None,
        chains: int | None = None,
        start: str | None = None,
        leapfrog: int | None = None,
    ) -> LogLikelihood:
        """Estimates of log p(x), one per instance, with diagnostics.

        Arguments:
            x: `(batch, *shape)`, any number of instances.
            samples: K, the number of importance samples per instance, 100 by default.
            proposal: "encoder" samples from q(z|x); "refined" from the Gaussian that :meth:`refine` finds for
                each instance, which makes the estimate much less dependent on the encoder. Any other distribution needs
                batch shape `(batch,)` and event shape `(d,)`.
            chunk_size: How many pairs (x, z) are decoded at a time; changes memory, not results.
            y: The conditions of x, see :meth:`check`; for a conditional model only, whose log p(x|y) is estimated.
            steps: For proposal="encoder": the number of natural-gradient steps, see :meth:`encode`. For
                proposal="refined": the maximum number of Gauss–Newton steps, see :meth:`refine`.
            tolerance: The tolerance in nats, see :meth:`encode` or :meth:`refine`.
            max_steps: For proposal="encoder" with a tolerance: the maximum number of steps, see :meth:`encode`.
            return_weights: Keep the log weights `(samples, batch)` in the result, as `log_weights`.
            estimator: "importance" weights samples of a proposal. "annealed" moves chains from a start to the posterior
                by Hamiltonian Monte Carlo; it takes several hundred times as many gradients of the decoder, but is much
                closer to log p(x) where importance sampling is poor, see `gpin.evaluation.annealed`.
            temperatures: For the annealed estimator: the number of temperatures between start and posterior, 200 by
                default from a refined start and 1,000 from the prior. More bring the estimate closer to log p(x).
            chains: For the annealed estimator: the number of chains per instance, at least 2, by default 8.
            start: For the annealed estimator: "refined", a widened Gaussian from :meth:`refine` (the default; `steps`
                and `tolerance` are those of the refinement), or "prior".
            leapfrog: For the annealed estimator: the number of leapfrog steps, with one gradient of the decoder each,
                per temperature; 4 by default from a refined start and 10 from the prior.

        Example:
            >>> import gpin
            >>> vae, x = gpin.build((6,), "vae", latent_dim=2).eval(), torch.rand(3, 6)
            >>> found = vae.log_likelihood(x, estimator="annealed", temperatures=10, chains=4)
            >>> found.values.shape, found.annealing.acceptance.shape
            (torch.Size([3]), torch.Size([3]))
        """
        x, chunk_size = self.check(x, y), whole_number(chunk_size, "chunk_size")
        given = {"steps": steps, "tolerance": tolerance, "max_steps": max_steps}
        limits: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        chosen: dict[str, Any] = {"temperatures": temperatures, "chains": chains, "start": start, "leapfrog": leapfrog}
        if estimator == "annealed":
            if samples is not None or proposal != "encoder" or max_steps is not None:
                raise InputError(
                    "samples, proposal and max_steps apply to estimator='importance'; for estimator='annealed' choose "
                    "temperatures, chains, start and leapfrog"
                )
            paths = self._paths(x, AnnealingOptions.of(**chosen), chunk_size, limits)
            with differentiable(), evaluating(self):
                return LogLikelihood.join(path.lower(return_weights) for path in paths)
        if estimator != "importance":
            raise InputError(f"unknown estimator {estimator!r}: choose 'importance' or 'annealed'")
        if (extra := next((name for name, value in chosen.items() if value is not None), None)) is not None:
            raise InputError(f"{extra} applies to estimator='annealed' only")
        samples = whole_number(100 if samples is None else samples, "samples")
        if isinstance(proposal, Distribution):
            if limits:
                raise InputError(f"{next(iter(limits))} does not apply to a proposal that is given as a distribution")
            self._check_proposal(proposal, len(x))
            log_joint = partial(self._log_joint_in_parts, x, chunk_size)
            chunk = max(1, chunk_size // len(x))
            return importance_weighted(log_joint, proposal, samples, chunk, "given", return_weights)
        if proposal not in ("encoder", "refined"):
            raise InputError(f"unknown proposal {proposal!r}: choose 'encoder', 'refined' or a distribution over z")
        if proposal == "refined" and max_steps is not None:
            raise InputError("max_steps applies to proposal='encoder'; with proposal='refined' the maximum is steps")
        own = check_steps(steps, tolerance, max_steps) if proposal == "encoder" else (None, None)
        parts = []
        for batch in x.split(max(1, min(128, 2**20 // samples))):
            q = self._encode(batch, *own) if proposal == "encoder" else self.refine(batch, **limits)
            log_joint, chunk = partial(self.log_joint, batch), max(1, chunk_size // len(batch))
            parts.append(importance_weighted(log_joint, q, samples, chunk, proposal, return_weights))
        return LogLikelihood.join(parts)

    def _paths(
        self, x: Tensor, options: AnnealingOptions, chunk_size: int, limits: Mapping[str, Any] | None = None
    ) -> Iterator[Path]:
        """The annealing paths of batches of instances, one after the other; the model must be in evaluation mode."""
        x = x.clone() if x.is_inference() else x
        size = batch_size(self, x, self.latent_dim, options.chains, chunk_size)
        if options.start != "refined" and limits:
            raise InputError(f"{next(iter(limits))} applies to start='refined' only")
        for batch in x.split(size):
            if options.start == "refined":
                q = widened(self.refine(batch, **(limits or {})))
            else:
                q = standard_start(batch, self.latent_dim)
            yield Path(self, batch, q, options, chunk_size)

    @torch.no_grad()
    def sandwich(
        self,
        count: int = 10,
        *,
        y: Any = None,
        samples: int = 100,
        steps: Sequence[int] | None = None,
        temperatures: int | None = None,
        chains: int | None = None,
        start: str | None = None,
        leapfrog: int | None = None,
        chunk_size: int = 512,
    ) -> Sandwich:
        """Bounds of log p(x) from both sides, and by how much importance sampling is too low for this model.

        Instances are simulated from the model. Their z is an exact draw from the posterior, from which annealed chains
        run in reverse and give an upper bound of log p(x), in addition to the lower bound of
        `log_likelihood(x, estimator="annealed")` (bidirectional Monte Carlo, Grosse et al. 2015). Both hold in
        expectation. A narrow sandwich shows that the temperatures suffice, for this model and data like its own; real
        data can be harder.

        Arguments:
            count: The number of instances to simulate.
            y: Their conditions, see :meth:`check`; for a conditional model only.
            samples: The number of samples of the importance-weighted estimates that are compared with the bounds.
            steps: These estimates have proposals from the posterior of `encode(x)`, from the encoder after so many
                natural-gradient steps, for each entry, and refined ones. By default there is one such entry: 0 for a
                method that takes steps itself, and 1 for the others.
            temperatures: The number of temperatures, see :meth:`log_likelihood`.
            chains: The number of chains per instance and direction.
            start: "refined" or "prior".
            leapfrog: The number of leapfrog steps per temperature.
            chunk_size: How many pairs (x, z) are decoded at a time; changes memory, not results.

        Example:
            >>> import gpin
            >>> vae = gpin.build((6,), "vae", latent_dim=2).eval()
            >>> found = vae.sandwich(5, temperatures=10)
            >>> found.lower.shape, found.upper.shape, list(found.biases)
            (torch.Size([5]), torch.Size([5]), ['encoder', 'encoder, 1 step', 'refined'])
        """
        count, samples = whole_number(count, "count"), whole_number(samples, "samples")
        chunk_size = whole_number(chunk_size, "chunk_size")
        options = AnnealingOptions.of(temperatures, chains, start, leapfrog)
        proposals: dict[str, dict[str, Any]] = {"encoder": {}}
        for number in ((0,) if self.inference.takes_steps else (1,)) if steps is None else steps:
            taken, _ = check_steps(number, None, None)
            proposals[f"encoder, {taken} step{'' if taken == 1 else 's'}"] = {"steps": taken}
        proposals["refined"] = {"proposal": "refined"}
        with differentiable(), evaluating(self):
            x, z = self.simulate(count, self._numbers(y, count))
            others = {
                name: self.log_likelihood(x, samples, chunk_size=chunk_size, **how) for name, how in proposals.items()
            }
            bounds, done = [], 0
            for path in self._paths(self.check(x), options, chunk_size):
                bounds.append((path.lower(), path.upper(z[done : done + len(path.x)])))
                done += len(path.x)
            lower, upper = (LogLikelihood.join(part) for part in zip(*bounds, strict=True))
            return Sandwich(self.values(x), lower, upper, others)

    def _check_proposal(self, q: Distribution, count: int) -> None:
        wanted, actual = ((count,), (self.latent_dim,)), (tuple(q.batch_shape), tuple(q.event_shape))
        if actual != wanted:
            should, has = (f"batch shape {batch} and event shape {event}" for batch, event in (wanted, actual))
            hint = "; wrap it in torch.distributions.Independent" if actual == ((count, self.latent_dim), ()) else ""
            raise InputError(f"the proposal must have {should}, got {has}{hint}")
        if not q.has_rsample:
            raise InputError(
                f"the proposal must be a continuous distribution with reparametrised samples, got {type(q).__name__}"
            )

    def _log_joint_in_parts(self, x: Tensor, size: int, z: Tensor) -> Tensor:
        """log p(x, z) for z `(samples, batch, d)`, with `size` instances at a time."""
        pairs = zip(x.split(size), self._like_own(z).split(size, dim=1), strict=True)
        return torch.cat([self.log_joint(x_part, z_part) for x_part, z_part in pairs], dim=1)

    @torch.no_grad()
    def refine(
        self,
        x: ArrayLike,
        steps: int = 20,
        tolerance: float = 0.1,
        *,
        y: Any = None,
        gradients: int = QuasiNewtonConfig().gradients,
        calibrated: bool = False,
    ) -> PrecisionNormal:
        """A full-covariance Gaussian approximation of each instance's posterior, found by maximising log p(x, z) from
        the encoder's mean; no step lowers log p(x, z).

        A damped Gauss–Newton step, which linearises the decoder, is followed by quasi-Newton steps, which take one
        gradient of the decoder each and come close to the mode. More Gauss–Newton steps complete the search and yield
        the covariance.

        Arguments:
            x: `(batch, *shape)`.
            steps: The maximum number of Gauss–Newton steps that complete the search.
            tolerance: In nats. The quasi-Newton steps of an instance end when they predict that its log p(x, z) rises
                by no more than this, its Gauss–Newton steps when one has raised it by no more than this. 0.1 nats are
                little compared with the spread of log p(x, z) over draws of the posterior.
            y: The conditions of x, see :meth:`check`; for a conditional model only.
            gradients: The maximum number of quasi-Newton steps; 0 leaves the search to Gauss–Newton alone, of which
                `steps` is then the total number.
            calibrated: Multiply the covariance by the temperature that :meth:`calibrate` has found from simulations.
        """
        x = self.check(x, y)
        options = QuasiNewtonConfig(
            steps=whole_number(steps, "steps"),
            tolerance=positive_number(tolerance, "tolerance"),
            gradients=whole_number(gradients, "gradients", least=0),
        )
        temperature = self._temperature("refined") if calibrated else None
        refined = QuasiNewton(options)(x, self.inference(x, self), self)
        return refined if temperature is None else refined.tempered(temperature)

    @torch.no_grad()
    def posterior(
        self,
        x: ArrayLike,
        samples: int = 1000,
        *,
        y: Any = None,
        stages: str | Sequence[str] = STAGES[:3],
        least_ess: float | None = None,
        chunk_size: int = 512,
    ) -> PosteriorDraws:
        """Weighted draws from the posterior p(z|x) of each instance, from the cheapest proposal that serves it.

        The draws are importance-weighted. An instance passes a stage if the Pareto shape k̂ of its weights is at most
        0.7 and their effective sample size at least `least_ess`; only the instances that fail go on to the next stage.
        The result says for each instance where it ended, and whether it has passed there. An instance that fails
        everywhere keeps the draws with the highest estimate of log p(x).

        Arguments:
            x: `(batch, *shape)`, any number of instances.
            samples: The number of weighted draws per instance, at least 25.
            y: The conditions of x, see :meth:`check`; for a conditional model only.
            stages: The proposals to try, in this order, which is the budget: "encoder", q(z|x); "steps", q(z|x) after
                natural-gradient steps until 0.1 nats or less are left to gain, at most 20; "refined", the Gaussian of
                :meth:`refine`; "modes", the mixture of :meth:`modes` from 32 starts in 6 rounds; "annealed", the ends
                of annealed chains with 50 temperatures, see :meth:`log_likelihood`. The last two are tried on request
                only: "modes" refines an instance 32 times, and "annealed" takes 200 gradients of the decoder for each
                draw. Where there may be several modes, begin with one of these: draws from one mode can pass the test.
            least_ess: The least effective sample size; by default a tenth of `samples`.
            chunk_size: How many pairs (x, z) are decoded at a time; changes memory, not results.

        Example:
            >>> import gpin
            >>> vae, x = gpin.build((6,), "vae", latent_dim=2).eval(), torch.rand(3, 6)
            >>> draws = vae.posterior(x, samples=200)
            >>> draws.z.shape, draws.mean.shape, draws.resample(50).shape
            (torch.Size([200, 3, 2]), torch.Size([3, 2]), torch.Size([50, 3, 2]))
        """
        x, samples = self.check(x, y), whole_number(samples, "samples", least=25)
        chunk_size = whole_number(chunk_size, "chunk_size")
        stages = (stages,) if isinstance(stages, str) else tuple(stages)
        if not stages or len(set(stages)) < len(stages) or not set(stages) <= set(STAGES):
            known = ", ".join(map(repr, STAGES))
            raise InputError(f"stages must be one or more of {known}, each at most once, got {stages!r}")
        least_ess = samples / 10 if least_ess is None else positive_number(least_ess, "least_ess")
        if least_ess > samples:
            raise InputError(f"least_ess must be at most the number of samples, {samples}, got {least_ess:g}")

        def drawn_from(propose: Callable[[Tensor], Distribution]) -> Proposal:
            def draw(batch: Tensor) -> tuple[Tensor, Tensor]:
                chunk = max(1, chunk_size // len(batch))
                return importance_draws(partial(self.log_joint, batch), propose(batch), samples, chunk)

            return draw

        def annealed(batch: Tensor) -> tuple[Tensor, Tensor]:
            options = AnnealingOptions.of(temperatures=ANNEALED, chains=samples)
            parts = [path.draws() for path in self._paths(batch, options, chunk_size)]
            z, log_weights = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
            return z, log_weights

        proposals: dict[str, Proposal] = {
            "encoder": drawn_from(lambda batch: self._encode(batch, None, None)),
            "steps": drawn_from(lambda batch: self._encode(batch, MAX_STEPS, STEPS_TOLERANCE)),
            "refined": drawn_from(self.refine),
            "modes": drawn_from(partial(self.modes, starts=MANY_STARTS, rounds=ROUNDS)),
            "annealed": annealed,
        }
        chosen = {name: proposals[name] for name in stages}
        with differentiable(), evaluating(self):
            x = x.clone() if x.is_inference() else x
            size = max(1, min(BATCH, 2**20 // samples))
            return PosteriorDraws.join(escalated(batch, chosen, least_ess) for batch in x.split(size))

    @torch.no_grad()
    def coverage(
        self,
        data: int | ArrayLike | tuple[ArrayLike, ArrayLike] = 1000,
        posterior: str | Callable[[Tensor], Draws] = "encoder",
        *,
        y: Any = None,
        steps: int | None = None,
        samples: int = 199,
        calibrated: bool = False,
        seed: int = 0,
    ) -> Coverage:
        """How often the intervals of a posterior contain the true z, by simulation-based calibration.

        Pairs (z, x) are simulated from the model, and the true z is ranked among draws of the posterior, in each latent
        dimension; see `gpin.evaluation.calibration`.

        Arguments:
            data: The number of instances to simulate, at least 50; or instances x `(n, *shape)`; or x together with
                draws z `(n, d)` from their posteriors. For x alone, the true z is replaced by a draw of
                :meth:`posterior` from refined proposals, so that the result is as reliable as this draw.
            posterior: "encoder", q(z|x); "refined", the Gaussian of :meth:`refine`; "resampled", draws of
                :meth:`posterior`; or a function x `(batch, *shape)` → a distribution over z, or draws of one,
                `(samples, batch, d)`.
            y: The conditions of the instances, see :meth:`check`; for a conditional model only, with which a function
                is called with joined rows in place of x.
            steps: For "encoder": the number of natural-gradient steps, see :meth:`encode`.
            samples: The number of draws of the posterior among which the true z is ranked.
            calibrated: Use the temperature of the posterior, see :meth:`calibrate`.
            seed: The seed of all noise; torch's global random state is left unchanged. The simulations of a seed are
                the same for all posteriors.

        Example:
            >>> import gpin
            >>> vae = gpin.build((6,), "vae", latent_dim=2).eval()
            >>> found = vae.coverage(200)
            >>> found.per_dimension(0.8).shape, found.p_values.shape, found.histogram(10).shape
            (torch.Size([2]), torch.Size([2]), torch.Size([10, 2]))
        """
        samples = whole_number(samples, "samples")
        choices: dict[str, Callable[[Tensor], Draws]] = {
            "encoder": partial(self.encode, steps=steps, calibrated=calibrated),
            "refined": partial(self.refine, calibrated=calibrated),
            "resampled": lambda x: self.posterior(x).resample(samples),
        }
        if not callable(posterior) and (not isinstance(posterior, str) or posterior not in choices):
            known = ", ".join(map(repr, choices))
            raise InputError(f"unknown posterior {posterior!r}: choose {known} or a function of x")
        if steps is not None and posterior != "encoder":
            raise InputError("steps applies to posterior='encoder' only")
        if calibrated and posterior not in ("encoder", "refined"):
            raise InputError("calibrated applies to posterior='encoder' or 'refined' only")
        taken = "" if steps is None else f", {steps} step{'' if steps == 1 else 's'}"
        name = "given" if callable(posterior) else f"{posterior}{taken}{', calibrated' if calibrated else ''}"
        function = posterior if callable(posterior) else choices[posterior]
        with differentiable(), evaluating(self), seeded(check_seed(seed)):
            return coverage_of(function, *self._pairs(data, y), samples, name)

    def _pairs(self, data: int | ArrayLike | tuple[ArrayLike, ArrayLike], y: Any) -> tuple[Tensor, Tensor]:
        """x `(n, *shape)` and draws z `(n, d)` from their posteriors, see :meth:`coverage`."""
        if not isinstance(data, Tensor | np.ndarray | tuple):
            count = whole_number(data, "data", least=LEAST_SIMULATED)
            return simulated_pairs(self, count, self._numbers(y, count))
        x = self.check(data[0] if isinstance(data, tuple) else data, y)
        x = x.clone() if x.is_inference() else x
        if len(x) < LEAST_SIMULATED:
            raise InputError(f"coverage needs at least {LEAST_SIMULATED} instances, got {len(x)}")
        if not isinstance(data, tuple):
            return x, self.posterior(x, stages="refined").resample(1)[0]
        if len(data) != 2 or as_tensor(data[1], "z").shape != (len(x), self.latent_dim):
            raise InputError(f"data must be x, or x and z of shape ({len(x)}, {self.latent_dim})")
        return x, self._like_own(as_tensor(data[1], "z"))

    @torch.no_grad()
    def modes(
        self,
        x: ArrayLike,
        starts: int = 16,
        rounds: int = 0,
        *,
        y: Any = None,
        draws: int = 4000,
        steps: int = 20,
        tolerance: float = 0.1,
        gradients: int = QuasiNewtonConfig().gradients,
    ) -> PrecisionMixture:
        """A mixture of full-covariance Gaussians for the posterior of each instance, which may have several modes.

        :meth:`refine` climbs from the encoder's mean to one mode. Here more searches start from draws of the prior, so
        that modes are found which the encoder does not know of; each end is weighted by the mass that its Gaussian
        claims, and ends at the same mode share its weight. The cost is that of `starts` refinements. Rounds of adaptive
        importance sampling then fit the mixture to what is not Gaussian. The mixture is a proposal for
        :meth:`log_likelihood`.

        Arguments:
            x: `(batch, *shape)`.
            starts: The number of searches for each instance, the one from the encoder's mean included.
            rounds: The number of rounds of adaptive importance sampling, such as 6; each decodes `draws` samples of the
                mixture per instance and moves its weights, means and covariances by a step of the EM algorithm.
            y: The conditions of x, see :meth:`check`; for a conditional model only.
            draws: The number of samples per instance and round; more are needed in more latent dimensions.
            steps: As in :meth:`refine`, like `tolerance` and `gradients`.
            tolerance: See `steps`.
            gradients: See `steps`.

        Example:
            >>> import gpin
            >>> vae, x = gpin.build((6,), "vae", latent_dim=2).eval(), torch.rand(3, 6)
            >>> q = vae.modes(x, starts=4)
            >>> q.log_weights.shape, vae.log_likelihood(x, 50, q).values.shape
            (torch.Size([3, 4]), torch.Size([3]))
        """
        x = self.check(x, y)
        options = ModesConfig(
            starts=whole_number(starts, "starts"),
            rounds=whole_number(rounds, "rounds", least=0),
            draws=whole_number(draws, "draws"),
            steps=whole_number(steps, "steps"),
            tolerance=positive_number(tolerance, "tolerance"),
            gradients=whole_number(gradients, "gradients", least=0),
        )
        return Modes(options)(x, self.inference(x, self), self)

    @torch.no_grad()
    def gap(
        self,
        x: ArrayLike,
        how: str = "estimated",
        *,
        y: Any = None,
        steps: int | None = None,
        samples: int | None = None,
    ) -> Gap:
        """The amortization gap of each instance in nats: how far q(z|x) is from the best that refinement finds.

        Arguments:
            x: `(batch, *shape)`, any number of instances.
            how: "predicted" needs only the encoder, but a calibrated model. "estimated" takes one gradient of the
                decoder: it is the Newton decrement or, if the model is calibrated, a regression on it and other
                features. "refined" refines each instance: it is the ELBO of the refined posterior minus that of q(z|x).
            y: The conditions of x, see :meth:`check`; for a conditional model only.
            steps: The number of natural-gradient steps after which the gap is determined, see :meth:`encode`; by
                default it is the gap of the posterior that `encode(x)` returns.
            samples: For how="refined": the number of samples for each ELBO, 100 by default.

        `gpin.fit` calibrates a model with its training and validation data, and :meth:`calibrate` with any data. The
        predicted and the estimated gap of a calibrated model have intervals that cover the refined gap of about 80 % of
        all instances; they include the noise with which calibration measures it. Without calibration, the estimated gap
        is the Newton decrement itself, without intervals.

        Example:
            >>> import gpin
            >>> vae, x = gpin.build((6,), "vae", latent_dim=2).eval(), torch.rand(100, 6)
            >>> vae.calibrate(x)
            >>> found = vae.gap(x, how="predicted")
            >>> found.values.shape, found.low.shape, found.high.shape
            (torch.Size([100]), torch.Size([100]), torch.Size([100]))
        """
        x = self.check(x, y)
        if samples is not None and how != "refined":
            raise InputError("samples applies to how='refined' only")
        samples = whole_number(100 if samples is None else samples, "samples")
        steps = self._own_if_equal(check_steps(steps, None, None)[0])
        self.check_gap(how, steps)
        calibration, parts = self._gpin_calibrations.get(steps), []
        with differentiable(), evaluating(self):
            for batch in (x.clone() if x.is_inference() else x).split(BATCH):
                if how == "predicted" and calibration is not None:
                    parts.append(calibration.predict(self.inference.features(batch, self), how))
                elif how == "estimated" and calibration is not None:
                    features, estimates = self._gap_features(batch, steps)
                    parts.append(calibration.estimate(estimates, features, how))
                else:
                    q = self._encode(batch, steps, None)
                    if how == "refined":
                        values = refined_gap(self, batch, q, self.refine(batch), samples)
                    else:
                        values = decrement(self, batch, q, self.inference.draws).double()
                    parts.append(Gap.without_interval(values, how))
        return Gap.join(parts)

    def check_gap(self, how: str, steps: int | None = None) -> None:
        """Raise InputError if :meth:`gap` cannot determine the gap in this way."""
        if how not in HOW:
            raise InputError(f"unknown how {how!r}: choose 'predicted', 'estimated' or 'refined'")
        if how == "predicted" and steps not in self._gpin_calibrations:
            call = "vae.calibrate(x)" if steps is None else f"vae.calibrate(x, steps={steps})"
            raise InputError(f"the gap can be predicted only after calibration: call {call} with validation data first")

    @torch.no_grad()
    def gaps(
        self,
        x: ArrayLike,
        *,
        y: Any = None,
        steps: int | None = None,
        samples: int = 100,
        temperatures: int | None = None,
        chains: int | None = None,
        start: str | None = None,
        leapfrog: int | None = None,
        chunk_size: int = 512,
    ) -> Gaps:
        """The inference gap of each instance in nats, split into amortization and approximation gap.

        The inference gap log p(x) − ELBO(q) is the sum of the amortization gap ELBO(q*) − ELBO(q) and the approximation
        gap log p(x) − ELBO(q*). Here log p(x) is the annealed estimate of :meth:`log_likelihood`, and q* is the
        full-covariance Gaussian of :meth:`refine`, for every method. It stands for the best member of a method's
        family, of which it may not be a member; see `gpin.evaluation.gaps` for the consequences.

        Arguments:
            x: `(batch, *shape)`, any number of instances.
            y: The conditions of x, see :meth:`check`; for a conditional model only.
            steps: The number of natural-gradient steps after which the gaps are determined, see :meth:`encode`; by
                default they are those of the posterior that `encode(x)` returns.
            samples: The number of samples for each ELBO.
            temperatures: The number of temperatures of the annealed estimate, see :meth:`log_likelihood`.
            chains: Its number of chains per instance.
            start: Where its chains start, "refined" or "prior".
            leapfrog: Its number of leapfrog steps per temperature.
            chunk_size: How many pairs (x, z) are decoded at a time; changes memory, not results.

        Example:
            >>> import gpin
            >>> vae, x = gpin.build((6,), "vae", latent_dim=2).eval(), torch.rand(3, 6)
            >>> found = vae.gaps(x, temperatures=10)
            >>> torch.allclose(found.inference, found.amortization + found.approximation)
            True
        """
        x, samples = self.check(x, y), whole_number(samples, "samples")
        options = AnnealingOptions.of(temperatures, chains, start, leapfrog)
        chunk_size = whole_number(chunk_size, "chunk_size")
        taken, _ = check_steps(steps, None, None)
        parts = []
        with differentiable(), evaluating(self):
            for path in self._paths(x, options, chunk_size):
                evidence = path.lower()
                posteriors = (self.refine(path.x), self._encode(path.x, taken, None))
                best, own = (posterior_elbo(self, path.x, q, samples) for q in posteriors)
                parts.append(Gaps.of(evidence.values, best, own, evidence))
        return Gaps.join(parts)

    @torch.no_grad()
    def calibrate(
        self,
        x: ArrayLike,
        *,
        y: Any = None,
        training: ArrayLike | Iterable[Any] | None = None,
        steps: int | None = None,
        refined: int = 500,
        samples: int = 20,
        simulations: int = 0,
        seed: int = 0,
    ) -> None:
        """Calibrate :meth:`gap` and the covariance of q(z|x) with data that was not used in training; `gpin.fit` does
        so with its validation data, and passes its training data on as `training`.

        The gaps of some instances are measured by refinement. Regressions of the gap, on features of the encoder and on
        what a gradient of the decoder shows, then give the predicted and the estimated gap, see
        `gpin.evaluation.gap_prediction`.

        The covariance gets a temperature τ, with which 80 % intervals of N(m, τΣ) cover 80 %, see
        `gpin.evaluation.calibration`. It is used on request only: `vae.encode(x, calibrated=True)`. It is fitted to
        draws from the posteriors of the refined instances, by importance resampling from their refined Gaussians; or to
        simulations from the model, whose true z is known, but on which an encoder can be much worse than on data.

        The calibration is saved with the model. It is removed when `gpin.fit` or :meth:`load_state_dict` replaces the
        weights.

        Arguments:
            x: `(batch, *shape)`, at least 50 instances. At most 1,000 of them, evenly spaced, are used.
            y: The conditions of x, see :meth:`check`; for a conditional model only.
            training: At least 2,000 instances of the training data, or batches of them, such as a DataLoader, of which
                the first 10,000 instances are used. A network learns from their estimated gaps; it improves the
                predicted gap and, as a further feature, the estimated one. The rows of a conditional model carry their
                conditions. Without them, what an earlier calibration with this number of steps has learnt from training
                data is kept.
            steps: The number of natural-gradient steps after which the gap is determined, see :meth:`gap`.
            refined: The largest number of instances to refine, at least 50.
            samples: The number of samples for each ELBO of a refined instance, and of its weighted draws.
            simulations: Fit the temperatures to this many simulations, at least 50, instead of x, and also that of the
                refined posterior, for `vae.refine(x, calibrated=True)`; 0 for none.
            seed: The seed of all noise; torch's global random state is left unchanged.
        """
        x, samples, refined = (
            self.check(x, y),
            whole_number(samples, "samples"),
            whole_number(refined, "refined", LEAST),
        )
        steps = self._own_if_equal(check_steps(steps, None, None)[0])
        if simulations := whole_number(simulations, "simulations", least=0):
            whole_number(simulations, "simulations", least=LEAST_SIMULATED)
        check_count(len(x))
        x = x[evenly_spaced(len(x), MOST).to(x.device)]
        chosen = evenly_spaced(len(x), refined)
        known, gaps, ranks = self._gpin_calibrations.get(steps), [], []
        with differentiable(), evaluating(self):
            seen = None if training is None else self._training_features(training, steps)
        with differentiable(), evaluating(self), seeded(check_seed(seed)):
            x = x.clone() if x.is_inference() else x
            for number, batch in enumerate(x[chosen.to(x.device)].split(BATCH)):
                q, best = self._encode(batch, steps, None), self.refine(batch)
                gaps.append(refined_gap(self, batch, q, best, samples))
                with seeded(seed + number):  # so that the gaps do not depend on this noise
                    ranks.append(ranked(self._draw(batch, best, samples), q, RANKED))
            found: dict[int | str | None, Coverage] = {steps: Coverage.of(ranks)}
            if simulations:
                c = None if self.condition is None else parted(x, self.shape)[1]
                rows = torch.arange(simulations, device=x.device) % len(x)
                pairs = simulated_pairs(self, simulations, None if c is None else c[rows])
                posteriors: dict[int | str | None, Callable[[Tensor], Draws]]
                posteriors = {steps: partial(self.encode, steps=steps), "refined": self.refine}
                found = {key: coverage_of(posterior, *pairs, RANKED) for key, posterior in posteriors.items()}
            own, network = self._gap_features(x, steps), None if known is None else known.network
            calibration = Calibration.fit(*own, chosen, torch.cat(gaps), seen, network)
        temperatures = {key: coverage.temperature for key, coverage in found.items()}
        self._gpin_calibrations = {**self._gpin_calibrations, steps: calibration}
        self._gpin_temperatures = {**self._gpin_temperatures, **temperatures}

    def _gap_features(self, x: Tensor, steps: int | None) -> tuple[Tensor, Tensor]:
        """The features of the encoder, and those of the estimated gap after some steps, each `(n, features)`."""
        features, estimates = [], []
        for part in x.split(BATCH):
            q = self._encode(part, steps, None)
            features.append(self.inference.features(part, self))
            estimates.append(estimate_features(self, part, q, self.inference.draws))
        return torch.cat(features), torch.cat(estimates)

    def _training_features(self, training: ArrayLike | Iterable[Any], steps: int | None) -> tuple[Tensor, Tensor]:
        """The same features of the first instances of training data, at most `MOST_TRAINING`."""
        batches = [training] if isinstance(training, Tensor | np.ndarray) else training
        if not isinstance(batches, Iterable):
            raise InputError(f"training must be a tensor, an array or batches of them, got {type(training).__name__}")
        parts, left = [], MOST_TRAINING
        for batch in batches:
            x = batch[0] if isinstance(batch, tuple | list) else batch
            if len(x) and left:
                parts.append(self._gap_features(self.check(x)[:left], steps))
                left -= len(parts[-1][0])
            if not left:
                break
        if (count := MOST_TRAINING - left) < LEAST_TRAINING:
            raise InputError(f"training must have at least {LEAST_TRAINING:,} instances, got {count:,}")
        features, estimates = zip(*parts, strict=True)
        return torch.cat(features), torch.cat(estimates)

    def _draw(self, x: Tensor, q: Distribution, samples: int) -> Tensor:
        """One draw from the posterior of each instance, `(batch, d)`, by importance resampling from q."""
        z, log_weights = importance_draws(partial(self.log_joint, x), q, samples, max(1, PAIRS // len(x)))
        return resampled(z, log_weights, 1)[0]

    @property
    def calibrations(self) -> Calibrations:
        """The calibrations of :meth:`gap` by the number of steps; None stands for the posterior of `encode(x)`."""
        return self._gpin_calibrations

    @property
    def temperatures(self) -> Temperatures:
        """The temperatures of q(z|x) by the number of steps, as in :attr:`calibrations`; "refined" stands for the
        posterior of `refine(x)`."""
        return self._gpin_temperatures

    @property
    def calibrated(self) -> bool:
        """Whether :meth:`gap` is calibrated for the posterior that `encode(x)` returns."""
        return None in self._gpin_calibrations

    @torch.no_grad()
    def uncertainty(self, x: ArrayLike, *, y: Any = None) -> Uncertainty:
        """The uncertainty of the encoder about its own answer; only for methods that have one (`gp`)."""
        return self.inference.uncertainty(self.check(x, y))

    @torch.no_grad()
    def decode(self, z: ArrayLike, *, y: Any = None) -> Tensor:
        """E[x|z]: `(..., d)` → `(..., *shape)`; y are the conditions of a batch `(..., batch, d)`, or one for all."""
        z = self._like_own(as_tensor(z, "z"))
        if z.shape[-1:] != (self.latent_dim,):
            raise InputError(f"z must end in latent_dim={self.latent_dim}, got shape {tuple(z.shape)}")
        c = self._numbers(y, z.shape[-2] if z.dim() > 1 else 1)
        return self._mean_at(z if c is None else beside(z, c if z.dim() > 1 else c[0]))

    def _mean_at(self, z: Tensor) -> Tensor:
        """E[x|z], where z has the condition beside it for a conditional model."""
        if not z.isfinite().all():
            raise InputError("z must be finite, got NaN or infinite values")
        return self.likelihood.mean(self.decoder(z))

    @torch.no_grad()
    def reconstruct(self, x: ArrayLike, *, y: Any = None) -> Tensor:
        """E[x|z] at the posterior mean of z, `(batch, *shape)`; y are the conditions of x, see :meth:`check`."""
        x = self.check(x, y)
        return self._mean_given(x, self.encode(x).mean)

    def _mean_given(self, x: Tensor, z: Tensor) -> Tensor:
        """E[x|z] with the conditions of the rows x, if they carry any: z `(..., batch, d)` → `(..., batch, *shape)`."""
        return self._mean_at(self.given(x, z))

    @torch.no_grad()
    def impute(
        self,
        x: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        y: Any = None,
        samples: int = 200,
        proposal: Literal["encoder", "refined"] = "refined",
        chunk_size: int = 512,
    ) -> Tensor:
        """x with its missing values replaced by their expectations given the observed ones, `(batch, *shape)`.

        They are means of E[x|z] over the posterior of z given the observed values, see `gpin.evaluation.imputation`.
        Those of a categorical column are the probabilities of its levels. Observed values are returned unchanged. This
        also works with a model that was trained on complete data, whose encoder then sees E[x|z = 0] in place of a
        missing value.

        Arguments:
            x: `(batch, *shape)`, any number of instances; NaN stands for a missing value.
            mask: True where a value of x is missing, `(batch, *shape)` or `shape`, in addition to NaN.
            y: The conditions of x, see :meth:`check`; for a conditional model only.
            samples: The number of draws from the posterior of each instance.
            proposal: "refined" weights draws from the Gaussian of :meth:`refine`; "encoder" those from q(z|x), which is
                faster and less accurate.
            chunk_size: How many pairs (x, z) are decoded at a time; changes memory, not results.

        Example:
            >>> import gpin
            >>> vae, x = gpin.build((3,), "vae", latent_dim=2).eval(), torch.tensor([[0.5, torch.nan, 1.0]])
            >>> vae.impute(x).isfinite()
            tensor([[True, True, True]])
        """
        samples, chunk_size = whole_number(samples, "samples"), whole_number(chunk_size, "chunk_size")
        if proposal not in ("encoder", "refined"):
            raise InputError(f"unknown proposal {proposal!r}: choose 'encoder' or 'refined'")
        holes = with_missing(as_tensor(x, "x"), None if mask is None else as_tensor(mask, "the mask"))
        x = self.check(holes, y, missing=True)
        parts = []
        with differentiable(), evaluating(self):
            x = x.clone() if x.is_inference() else x
            for batch in x.split(max(1, min(BATCH, 2**20 // samples))):
                values, start = self.values(batch), batch
                if not self.missing:
                    likely = self._mean_given(batch, batch.new_zeros(len(batch), self.latent_dim))
                    start = self.with_values(batch, values.where(~values.isnan(), likely))
                q = self.inference(start, self)
                q = QuasiNewton()(batch, q, self) if proposal == "refined" else q
                found = expected_values(
                    partial(self._mean_given, batch),
                    partial(self.log_joint, batch),
                    q,
                    samples,
                    max(1, chunk_size // len(batch)),
                )
                parts.append(found.where(values.isnan(), values))
        return torch.cat(parts)

    @overload
    def sample(
        self, count: int, noise: bool = False, *, y: Any = None, return_latents: Literal[False] = False
    ) -> Tensor: ...

    @overload
    def sample(
        self, count: int, noise: bool = False, *, y: Any = None, return_latents: Literal[True]
    ) -> tuple[Tensor, Tensor]: ...

    @torch.no_grad()
    def sample(
        self, count: int, noise: bool = False, *, y: Any = None, return_latents: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`count` draws from the model, `(count, *shape)`.

        Arguments:
            count: The number of draws.
            noise: Draw x from p(x|z) instead of returning E[x|z].
            y: For a conditional model only: one condition per draw, or one for all, see :meth:`check`.
            return_latents: Return the draws together with their z, `(count, d)`.
        """
        count = whole_number(count, "count")
        x, z = self._generate(count, noise, self._numbers(y, count))
        return (x, z) if return_latents else x

    @torch.no_grad()
    def simulate(self, count: int, c: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`count` draws x from p(x|z), with their z `(count, d)`, for simulation studies.

        Arguments:
            count: The number of draws.
            c: For a conditional model, the numbers of their conditions, `(count, C)`; the rows of x then carry them,
                see `gpin.conditions`.
        """
        x, z = self._generate(count, True, c)
        return x if c is None else joined(x, c), z

    def _generate(self, count: int, noise: bool, c: Tensor | None) -> tuple[Tensor, Tensor]:
        like = next(self.parameters())
        z = torch.randn(count, self.latent_dim, dtype=like.dtype, device=like.device)
        output = self.decoder(z if c is None else beside(z, c))
        return self.likelihood.sample(output) if noise else self.likelihood.mean(output), z

    # Before training ------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(self, x: ArrayLike | Iterable[Tensor], y: Any = None) -> None:
        """Initialise the model from the training data, given as one array or in batches; `gpin.fit` calls this.

        The batches of a conditional model are joined rows; an array may have its conditions as y.

        Sets the centres of the networks and the initial variance of the likelihood, unless that was done before, and
        passes a batch and the number of training points to the inference model.
        """
        batches = [self.check(x, y)] if isinstance(x, Tensor | np.ndarray) else x
        first: Tensor | None = None
        total = squares = torch.zeros((), dtype=torch.float64)
        count, counts = 0, torch.zeros((), dtype=torch.float64)
        if isinstance(batches, str) or not isinstance(batches, Iterable):
            raise InputError(f"x must be a tensor, an array or batches of them, got {type(x).__name__}")
        for batch in map(self.check, batches):
            first = batch[:1024] if first is None else first
            values = self.values(batch).double()
            observed = ~values.isnan()
            values = values.where(observed, 0.0)
            total = total + values.sum(0)
            squares = squares + values.square().sum(0)
            count, counts = count + len(batch), counts + observed.sum(0)
        if first is None:
            raise InputError("the training data is empty")
        if not self.prepared:
            counts = counts.clamp(min=1)
            mean = total / counts
            spread = (squares / counts - mean.square()).clamp(min=0)
            self._center(mean, self.likelihood.center(mean, spread))
            self.likelihood.prepare(spread)
            self.prepared.fill_(True)
        self.inference.prepare(first, count, self)

    def _center(self, mean: Tensor, output: Tensor | None) -> None:
        """Set the centres of x and of the decoder's output in the networks that have them; a network that has one
        takes care of its own parts."""
        pending = list(self.children())
        while pending:
            module = pending.pop()
            center_input, center_output = (getattr(module, f"center_{side}", None) for side in ("input", "output"))
            if center_input is not None:
                center_input(mean)
            if center_output is not None and output is not None:
                center_output(output)
            if center_input is None and center_output is None:
                pending += module.children()

    def start_from(self, trained: "VAE") -> "VAE":
        """Warm start: copy the decoder, the likelihood and the usable parts of the encoder from a trained VAE."""
        if not isinstance(trained, VAE):
            raise InputError(f"a warm start needs a trained gpin.VAE, got {type(trained).__name__}")
        if self.likelihood.options != trained.likelihood.options:
            raise InputError("cannot start from a VAE with another likelihood: give both the same likelihood options")
        if self.condition != trained.condition:
            raise InputError("cannot start from a VAE with another condition: give both the same condition, or none")
        self.inference.start_from(trained.inference)
        try:
            self.decoder.load_state_dict(trained.decoder.state_dict())
            self.likelihood.load_state_dict(trained.likelihood.state_dict())
        except RuntimeError:
            raise InputError("cannot start from a VAE with another data shape or architecture") from None
        self.prepared.copy_(trained.prepared)
        self._gpin_calibrations, self._gpin_temperatures = {}, {}
        return self

    def parameter_groups(self, learning_rate: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser.

        A module's `learning_rate_factors` multiply the learning rates of its own parameters, up to its `fastest`; they
        never lower a rate. Weight decay applies to parameters with two or more dimensions, such as the weights of
        layers but not their biases, and to none of a module whose `weight_decays` is False.
        """
        groups: dict[tuple[float, float], list[nn.Parameter]] = {(learning_rate, weight_decay): []}
        modules = [module for module in self.modules() if not getattr(module, "weight_decays", True)]
        exempt = {parameter for module in modules for parameter in module.parameters()}
        known: set[nn.Parameter] = set()  # modules may share a parameter
        for module in self.modules():
            factors, fastest = getattr(module, "learning_rate_factors", {}), getattr(module, "fastest", math.inf)
            for name, parameter in module.named_parameters(recurse=False):
                if parameter in known:
                    continue
                known.add(parameter)
                rate = max(learning_rate, min(factors.get(name, 1.0) * learning_rate, fastest))
                decay = weight_decay if parameter.dim() > 1 and parameter not in exempt else 0.0
                groups.setdefault((rate, decay), []).append(parameter)
        return [
            {"params": params, "lr": rate, "weight_decay": decay} for (rate, decay), params in groups.items() if params
        ]

    def check(self, x: ArrayLike, y: Any = None, *, missing: bool | None = None) -> Tensor:
        """Convert x to a tensor of the model's dtype and device; invalid data raises InputError.

        Arguments:
            x: `(batch, *shape)`.
            y: For a conditional model only: the conditions of x, one value per instance or one for all. For several
                columns it is a mapping from their names to such values, a data frame, or an array `(batch, columns)`.
            missing: Whether NaN may stand for a missing value; by default as the model was built.

        Returns:
            x or, for a conditional model, joined rows `(batch, D + C)`, which are accepted in place of x and y.
        """
        x = as_tensor(x, "x")
        if self.condition is not None and y is None and x.shape[1:] == (self._joined_size,):
            return self._checked_rows(x, missing)
        c = self._numbers(y, len(x))
        x = self._checked_values(x, missing)
        return x if c is None else joined(x, c)

    @property
    def _joined_size(self) -> int:
        """D + C, the number of entries of a row that carries its condition."""
        return math.prod(self.shape) + (0 if self.condition is None else self.condition.width)

    def _checked_rows(self, x: Tensor, missing: bool | None) -> Tensor:
        """Joined rows, as :meth:`check` returns them."""
        values, c = parted(x, self.shape)
        if not torch.isfinite(c).all():
            raise InputError("the conditions of joined rows must be finite, got NaN or infinite values")
        self._checked_values(values, missing)
        return self._like_own(x)

    def conditions(self, y: Any, count: int) -> Tensor:
        """The numbers c of the conditions of `count` instances, `(count, C)`, see `gpin.conditions`."""
        if self.condition is None:
            raise InputError("this model has no condition: leave out y, or build a model with given=y")
        if y is None:
            raise InputError(f"this model is conditional on {self.condition}: give the conditions as y")
        return self._like_own(self.condition.numbers(y, count))

    def _numbers(self, y: Any, count: int) -> Tensor | None:
        """The numbers of conditions y, or None for a model without a condition."""
        return None if self.condition is None and y is None else self.conditions(y, count)

    def _checked_values(self, x: Tensor, missing: bool | None) -> Tensor:
        """Values `(batch, *shape)`, as :meth:`check` returns them."""
        wanted = "(batch, " + ", ".join(map(str, self.shape)) + ")"
        if x.dim() != len(self.shape) + 1 or tuple(x.shape[1:]) != self.shape:
            hint = ": one instance still needs a batch dimension, x[None]" if tuple(x.shape) == self.shape else ""
            raise InputError(f"x must have shape {wanted}, got {tuple(x.shape)}{hint}")
        if len(x) == 0:
            raise InputError(f"x is an empty batch: shape {tuple(x.shape)}, expected at least one instance")
        if self.likelihood.density:
            warn_of_bytes(x)
        x = self._like_own(x)
        # Checking the sum is ten times cheaper, and only finite numbers have a finite sum.
        if not torch.isfinite(x.sum()):
            self._check_finite(x, self.missing if missing is None else missing)
        self.likelihood.check(x)
        return x

    def _check_finite(self, x: Tensor, missing: bool) -> None:
        """Raise InputError if a value of x is infinite, or if it is NaN and must not be."""
        unfit = ~(torch.isfinite(x) | x.isnan()) if missing and self.likelihood.missing else ~torch.isfinite(x)
        if not unfit.any():
            return
        bad = unfit.flatten(1).any(1).nonzero().flatten().tolist()
        if missing and not self.likelihood.missing:
            hint = f"; the likelihood {self.likelihood.name!r} does not allow for missing values"
        else:
            hint = "" if missing else "; if NaN stands for missing values, build the model with missing=True"
            hint = hint if x.isnan().any() else ""
        raise InputError(
            f"x has NaN or infinite values in {len(bad)} of {len(x)} instances (the first is number {bad[0]}){hint}"
        )

    def _like_own(self, tensor: Tensor) -> Tensor:
        like = next(self.parameters())
        return tensor.to(device=like.device, dtype=like.dtype)

    def move(self, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None) -> None:
        """Move the model to a device and convert it to a precision; None leaves either unchanged."""
        self.to(device=None if device is None else device_named(device), dtype=as_dtype(dtype))

    # Files ----------------------------------------------------------------------------------------

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Replace the weights, as for any module, and remove the calibrations of :meth:`calibrate`."""
        result = super().load_state_dict(*arguments, **options)
        self._gpin_calibrations, self._gpin_temperatures = {}, {}
        return result

    def packed(self) -> bytes:
        """The weights in the safetensors format."""
        return pack_tensors(self.state_dict())

    def checksum(self) -> str:
        """The sha256 of the weights, as in the `config.json` of a saved model."""
        return hashlib.sha256(self.packed()).hexdigest()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `config.json`, `model.safetensors` and, after :meth:`calibrate`, `calibration.safetensors`.

        The files contain no executable code.
        """
        folder = as_path(folder)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"cannot save to {folder}: it is a file and not a folder")
        folder.mkdir(parents=True, exist_ok=True)
        weights = self.packed()
        config = None if self.config is None else self.config.model_dump(mode="json")
        record = {
            "config": config,
            "dtype": str(next(self.parameters()).dtype).removeprefix("torch."),
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
        }
        if self._gpin_calibrations:
            calibrations = pack_calibrations(self._gpin_calibrations, self._gpin_temperatures)
            record["calibration_sha256"] = hashlib.sha256(calibrations).hexdigest()
            write_whole(folder / "calibration.safetensors", calibrations)
        write_whole(folder / "model.safetensors", weights)
        write_record(folder / "config.json", FORMAT, VERSION, record)
