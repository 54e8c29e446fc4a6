"""How well a run's model explains data: log-likelihood with its diagnostics, bits per dimension, and the ELBO."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gpin._core.devices import device_named
from gpin._core.errors import InputError
from gpin._core.inputs import check_seed, whole_number
from gpin._core.messages import Tell, to_stderr
from gpin._core.seeding import seeded
from gpin.data import Rows
from gpin.evaluation.annealed import AnnealingOptions, Sandwich
from gpin.evaluation.importance import LogLikelihood
from gpin.evaluation.reliability import Bias, caution, share_above
from gpin.evaluation.scores import (
    ANNEALED,
    REFINED,
    SCORES,
    Columns,
    Measurement,
    join_columns,
    known_gaps,
    mean_and_error,
    with_derived,
)
from gpin.inference import ELBO
from gpin.report.numbers import without_nan
from gpin.runs.folder import Run, as_run
from gpin.runs.rows import OnBatch, conditions_of, numbered_batches, open_data, random_rows
from gpin.runs.truth import GapSplit, split_gaps
from gpin.vae import VAE

__all__ = ["Evaluation", "evaluate", "evaluate_run"]

SAMPLES = 100
"""The number of importance samples per instance, unless the caller chooses another."""
ELBO_SAMPLES = 10
"""The number of draws of z per instance for the ELBO."""


@dataclass(frozen=True)
class Evaluation:
    """How well a model explains data.

    Attributes:
        log_likelihood: log p(x) in nats, with diagnostics, in the units of the model.
        elbo: The training bound with its terms, from ten draws of z per instance.
        columns: The values of each instance by the name of the score, each `(n,)` in float64 on the CPU, see
            `gpin.evaluation.scores.SCORES`.
        sandwich: Bounds of log p(x) from both sides on simulated instances, if they were asked for.
        gaps: The split of the inference gap, if it was asked for.
        rows: The numbers of the instances in the data, `(n,)`.
        log_volume: log p(x) − log p(value) of each instance, `(n,)` in float64 on the CPU, or one number for all.
    """

    log_likelihood: LogLikelihood
    elbo: ELBO
    columns: Columns
    sandwich: Sandwich | None = None
    gaps: GapSplit | None = None
    rows: np.ndarray | None = None
    log_volume: float | Tensor = 0.0

    @property
    def in_data_units(self) -> Tensor:
        """log p(value) of every instance in nats, `(n,)`, for comparisons of runs that scale data differently."""
        return self.columns[self._prefix + "log_likelihood"] - self.log_volume

    @property
    def bits(self) -> Tensor:
        """−log₂ p(value) / D of every instance with D observed variables, `(n,)`, in the units of the data."""
        return self.columns[self._prefix + "bits_per_dim"]

    @property
    def bits_per_dim(self) -> float:
        """−log₂ p(value) / D, mean over instances, in the units of the data."""
        return mean_and_error(self.bits)[0]

    @property
    def bias(self) -> Bias | None:
        """How far such a log-likelihood is too low on simulated instances, if the sandwich has one of the same kind."""
        found = self.log_likelihood
        if self.sandwich is None:
            return None
        if found.annealing is not None:
            return self.sandwich.bias(self.sandwich.forward)
        alike = self.sandwich.others.get(found.proposal)
        same = alike is not None and found.ascent is None and alike.samples == found.samples
        return self.sandwich.biases[found.proposal] if same else None

    @property
    def caution(self) -> str:
        """How far to believe the log-likelihood and its Monte-Carlo error, in words; empty if without reservation."""
        found = self.log_likelihood
        return caution(share_above(found.khat), found.mean_mc_error, self.bias)

    @property
    def _prefix(self) -> str:
        return {"encoder": "", "refined": REFINED, "annealed": ANNEALED}[self.log_likelihood.proposal]

    def record(self) -> dict[str, Any]:
        """The numbers, ready for JSON; unknown values are None.

        All scores are under `scores`. Those of the log-likelihood and the ELBO are also stored under fixed names,
        whichever proposal was used. If the log-likelihood is only a lower bound, its `mc_error` is None.
        """
        scores = {name: SCORES[name].record(values) for name, values in self.columns.items()}
        own = {name: scores[self._prefix + name] for name in ("log_likelihood", "ess", "khat", "bits_per_dim")}
        (mc_error,) = scores[self._prefix + "mc_error"].values()
        bound = self.log_likelihood.lower_bound
        error = {
            "mc_error": None if bound else mc_error,
            "lower_bound": bound,
            "bias": None if self.bias is None else asdict(self.bias),
        }
        terms = {"reconstruction": "reconstruction", "kl": "kl_to_prior", "weight_kl": "weight_kl"}
        record = {
            "instances": len(self.log_likelihood.values),
            "samples": self.log_likelihood.samples,
            "proposal": self.log_likelihood.proposal,
            **own,
            "log_likelihood": {**own["log_likelihood"], **error},
            "elbo": {**scores["training_elbo"], **{key: scores[name]["mean"] for key, name in terms.items()}},
            "scores": scores,
        }
        if self.log_likelihood.annealing is not None:
            record["temperatures"] = self.log_likelihood.annealing.temperatures
            record["start"] = self.log_likelihood.annealing.start
        others = {"sandwich": self.sandwich, "gaps": self.gaps}
        record |= {name: other.record() for name, other in others.items() if other is not None}
        return without_nan(record)


def evaluate(
    vae: VAE,
    rows: Rows,
    *,
    samples: int | None = None,
    proposal: str = "encoder",
    steps: int | None = None,
    tolerance: float | None = None,
    max_steps: int | None = None,
    estimator: str = "importance",
    seed: int = 0,
    log_volume: float | Callable[[Tensor], Tensor] = 0.0,
    on_batch: OnBatch | None = None,
    **annealing: Any,
) -> Evaluation:
    """Score a model on data, reading one batch at a time.

    Arguments:
        vae: The model.
        rows: The data.
        samples: K, the number of importance samples for each log-likelihood, 100 by default.
        proposal: "encoder" or "refined", see `VAE.log_likelihood`.
        steps: The number of steps that improve the proposals, see `VAE.log_likelihood`.
        tolerance: The tolerance in nats at which the steps of an instance end, see `VAE.log_likelihood`.
        max_steps: The maximum number of steps with a tolerance, see `VAE.log_likelihood`.
        estimator: "importance" or "annealed", see `VAE.log_likelihood`.
        seed: The seed of all noise.
        log_volume: The log volume of the scaling of the data, see `Run.log_volume`.
        on_batch: Called after each batch with the number of instances done and their total.
        annealing: The options of the annealed estimator, see `VAE.log_likelihood`.
    """
    annealed = estimator == "annealed"
    options: dict[str, Any] = {"steps": steps, "tolerance": tolerance, "max_steps": max_steps}
    if estimator != "importance":
        options |= {"estimator": estimator, **annealing}
    likelihoods, bounds, columns, volumes = [], [], [], []
    # One stream of noise for each, so that none depends on how much noise the others draw.
    likelihood_noise, bound_noise, other_noise = (_Noise(check_seed(seed)) for _ in range(3))
    for _, batch in numbered_batches(rows, on_batch):
        x = vae.check(batch)
        volume = log_volume(vae.values(x)) if callable(log_volume) else log_volume
        volumes.append(torch.as_tensor(volume).double().cpu().expand(len(x)))
        with likelihood_noise.resumed():
            likelihoods.append(vae.log_likelihood(x, samples, proposal, **options))
        with bound_noise.resumed(), torch.no_grad():
            bounds.append(vae.elbo(x, ELBO_SAMPLES))
        with other_noise.resumed(), torch.no_grad():
            measurement = Measurement(
                vae=vae,
                x=x,
                encoder=likelihoods[-1] if proposal == "encoder" and not annealed else None,
                refined=likelihoods[-1] if proposal == "refined" else None,
                annealed=likelihoods[-1] if annealed else None,
                elbo=bounds[-1],
                uncertainty=vae.uncertainty(x) if vae.inference.has_uncertainty else None,
                gaps=known_gaps(vae, x, steps if proposal == "encoder" and not annealed else None)
                if tolerance is None
                else {},
                log_volume=volume,
            )
            columns.append(measurement.columns())
    terms = [torch.cat([getattr(part, name) for part in bounds]) for name in ("reconstruction", "kl", "weight_kl")]
    return Evaluation(
        LogLikelihood.join(likelihoods),
        ELBO(*terms),
        with_derived(join_columns(columns)),
        rows=rows.rows,
        log_volume=torch.cat(volumes),
    )


class _Noise:
    """A seeded stream of noise on every device that can be interrupted and resumed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.states: tuple[Tensor, list[Tensor]] | None = None

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """A context in which torch draws from this stream; afterwards torch's generators are restored."""
        with seeded(self.seed):
            if self.states is not None:
                torch.set_rng_state(self.states[0])
                torch.cuda.set_rng_state_all(self.states[1])
            yield
            self.states = torch.get_rng_state(), torch.cuda.get_rng_state_all()


def evaluate_run(
    run: Run | str | os.PathLike[str],
    *,
    samples: int | None = None,
    proposal: Literal["encoder", "refined"] = "encoder",
    steps: int | None = None,
    tolerance: float | None = None,
    max_steps: int | None = None,
    estimator: Literal["importance", "annealed"] = "importance",
    temperatures: int | None = None,
    chains: int | None = None,
    start: Literal["refined", "prior"] | None = None,
    leapfrog: int | None = None,
    sandwich: int | None = None,
    gaps: bool = False,
    data: str | os.PathLike[str] | None = None,
    part: Literal["train", "validation", "test"] = "test",
    new: str | os.PathLike[str] | None = None,
    source: Mapping[str, Any] | None = None,
    limit: int | None = None,
    seed: int = 0,
    device: str | None = None,
    on_batch: OnBatch | None = None,
    tell: Tell = to_stderr,
) -> Evaluation:
    """Score a run on its own data or on new data, as `gpin evaluate` does.

    Arguments:
        run: The run, or its folder.
        samples: K, the number of importance samples for each instance, 100 by default.
        proposal: The distribution to sample from: the encoder's posterior, or a Gaussian refined for each instance.
        steps: The number of natural-gradient steps that improve the encoder's posterior, or the maximum number of
            steps of the refinement, see `VAE.log_likelihood`.
        tolerance: The tolerance in nats at which the steps of an instance end.
        max_steps: The maximum number of natural-gradient steps with a tolerance.
        estimator: "importance", or "annealed": chains that move from a start to the posterior, see
            `VAE.log_likelihood`.
        temperatures: The number of temperatures of annealed chains, here, in the sandwich and in the gaps.
        chains: Their number per instance.
        start: Where they start.
        leapfrog: Their number of leapfrog steps per temperature.
        sandwich: Simulate this many instances from the model and bound their log p(x) from both sides, see
            `VAE.sandwich`.
        gaps: Whether to split the inference gap, on the part and on training data, see `VAE.gaps`; of at most `limit`
            or 100 instances each.
        data: The new location of the run's data, if it has moved.
        part: The part of the data to score.
        new: New data to score as a whole, instead of the run's own: a data set's name or a path.
        source: How new data is read, if not as in the run: `columns`, `key`, `size`, … of `open_data`.
        limit: Score at most this many instances, chosen at random; None scores all.
        seed: The seed of all noise and of the random choice of instances.
        device: The device, such as "cpu" or "cuda"; by default a GPU if there is one.
        on_batch: Called after each batch with the number of instances done and their total.
        tell: Called with each message for the user.

    Example:
        found = evaluate_run("runs/digits-gp-1a2b3c4d", samples=500, proposal="refined")
        found.log_likelihood.mean, found.bits_per_dim
    """
    if part not in ("train", "validation", "test"):
        raise InputError(f"part must be train, validation or test, got {part!r}")
    chosen: dict[str, Any] = {"temperatures": temperatures, "chains": chains, "start": start, "leapfrog": leapfrog}
    annealing = {name: value for name, value in chosen.items() if value is not None}
    if annealing and estimator == "importance" and sandwich is None and not gaps:
        raise InputError(f"`{next(iter(annealing))}` applies to `estimator=annealed`, `sandwich` and `gaps` only")
    AnnealingOptions.of(**annealing)
    if gaps and tolerance is not None:
        raise InputError("`gaps` cannot be combined with `tolerance`: give `steps`, the same number for all instances")
    if sandwich is not None:
        whole_number(sandwich, "sandwich")
    _check_new(new, {"data": data, "part": None if part == "test" else part, "gaps": gaps or None}, source)
    run = as_run(run)
    vae = run.load(tell).to(device_named(device))
    if new is not None and run.location in (str(new), os.path.abspath(os.path.expanduser(new))):
        tell(f"{new} is the data of {run.folder}: most of it was used in training, so that the scores are too good")
    parts = run.data(data) if new is None else None
    every = getattr(parts, part) if new is None else open_data(run, new, **(source or {}), tell=tell)
    rows = random_rows(every, limit, check_seed(seed))
    found = evaluate(
        vae,
        rows,
        samples=samples,
        proposal=proposal,
        steps=steps,
        tolerance=tolerance,
        max_steps=max_steps,
        estimator=estimator,
        seed=seed,
        log_volume=run.log_volume,
        on_batch=on_batch,
        **annealing,
    )
    count = SAMPLES if samples is None else samples
    own = steps if proposal == "encoder" and estimator == "importance" and tolerance is None else None
    if sandwich is not None:
        with seeded(seed):
            compared = None if own is None else (own,)
            y = conditions_of(vae, rows, sandwich)
            bounds = vae.sandwich(sandwich, y=y, samples=count, steps=compared, **annealing)
            found = replace(found, sandwich=bounds)
    if gaps and parts is not None:
        split = split_gaps(vae, parts, part=part, limit=limit, seed=seed, steps=own, samples=count, **annealing)
        found = replace(found, gaps=split)
    return found


def _check_new(new: object, own: Mapping[str, Any], source: Mapping[str, Any] | None) -> None:
    """Raise InputError for options of the run's own data together with new data, or of new data without any."""
    given = next((name for name, value in own.items() if value is not None), None)
    if new is not None and given is not None:
        raise InputError(f"`{given}` applies to the data of the run and not to new data: leave one of them out")
    if new is None and source:
        raise InputError(f"`{next(iter(source))}` says how new data is read: give new data, or leave it out")
