"""How well a run's model explains data: log-likelihood with its diagnostics, bits per dimension, and the ELBO."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gpin._core.devices import device_named
from gpin._core.errors import InputError
from gpin._core.inputs import check_seed
from gpin._core.messages import Tell, to_stderr
from gpin._core.seeding import seeded
from gpin.data import Rows
from gpin.evaluation.importance import LogLikelihood
from gpin.inference import ELBO
from gpin.report.numbers import mean_and_error, share_above, without_nan
from gpin.runs.folder import Run, as_run
from gpin.runs.rows import OnBatch, numbered_batches, random_rows
from gpin.vae import VAE

__all__ = ["Evaluation", "evaluate", "evaluate_run"]

ELBO_SAMPLES = 10
"""Draws of z for each instance's ELBO."""


@dataclass(frozen=True)
class Evaluation:
    """How well a model explains data.

    Attributes:
        log_likelihood: log p(x) in nats, with diagnostics, in the units of the model.
        elbo: The bound with its terms, from ten draws of z an instance.
        dims: D, the numbers in an instance.
        log_volume: Σ log scale over them: log p(value) = log p(x) − log_volume in the units of the data.
    """

    log_likelihood: LogLikelihood
    elbo: ELBO
    dims: int
    log_volume: float

    @property
    def bits_per_dim(self) -> float:
        """−log₂ p(value) / D, mean over instances, in the units of the data."""
        return -(self.log_likelihood.mean - self.log_volume) / (self.dims * math.log(2))

    @property
    def bits_per_dim_stderr(self) -> float:
        """Its standard error."""
        return self.log_likelihood.stderr / (self.dims * math.log(2))

    def record(self) -> dict[str, Any]:
        """Ready for JSON; what is not known is null."""
        found, bound = self.log_likelihood, self.elbo
        elbo, elbo_stderr = mean_and_error(bound.value)
        record = {
            "instances": found.values.numel(),
            "samples": found.samples,
            "proposal": found.proposal,
            "log_likelihood": {"mean": found.mean, "stderr": found.stderr, "mc_error": found.mean_mc_error},
            "ess": {"mean": mean_and_error(found.ess)[0], "median": found.ess.median().item()},
            "khat": {"median": found.khat.nanmedian().item(), "share_above_0.7": share_above(found.khat)},
            "bits_per_dim": {"mean": self.bits_per_dim, "stderr": self.bits_per_dim_stderr},
            "elbo": {
                "mean": elbo,
                "stderr": elbo_stderr,
                "reconstruction": mean_and_error(bound.reconstruction)[0],
                "kl": mean_and_error(bound.kl)[0],
                "weight_kl": mean_and_error(bound.weight_kl)[0],
            },
        }
        return without_nan(record)


def evaluate(
    vae: VAE,
    rows: Rows,
    *,
    samples: int = 100,
    proposal: str = "encoder",
    seed: int = 0,
    log_volume: float = 0.0,
    on_batch: OnBatch | None = None,
) -> Evaluation:
    """Score a model on data, a batch in memory at a time.

    Arguments:
        vae: The model.
        rows: The data.
        samples: K, for the log-likelihood.
        proposal: "encoder" or "refined", see `VAE.log_likelihood`.
        seed: The seed of all noise.
        log_volume: That of the scaling of the data, see `Run.log_volume`.
        on_batch: Called after each batch with the number of instances done, and of all.
    """
    likelihoods, bounds = [], []
    # A stream for each, so that neither depends on how much noise the other takes.
    of_likelihoods, of_bounds = (_Noise(check_seed(seed)) for _ in range(2))
    for _, x in numbered_batches(rows, on_batch):
        with of_likelihoods.goes_on():
            likelihoods.append(vae.log_likelihood(x, samples, proposal))
        with of_bounds.goes_on(), torch.no_grad():
            bounds.append(vae.elbo(x, ELBO_SAMPLES))
    terms = [torch.cat([getattr(part, name) for part in bounds]) for name in ("reconstruction", "kl", "weight_kl")]
    return Evaluation(LogLikelihood.join(likelihoods), ELBO(*terms), math.prod(vae.shape), log_volume)


class _Noise:
    """A stream of noise from a seed, on every device, that goes on where it was left."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.states: tuple[Tensor, list[Tensor]] | None = None

    @contextmanager
    def goes_on(self) -> Iterator[None]:
        """Inside, torch draws from it; afterwards its generators are as before."""
        with seeded(self.seed):
            if self.states is not None:
                torch.set_rng_state(self.states[0])
                torch.cuda.set_rng_state_all(self.states[1])
            yield
            self.states = torch.get_rng_state(), torch.cuda.get_rng_state_all()


def evaluate_run(
    run: Run | str | os.PathLike[str],
    *,
    samples: int = 100,
    proposal: Literal["encoder", "refined"] = "encoder",
    data: str | os.PathLike[str] | None = None,
    part: Literal["train", "validation", "test"] = "test",
    limit: int | None = None,
    seed: int = 0,
    device: str | None = None,
    on_batch: OnBatch | None = None,
    tell: Tell = to_stderr,
) -> Evaluation:
    """Score a run on its own data, as `gpin evaluate` does.

    Arguments:
        run: The run, or its folder.
        samples: K, the number of importance samples for each instance.
        proposal: Where they come from: the encoder, or a Gaussian fitted to each instance.
        data: Where the run's data is now, if it has moved.
        part: The part of the data to score.
        limit: Score at most so many instances, chosen at random; None scores all.
        seed: The seed of all noise, and of that choice.
        device: Such as "cpu" or "cuda"; by default a GPU where there is one.
        on_batch: Called after each batch with the number of instances done, and of all.
        tell: Called with each sentence that the user should read.

    Example:
        found = evaluate_run("runs/digits-gp-1a2b3c4d", samples=500, proposal="refined")
        found.log_likelihood.mean, found.bits_per_dim
    """
    if part not in ("train", "validation", "test"):
        raise InputError(f"part must be train, validation or test, got {part!r}")
    run = as_run(run)
    vae = run.load(tell).to(device_named(device))
    rows = random_rows(getattr(run.data(data), part), limit, check_seed(seed))
    return evaluate(
        vae, rows, samples=samples, proposal=proposal, seed=seed, log_volume=run.log_volume, on_batch=on_batch
    )
