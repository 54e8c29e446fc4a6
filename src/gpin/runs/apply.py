"""What a trained run is used for: scored, and asked for codes, reconstructions and samples, in batches."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpin._core.errors import InputError
from gpin._core.inputs import check_seed, whole_number
from gpin._core.seeding import seeded
from gpin.data import Rows, Source, SourceConfig, applicable_options, as_model_data, open_source
from gpin.evaluation.importance import LogLikelihood
from gpin.inference import ELBO
from gpin.report.numbers import mean_and_error, share_above, without_nan
from gpin.runs.folder import Run
from gpin.vae import VAE

__all__ = [
    "Evaluation",
    "batches",
    "column_names",
    "device_named",
    "encode_rows",
    "evaluate",
    "log_volume",
    "open_data",
    "random_rows",
    "reconstruct_rows",
    "sample_rows",
    "spread_rows",
]

BATCH = 128
"""Instances that are read and encoded together, as many as `VAE.log_likelihood` takes."""
ELBO_SAMPLES = 10
"""Draws of z for each instance's ELBO."""

Told = Callable[[int], None]
Columns = Mapping[str, np.ndarray]


def device_named(name: str | None) -> torch.device:
    """A device by name, by default a GPU where there is one."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device).item()  # which a device without numbers, meta, cannot do
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(f"there is no device {name!r} here: give cpu, cuda, cuda:1, …, or leave it out") from None
    return device


# Which data ------------------------------------------------------------------------------------------


def open_data(run: Run, data: str, given: Mapping[str, Any]) -> Rows:
    """All rows of a source as data for a run's model; what is not said about reading it is as in the run.

    Options of the run that do not apply to this source are dropped; those in `given` are refused then. The columns of
    a table are matched by name, or by position where `given` names them.

    Arguments:
        run: Whose model it is for.
        data: A benchmark set's name or a path.
        given: Options of a `SourceConfig` that the user gave.
    """
    own = {**run.settings.data.source.model_dump(), "columns": run.columns}
    inherited = {name: own[name] for name in applicable_options(data)}
    source = open_source(data, SourceConfig.parse({**inherited, **given}, "the data"))
    return _as_model_data(run, source, by_name="columns" not in given)


def _as_model_data(run: Run, source: Source, by_name: bool) -> Rows:
    return as_model_data(source, run.model.shape, run.scaling, run.columns if by_name else None)


def random_rows(rows: Rows, limit: int | None, seed: int = 0) -> Rows:
    """At most `limit` of the rows, chosen by the seed, in their own order."""
    if limit is None or whole_number(limit, "limit") >= len(rows):
        return rows
    chosen = np.random.default_rng(seed).choice(len(rows), limit, replace=False)
    return rows.chosen(np.sort(chosen))


def spread_rows(rows: Rows, count: int | None) -> Rows:
    """At most `count` of the rows, at even distances from the first to the last."""
    if count is None or whole_number(count, "count") >= len(rows):
        return rows
    return rows.chosen(np.linspace(0, len(rows) - 1, count).astype(np.int64))


def batches(rows: Rows) -> Iterator[Tensor]:
    """All instances, a batch `(n, *shape)` at a time."""
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def _numbered(rows: Rows) -> Iterator[tuple[np.ndarray, Tensor]]:
    """The same, each with the numbers of its rows in the source."""
    numbers = np.split(rows.rows, range(BATCH, len(rows), BATCH))
    return zip(numbers, batches(rows), strict=True)


# Scores ----------------------------------------------------------------------------------------------


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
    told: Told | None = None,
) -> Evaluation:
    """Score a model on data, a batch in memory at a time.

    Arguments:
        vae: The model.
        rows: The data.
        samples: K, for the log-likelihood.
        proposal: "encoder" or "refined", see `VAE.log_likelihood`.
        seed: Of all noise.
        log_volume: Of the scaling of the data, see `log_volume`.
        told: Called with its size when a batch is done.
    """
    likelihoods, bounds = [], []
    # A stream for each, so that neither depends on how much noise the other takes.
    of_likelihoods, of_bounds = (_Noise(check_seed(seed)) for _ in range(2))
    for x in batches(rows):
        with of_likelihoods.goes_on():
            likelihoods.append(vae.log_likelihood(x, samples, proposal))
        with of_bounds.goes_on(), torch.no_grad():
            bounds.append(vae.elbo(x, ELBO_SAMPLES))
        if told is not None:
            told(len(x))
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


def log_volume(run: Run) -> float:
    """Σ log scale over the numbers of an instance; zero where p(x|z) is a probability and not a density."""
    bernoulli = run.model.likelihood.kind == "bernoulli"
    return 0.0 if bernoulli else run.scaling.log_volume(math.prod(run.model.shape))


# Codes, reconstructions, samples ---------------------------------------------------------------------


def _seed_of(seed: int, number: int) -> int:
    """The seed of a batch: no two batches share noise, whatever seeds they come from."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 1)


def encode_rows(vae: VAE, rows: Rows, *, samples: int = 100, seed: int = 0) -> Iterator[Columns]:
    """What the encoder says of each instance, as the columns of a table, batch by batch.

    `row`; of a folder of pictures, `file`, the picture's path below it; `mean_0`, …, and `std_0`, … of q(z|x); for
    methods that have one `uncertainty`, with its parts `uncertainty_f` and `uncertainty_h`, of the posterior mean and
    standard deviation; `log_likelihood` in the units of the model, with `ess` and `khat`.

    Arguments:
        vae: The model.
        rows: The data.
        samples: K, for the log-likelihood; 0 leaves it out.
        seed: Of all noise.
    """
    whole_number(samples, "samples", least=0)
    uncertain = knows_uncertainty(vae, rows)
    check_seed(seed)
    for number, (numbers, x) in enumerate(_numbered(rows)):
        with seeded(_seed_of(seed, number)), torch.no_grad():
            q = vae.encode(x)
            columns = {"row": numbers}
            if rows.names is not None:
                columns["file"] = np.array([rows.names[row] for row in numbers])
            for name, moment in (("mean", q.mean), ("std", q.stddev)):
                columns |= {f"{name}_{j}": column for j, column in enumerate(_array(moment).T)}
            if uncertain:
                found = vae.uncertainty(x)
                columns |= {
                    "uncertainty": _array(found.total),
                    "uncertainty_f": _array(found.mean_part),
                    "uncertainty_h": _array(found.std_part),
                }
            if samples:
                ll = vae.log_likelihood(x, samples)
                columns |= {"log_likelihood": _array(ll.values), "ess": _array(ll.ess), "khat": _array(ll.khat)}
        yield columns


def knows_uncertainty(vae: VAE, rows: Rows) -> bool:
    """Whether the encoder can say how uncertain it is."""
    try:
        vae.uncertainty(rows[:1])
    except InputError:
        return False
    return True


def reconstruct_rows(vae: VAE, rows: Rows, *, seed: int = 0) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Row numbers, x and E[x|z] at the posterior mean of z, `(batch, *shape)` in the units of the model, by batch."""
    check_seed(seed)
    for number, (numbers, x) in enumerate(_numbered(rows)):
        with seeded(_seed_of(seed, number)):
            yield numbers, x, vae.reconstruct(x).cpu()


def sample_rows(vae: VAE, count: int, *, noise: bool = False, seed: int = 0) -> Iterator[Tensor]:
    """`count` draws from the model, `(batch, *shape)` in the units of the model, by batch."""
    whole_number(count, "count")
    check_seed(seed)
    for number, start in enumerate(range(0, count, BATCH)):
        with seeded(_seed_of(seed, number)):
            x = vae.sample(min(BATCH, count - start), noise).cpu()
        yield x


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()


def column_names(run: Run) -> list[str]:
    """Of the run's table: its own, or x_0, x_1, … where it has none."""
    return list(run.columns or (f"x_{j}" for j in range(run.model.shape[0])))
