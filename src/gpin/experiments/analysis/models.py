"""Trained models side by side: scores, paired differences, times, and what follows from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpin.evaluation.paired import RepeatedMean, repeated_mean
from gpin.evaluation.reliability import COMMON, LIMIT, lower_bound, share_above
from gpin.evaluation.scores import REFINED, SCORES, Columns, with_derived
from gpin.report.numbers import difference, duration, without_nan
from gpin.report.tables import Mark, ResultTable

__all__ = ["ModelResult", "ModelTable", "Training", "model_name", "training_of"]

SCORE = SCORES[REFINED + "log_likelihood"]
"""The score by which models are compared: it measures the model and hardly depends on the encoder."""
BITS = REFINED + "bits_per_dim"
"""The name of the same score in bits per dimension; comparisons of earlier versions did not store it."""


def model_name(method: str, latent_dim: int) -> str:
    """The name of a model in tables and sentences.

    Example:
        >>> model_name("gp", 5)
        'gp d=5'
    """
    return f"{method} d={latent_dim}"


@dataclass(frozen=True, eq=False)
class Training:
    """One training of a model, with its scores.

    Attributes:
        run: The folder of the run.
        record: The result of its job, see `gpin.experiments.execution.worker.run_job`.
        columns: The scores of every scored instance by name, and `instance`, its number.
    """

    run: Path
    record: Mapping[str, Any]
    columns: Columns

    def score(self, name: str) -> np.ndarray:
        """The values of a score, `(n,)`."""
        return self.columns[name].double().numpy()


@dataclass(frozen=True, eq=False)
class ModelResult:
    """A method with a number of latent dimensions, trained with several seeds.

    Attributes:
        method: The name of the method.
        latent_dim: The number of latent dimensions.
        trainings: The trainings that are done, by seed; at least one.
        milliseconds: The inference time of a batch, if it was measured.
    """

    method: str
    latent_dim: int
    trainings: Mapping[int, Training]
    milliseconds: float | None = None

    @property
    def name(self) -> str:
        """A short name, unique in a comparison."""
        return model_name(self.method, self.latent_dim)

    @cached_property
    def log_likelihood(self) -> RepeatedMean:
        """The refined log-likelihood, mean over instances and seeds, in nats."""
        return self._mean(SCORE.name)

    @property
    def lower_bound(self) -> bool | None:
        """Whether the log-likelihood is only a lower bound, by k̂ over all trainings; None if k̂ is not known."""
        khat = [one.columns[SCORE.khat] for one in self.trainings.values()] if SCORE.khat else []
        return lower_bound(share_above(torch.cat(khat)))

    @property
    def seconds(self) -> float:
        """The mean training time of a run."""
        return float(np.mean([one.record["training_seconds"] for one in self.trainings.values()]))

    @property
    def best_run(self) -> Path:
        """The run that is best on validation data."""
        return max(self.trainings.values(), key=lambda one: one.record["validation_elbo"]).run

    def minus(self, other: "ModelResult") -> RepeatedMean:
        """The log-likelihood minus that of another model, paired by instance, for the seeds that both have."""
        seeds = [seed for seed in self.trainings if seed in other.trainings]
        if not seeds:
            return RepeatedMean(math.nan, math.nan, math.nan, math.nan, 0, 0)
        pairs = [(self.trainings[seed], other.trainings[seed]) for seed in seeds]
        values = [ours.score(SCORE.name) - theirs.score(SCORE.name) for ours, theirs in pairs]
        return repeated_mean(values, same_instances=_same_instances([ours for ours, _ in pairs]))

    def mean_of(self, seed: int) -> RepeatedMean | None:
        """The log-likelihood of one training, mean over instances; None if it is not done."""
        one = self.trainings.get(seed)
        return None if one is None else repeated_mean([one.score(SCORE.name)])

    def _mean(self, name: str) -> RepeatedMean:
        trainings = list(self.trainings.values())
        return repeated_mean([one.score(name) for one in trainings], same_instances=_same_instances(trainings))

    def record(self) -> dict[str, Any]:
        """The numbers, ready for JSON except that unknown ones are NaN."""
        trainings = list(self.trainings.values())
        first = trainings[0]
        bits = [one.score(BITS).mean() if BITS in one.columns else math.nan for one in trainings]
        return {
            "method": self.method,
            "latent_dim": self.latent_dim,
            "seeds": list(self.trainings),
            "instances": self.log_likelihood.instances,
            "log_likelihood": {**_numbers(self.log_likelihood), "lower_bound": self.lower_bound},
            "encoder_log_likelihood": _numbers(self._mean("log_likelihood")),
            "inference_gap": _numbers(self._mean("inference_gap")),
            "bits_per_dim": float(np.mean(bits)),
            "by_seed": [float(one.score(SCORE.name).mean()) for one in trainings],
            "training_seconds": self.seconds,
            "inference_milliseconds": self.milliseconds,
            "parameters": first.record["parameters"],
            "runs": [str(one.run) for one in trainings],
            "best_run": str(self.best_run),
        }


def _same_instances(trainings: Sequence[Training]) -> bool:
    first, *others = (one.columns["instance"] for one in trainings)
    return all(torch.equal(first, other) for other in others)


def _numbers(found: RepeatedMean) -> dict[str, float]:
    return {name: value for name, value in asdict(found).items() if name in ("mean", "stderr", "low", "high")}


@dataclass(frozen=True, eq=False)
class ModelTable:
    """Models that were scored on the same data, with the differences between them.

    Attributes:
        data: The name of the data.
        results: The models, at least one.
        baseline: The method to which others with the same number of latent dimensions are compared; None compares all
            with the best model.
        batch: The number of instances of the batch whose inference was timed.
    """

    data: str
    results: Sequence[ModelResult]
    baseline: str | None = None
    batch: int = 0
    _differences: dict[tuple[str, str], RepeatedMean] = field(default_factory=dict, init=False)

    @cached_property
    def best(self) -> ModelResult:
        """The model with the highest mean log-likelihood."""
        return max(self.results, key=lambda one: one.log_likelihood.mean)

    @cached_property
    def alike(self) -> list[ModelResult]:
        """The other models whose difference from the best has an interval that contains zero."""
        return [one for one in self.results if one is not self.best and not self.difference(one, self.best).sign]

    @property
    def recommended(self) -> ModelResult:
        """The fastest in inference of the best model and those that are not significantly different from it."""
        return min([self.best, *self.alike], key=lambda one: (one.milliseconds or math.inf, one.seconds))

    def difference(self, one: ModelResult, other: ModelResult) -> RepeatedMean:
        """The log-likelihood of one model minus that of another, see `ModelResult.minus`."""
        key = one.name, other.name
        if key not in self._differences:
            self._differences[key] = one.minus(other)
        return self._differences[key]

    def reference(self, one: ModelResult) -> ModelResult | None:
        """The model with which one is compared in the table; None for a reference itself, or if there is none."""
        if self.baseline is None:
            return None if one is self.best else self.best
        alike = (other for other in self.results if other.latent_dim == one.latent_dim)
        found = next((other for other in alike if other.method == self.baseline), None)
        return None if found is one else found

    def records(self) -> list[dict[str, Any]]:
        """One record per model, ready for JSON; unknown values are None.

        `difference` is the paired difference from the model `to`, with its 95 % interval; None for a reference.
        """
        found = []
        for one in self.results:
            other = self.reference(one)
            difference = None
            if other is not None:
                difference = {"to": other.name, **_numbers(self.difference(one, other))}
            found.append(without_nan({"model": one.name, **one.record(), "difference": difference}))
        return found

    # In words ----------------------------------------------------------------------------------------

    def table(self) -> ResultTable:
        """The table for people: the best in red, what is not significantly different from it in blue."""
        title = "minus the best" if self.baseline is None else f"minus {self.baseline}"
        rows = [
            [
                one.name,
                ("" if one.lower_bound is False else "≥ ") + _plus_minus(one.log_likelihood),
                "—" if other is None else _interval(self.difference(one, other)),
                duration(one.seconds),
                "—" if one.milliseconds is None else f"{one.milliseconds:.1f} ms",
            ]
            for one in self.results
            for other in [self.reference(one)]
        ]
        marks: dict[tuple[int, int], Mark] = {
            (i, 1): "red" if one is self.best else "blue"
            for i, one in enumerate(self.results)
            if one is self.best or one in self.alike
        }
        head = ("model", "log-likelihood", title, "training", "inference")
        return ResultTable(f"{self.data}: {self._amounts()}", head, rows, marks, self._notes())

    @property
    def recommendation(self) -> str:
        """What follows from the numbers, in a few sentences."""
        best, alike, fast = self.best, self.alike, self.recommended
        others = [one for one in self.results if one is not best]
        if not others:
            return f"Only {best.name} is done: there is nothing to compare it with."
        fastest = "" if fast.milliseconds is None else f" Of these, {fast.name} is the fastest in inference."
        if len(alike) == len(others):
            said = f"No significant difference between these models was found with {self._amounts()}.{fastest}"
        elif alike:
            close = _listed([one.name for one in alike])
            rest = "the others are worse" if len(others) - len(alike) > 1 else "the other model is worse"
            verb = "is" if len(alike) == 1 else "are"
            said = (
                f"{best.name} has the highest log-likelihood. {close} {verb} not significantly different from it; "
                f"{rest}.{fastest}"
            )
        else:
            near = max(others, key=lambda one: one.log_likelihood.mean)
            ahead = self.difference(best, near)
            said = (
                f"Use {best.name}: its log-likelihood is the highest, {SCORE.written(ahead.mean)} nats above that of "
                f"{near.name} (95 % interval {SCORE.written(ahead.low)} to {SCORE.written(ahead.high)})."
            )
        return f"{said}{self._reservation()}"

    def _reservation(self) -> str:
        """What the recommendation does not show; empty if there is nothing to say."""
        worse = [one for one in self.results if one is not self.best and one not in self.alike]
        said = ""
        if any(one.lower_bound is not False for one in worse):
            said += " Scores marked ≥ are lower bounds, so some of these differences may be smaller than they seem."
        if max(len(one.trainings) for one in self.results) == 1:
            said += " Each model was trained once: with another seed, the order may change."
        return said

    def _amounts(self) -> str:
        seeds = {len(one.trainings) for one in self.results}
        trainings = f"{min(seeds)} to {max(seeds)} trainings" if len(seeds) > 1 else _counted(min(seeds), "training")
        return f"{_counted(self.best.log_likelihood.instances, 'test instance')} and {trainings} of each model"

    def _notes(self) -> list[str]:
        several = max(len(one.trainings) for one in self.results) > 1
        over = "test instances and trainings" if several else "test instances"
        notes = [
            "Log-likelihood: the refined log-likelihood of the test part in nats, higher is better; ± is its standard "
            f"error over {over}. In brackets, the 95 % interval of the paired difference, also over {over}.",
        ]
        if any(one.lower_bound is not False for one in self.results):
            notes.append(
                f"≥ is a lower bound: k̂ is above {LIMIT} for more than {100 * COMMON:.0f} % of the instances. More "
                "samples come closer."
            )
        times = "Training: the mean time of a training, on the machine that did it."
        if self.batch:
            times += f" Inference: encoding a batch of {self.batch} and drawing one code each, on this CPU."
        return [*notes, times]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _plus_minus(found: RepeatedMean) -> str:
    return SCORE.written(found.mean) + (f" ± {SCORE.written(found.stderr)}" if math.isfinite(found.stderr) else "")


def _interval(found: RepeatedMean) -> str:
    return f"{difference(found.mean, plus=True)} [{difference(found.low)}, {difference(found.high)}]"


def training_of(run: Path, record: Mapping[str, Any], scores: Path) -> Training:
    """A training from the files of its job: the scores of every instance, and those that can be derived from them."""
    from pyarrow import parquet

    table = parquet.read_table(scores)
    columns = {name: torch.from_numpy(table[name].to_numpy().copy()) for name in table.column_names}
    double = {name: c.double() if c.is_floating_point() else c for name, c in columns.items()}
    return Training(run, record, with_derived(double))
