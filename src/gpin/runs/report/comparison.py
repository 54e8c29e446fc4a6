"""Runs on the same data, scored and compared: table rows and sentences."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gpin._core.errors import InputError
from gpin._core.inputs import check_seed, whole_number
from gpin._core.messages import Tell, to_stderr
from gpin._core.seeding import seeded
from gpin.data import DataSet
from gpin.evaluation import scores
from gpin.evaluation.scores import mean_and_error, share_above
from gpin.evaluation.timing import Timing, inference_times
from gpin.report import Table, numbers
from gpin.report.numbers import Correlation, duration, plus_minus
from gpin.runs.differences import refuse_other_data, short_names
from gpin.runs.folder import Run
from gpin.runs.folder import open_runs as open_each
from gpin.runs.report.display import Words, words_for
from gpin.runs.report.scored_run import ScoredRun, column_moments, score_run
from gpin.runs.rows import BATCH, OnStage, batches

__all__ = [
    "Comparison",
    "DataNotFoundError",
    "caution",
    "compare",
    "differences",
    "listed",
    "open_runs",
    "relation",
    "score_rows",
    "summary",
    "units",
    "verdict",
]


REPEATS, MOST_SECONDS = 300, 3.0
"""The number of timed calls of inference, and the time in seconds after which no more are made."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Scored runs on the same data; the first is the reference for the others.

    Attributes:
        scored: The runs, at least one.
        data: The data of all runs.
        samples: K, the number of proposals for each log-likelihood.
        seed: The seed of all noise.
        times: The inference times by the name of the run; empty for a single run.
    """

    scored: Sequence[ScoredRun]
    data: DataSet
    samples: int
    seed: int
    times: Mapping[str, Timing] = field(default_factory=dict)

    @property
    def table(self) -> bool:
        """Whether an instance is a row of a table; otherwise it is shown as an image."""
        return len(self.data.shape) == 1

    @cached_property
    def words(self) -> Words:
        """The noun for an instance."""
        return words_for(self.data.shape, self.data.scaling)

    @property
    def noun(self) -> str:
        """The noun for an instance."""
        return self.words.noun

    @property
    def nouns(self) -> str:
        """Its plural."""
        return self.words.nouns

    @property
    def one(self) -> str:
        """The noun for an instance with its article."""
        return self.words.one

    def several(self, count: int) -> str:
        """`count` instances, in words."""
        return f"{count:,} {self.noun if count == 1 else self.nouns}"

    @property
    def refined_count(self) -> str:
        """The number of instances with refined log-likelihoods, in words."""
        count, total = len(self.scored[0].chosen), len(self.data.test)
        return f"all {count:,}" if count == total else f"{count:,} of {total:,}, chosen at random"

    @property
    def columns(self) -> list[str]:
        """The names of a table's columns."""
        return self.scored[0].run.column_names

    @cached_property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean and standard deviation of every column of the test part, in the units of the data."""
        return column_moments(batches(self.data.test.plain), self.data.scaling)

    def comparable(self, other: ScoredRun) -> bool:
        """Whether a run's log-likelihoods are of the same kind as the first run's: densities or probabilities."""
        return other.run.model.density == self.scored[0].run.model.density

    def difference(self, other: ScoredRun, proposal: str) -> tuple[float, float]:
        """The paired difference of a run's log-likelihood minus the first run's: its mean and standard error."""
        return mean_and_error(other.likelihood(proposal).values - self.scored[0].likelihood(proposal).values)

    def milliseconds(self, one: ScoredRun) -> float:
        """The inference time of a batch: the fastest of many calls, which other work on the machine slowed least."""
        return 1000 * self.times[one.name].fastest

    def time_ratio(self, one: ScoredRun) -> float:
        """The inference time relative to the first run's."""
        return self.milliseconds(one) / self.milliseconds(self.scored[0])


def compare(
    folders: Sequence[str | os.PathLike[str]],
    *,
    samples: int = 100,
    limit: int | None = 1000,
    seed: int = 0,
    data: str | os.PathLike[str] | None = None,
    tell: Tell = to_stderr,
    on_stage: OnStage = lambda what, done, total: None,
) -> Comparison:
    """Open and score runs, see `write_report`."""
    samples, seed = whole_number(samples, "samples"), check_seed(seed)
    limit = None if limit is None else whole_number(limit, "limit")
    runs = open_runs(folders)
    found = _data(runs, data)
    named = zip(short_names(runs), runs, strict=True)
    scored = [
        score_run(name, run, found, samples=samples, limit=limit, seed=seed, tell=tell, on_stage=on_stage)
        for name, run in named
    ]
    if len(scored) > 1:
        on_stage("timing inference", 0, 1)
    return Comparison(scored, found, samples, seed, _times(scored, found, seed) if len(scored) > 1 else {})


def _times(scored: Sequence[ScoredRun], data: DataSet, seed: int) -> dict[str, Timing]:
    """The time that each run takes to infer the codes of a batch on the CPU."""
    with seeded(seed):
        models = {one.name: one.vae for one in scored}
        return inference_times(models, data.test[:BATCH], repeats=REPEATS, most_seconds=MOST_SECONDS)


class DataNotFoundError(InputError):
    """The data of runs cannot be read, or is no longer the data that they were trained on."""


def open_runs(places: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """Open runs on the same data by their folders, at least one and none of them twice."""
    runs = open_each(places)
    refuse_other_data(runs)
    return runs


def _data(runs: Sequence[Run], location: str | os.PathLike[str] | None) -> DataSet:
    """The data of all runs, from the first location where it is found; raises DataNotFoundError if there is none."""
    errors = []
    for run in runs:
        try:
            return run.data(location)
        except InputError as error:
            errors.append(error)
    raise DataNotFoundError(str(errors[0]))


# The table ------------------------------------------------------------------------------------------


def score_rows(comparison: Comparison) -> list[list[str]]:
    """The rows of the comparison; a label that begins with a dot is a detail of the row above."""
    scored, nouns = comparison.scored, comparison.nouns
    total, count = len(comparison.data.test), len(scored[0].chosen)
    names = {name for one in scored for name in one.of_chosen}

    def row(label: str, note: str, cells: Iterable[str]) -> list[str]:
        return [f"{label}\n{note}", *cells]

    rows: list[list[str]] = []
    explained: set[str] = set()
    for score, detail in scores.shown_scores(names):
        found = [one.columns_of(score.name) for one in scored]
        of_all = any(score.name in one.encoder.columns for one in scored)
        where = "" if detail else f"; on {f'all {total:,}' if of_all else comparison.refined_count}"
        label = f"· {score.title}" if detail else score.title[:1].upper() + score.title[1:]
        cells = ["—" if columns is None else score.shown(columns) for columns in found]
        rows.append(row(label, "" if score.reading in explained else score.reading + where, cells))
        explained.add(score.reading)  # a score that both proposals have is explained once
        if score.name == "refined_log_likelihood" and count < total:
            rows.append(
                row(
                    f"· with the encoder’s proposals, same {count:,}",
                    "for comparison with the row above",
                    [scores.SCORES["log_likelihood"].shown(one.of_chosen) for one in scored],
                )
            )
    return [
        *rows,
        *_time_rows(comparison),
        row("Parameters", "of encoder and decoder", [f"{one.parameters:,}" for one in scored]),
        row("Training time", "of all epochs, on the machine that trained it", [_time(one) for one in scored]),
        row(
            "Best epoch",
            f"the best on validation {nouns}, whose weights are used here",
            [f"{one.history.best} of {len(one.history.epochs)}" if one.history.best else "—" for one in scored],
        ),
    ]


def _time_rows(comparison: Comparison) -> list[list[str]]:
    """The row of inference times relative to the first run; none for a single run."""
    if not comparison.times:
        return []
    first, *others = comparison.scored
    batch = min(BATCH, len(comparison.data.test))
    note = (
        f"for a batch of {batch} on the CPU: encoding it and drawing one code per {comparison.noun}; in brackets, "
        f"relative to {first.name}; lower is better"
    )
    cells = [f"{comparison.milliseconds(one):.2f} ms ({comparison.time_ratio(one):.2f}×)" for one in others]
    return [[f"Inference time\n{note}", f"{comparison.milliseconds(first):.2f} ms", *cells]]


def units(comparison: Comparison) -> str:
    """A sentence about the units of the bits per dimension; empty if all likelihoods are probabilities."""
    if not any(one.run.model.density for one in comparison.scored):
        return ""
    unit = "grey levels from 0 to 255" if comparison.data.scaling.kind == "pixels" else "the units of the data"
    return f"Bits per dimension refer to a density in {unit}, so they can be negative. "


def _time(one: ScoredRun) -> str:
    return duration(one.history.seconds) if one.history.epochs else "—"


def _paired(comparison: Comparison, other: ScoredRun, proposal: str) -> str:
    """A paired difference with its significance, in words."""
    mean, stderr = comparison.difference(other, proposal)
    if not stderr > 0:
        return f"{_signed(mean, math.nan)} nats"
    errors = abs(mean) / stderr
    better = other if mean > 0 else comparison.scored[0]
    words = "not significant" if errors < 2 else f"in favour of {better.name}"
    return f"{_signed(mean, stderr)} nats, {words} ({errors:.1f} standard errors)"


def _signed(mean: float, stderr: float) -> str:
    return ("+" if mean >= 0 else "") + plus_minus(mean, stderr)


OTHER_KIND = "their likelihoods are of different kinds, a density and a probability, and cannot be compared"


def verdict(comparison: Comparison) -> str:
    """The paired differences of two runs, and whether they are significant."""
    first, other = comparison.scored
    if not comparison.comparable(other):
        return f"{other.name} and {first.name}: {OTHER_KIND}."
    return (
        f"Log-likelihood of {other.name} minus that of {first.name}, paired by {comparison.noun}: "
        f"{_paired(comparison, other, 'encoder')}. With refined proposals, on {comparison.refined_count}: "
        f"{_paired(comparison, other, 'refined')}. {_caveat(comparison)}"
    )


def summary(comparison: Comparison) -> str:
    """Which of several runs are better or worse than the first."""
    first, *others = comparison.scored
    groups: dict[str, list[str]] = {}
    for other in others:
        mean, stderr = comparison.difference(other, "refined")
        if not comparison.comparable(other):
            group = "not comparable"
        elif not abs(mean) >= 2 * stderr:
            group = "not significantly different"
        else:
            group = "better" if mean > 0 else "worse"
        groups.setdefault(group, []).append(other.name)
    order = ("better", "worse", "not significantly different", "not comparable")
    found = "; ".join(f"{group} — {listed(groups[group])}" for group in order if group in groups)
    return f"Compared with {first.name} in refined log-likelihood, paired by {comparison.noun}: {found}. " + _caveat(
        comparison
    )


def listed(names: Sequence[str]) -> str:
    """Names as a list that is clear even if they contain commas."""
    return (" and " if len(names) == 2 else " · ").join(names)


def _caveat(comparison: Comparison) -> str:
    errors = f"The standard errors cover only the choice of test {comparison.nouns}"
    return f"{errors}: training with another seed may change the sign."


def differences(comparison: Comparison) -> Table:
    """The paired difference of every other run to the first, as a table."""
    first, *others = comparison.scored
    rows = []
    for other in others:
        cells = [
            _signed(*comparison.difference(other, proposal)) if comparison.comparable(other) else "—"
            for proposal in ("encoder", "refined")
        ]
        rows.append([other.name, *cells])
    caption = f"Log-likelihood minus that of {first.name}, paired by {comparison.noun}: nats ± standard error."
    return Table(["", "encoder’s proposals", "refined"], rows, caption)


def caution(comparison: Comparison) -> str:
    """How far the estimates can be trusted."""
    encoder, refined = (
        max(share_above(one.likelihood(proposal).khat) for one in comparison.scored)
        for proposal in ("encoder", "refined")
    )
    return numbers.caution(encoder, refined, comparison.nouns)


def relation(comparison: Comparison, one: ScoredRun) -> str:
    """How the estimated gap and other guides are correlated with the inference gap, in words."""
    scores = one.of_chosen
    gap, count = scores["inference_gap"], comparison.several(len(one.chosen))
    found = Correlation.of(scores["estimated_gap"], gap)
    if math.isnan(found.rho):
        return f"Estimated gap against the inference gap: {count} cannot be ranked."
    guides = {"predicted gap": scores.get("predicted_gap"), "uncertainty": scores.get("uncertainty")}
    others = [
        f"{Correlation.of(values, gap)} for the {name}"
        for name, values in {**guides, "negative ELBO": -scores["elbo"]}.items()
        if values is not None
    ]
    return (
        f"Estimated gap of {one.name} against its inference gap: Spearman correlation {found} over {count} of the test "
        f"part, so {found.in_words('where the inference gap is larger')}. For comparison: {', '.join(others)}."
        + _covered(one)
    )


def _covered(one: ScoredRun) -> str:
    """A sentence about the share of the intervals that cover the gap; empty for a model that is not calibrated."""
    scores = one.of_chosen
    if "estimated_gap_low" not in scores:
        return ""
    measured, low, high = (scores[name] for name in ("amortization_gap", "estimated_gap_low", "estimated_gap_high"))
    share = ((measured >= low) & (measured <= high)).double().mean().item()
    return f" Its 80 % intervals, calibrated on validation data, cover the amortization gap of {100 * share:.0f} %."
