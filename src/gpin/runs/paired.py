"""Several runs scored on the same instances, with the paired differences of their log-likelihoods."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpin._core.errors import InputError
from gpin._core.messages import Tell, to_stderr
from gpin.evaluation.paired import PairedDifference, paired_difference
from gpin.evaluation.scores import shown_scores
from gpin.report.numbers import difference, without_nan
from gpin.report.tables import ResultTable
from gpin.runs.differences import short_names
from gpin.runs.evaluate import Evaluation, evaluate_run
from gpin.runs.folder import Run, as_run
from gpin.runs.rows import OnStage

__all__ = ["ScoredRuns", "evaluate_runs"]

DENSITIES = ("gaussian", "lognormal")
"""The kinds of columns whose likelihood is a density, and not a probability."""


@dataclass(frozen=True, eq=False)
class ScoredRuns:
    """Several runs with their scores; the first is the one to which the others are compared.

    Attributes:
        runs: The runs.
        scores: The scores of each run.
        new: Whether they were scored on new data, and not on their own.
    """

    runs: Sequence[Run]
    scores: Sequence[Evaluation]
    new: bool = False

    @property
    def names(self) -> list[str]:
        """A short name for each run."""
        return short_names(self.runs)

    def obstacle(self, i: int) -> str | None:
        """Why run number i cannot be compared with the first, as a clause; None if it can."""
        first, other = self.runs[0], self.runs[i]
        if not self.new and other.fingerprint != first.fingerprint:
            return "it was trained on other data"
        if set(other.columns or ()) != set(first.columns or ()):
            return "its model is one of other columns"
        if first.columns is None and other.model.shape != first.model.shape:
            return "its model is one of another shape"
        if _densities(other) != _densities(first):
            return "one likelihood is a density where the other is a probability"
        ours, theirs = self.scores[i].rows, self.scores[0].rows
        if ours is None or theirs is None or not np.array_equal(ours, theirs):
            return "it was scored on other instances, because its data was split differently"
        return None

    def difference(self, i: int) -> PairedDifference | None:
        """The log-likelihood of run number i minus that of the first, paired by instance, in the units of the data.

        It is None for the first run, and for runs that cannot be compared with it.
        """
        if not i or self.obstacle(i) is not None:
            return None
        return paired_difference(self.scores[i].in_data_units.numpy(), self.scores[0].in_data_units.numpy())

    @property
    def remarks(self) -> list[str]:
        """Sentences about the runs that cannot be compared with the first."""
        names = self.names
        obstacles = ((name, self.obstacle(i)) for i, name in enumerate(names))
        return [
            f"{name} has no paired difference from {names[0]}: {reason}."
            for name, reason in obstacles
            if reason is not None
        ]

    def records(self) -> list[dict[str, Any]]:
        """The numbers of every run, ready for JSON; unknown values are None.

        `difference` is the paired difference from the first run with its 95 % interval over instances.
        """
        found = []
        for i, (run, scores) in enumerate(zip(self.runs, self.scores, strict=True)):
            difference = self.difference(i)
            about = {"run": str(run.folder), "method": run.model.method, **scores.record()}
            about["difference"] = None if difference is None else without_nan(asdict(difference))
            about["not_compared"] = self.obstacle(i)
            found.append(about)
        return found

    def table(self, title: str) -> ResultTable:
        """The table for people: one row per score and one column per run, and below them the paired differences."""
        known = {name for scores in self.scores for name in scores.columns}
        rows = [
            [
                "· " * detail + score.title,
                *(score.shown(scores.columns) if score.name in scores.columns else "—" for scores in self.scores),
            ]
            for score, detail in shown_scores(known)
        ]
        differences = [self.difference(i) for i in range(len(self.runs))]
        if any(differences):
            rows.append([f"log-likelihood minus that of {self.names[0]}", *map(_mean, differences)])
            rows.append(["· 95 % interval", *map(_interval, differences)])
        return ResultTable(title, ["", *self.names], rows)


def _densities(run: Run) -> dict[str, bool] | bool:
    """Whether p(value|z) is a density, for each column of a table whose columns are of different kinds, or for all."""
    if not run.scaling.columns:
        return run.model.density if run.columns is None else dict.fromkeys(run.columns, run.model.density)
    kinds = (column.kind for column in run.scaling.columns)
    return {name: kind in DENSITIES for name, kind in zip(run.column_names, kinds, strict=True)}


def _mean(found: PairedDifference | None) -> str:
    return "—" if found is None else difference(found.mean, plus=True)


def _interval(found: PairedDifference | None) -> str:
    return "—" if found is None else f"{difference(found.low)} to {difference(found.high)}"


def evaluate_runs(
    runs: Sequence[Run | str | os.PathLike[str]],
    *,
    new: str | os.PathLike[str] | None = None,
    on_run: OnStage | None = None,
    tell: Tell = to_stderr,
    **options: Any,
) -> ScoredRuns:
    """Score several runs with the same options, as `gpin evaluate` does.

    Arguments:
        runs: The runs, or their folders; the first is the one to which the others are compared.
        new: New data to score all of them on; by default each is scored on its own test part.
        on_run: Called after each batch with the name of the run, the number of its instances done and their total.
        tell: Called with each message for the user.
        options: Further options of `evaluate_run`; `sandwich` and `gaps` apply to a single run only.

    Example:
        found = evaluate_runs(["runs/digits-gp-1a2b3c4d", "runs/digits-vae-5e6f7a8b"], proposal="refined")
        found.difference(1).mean, found.difference(1).low, found.difference(1).high
    """
    for name in ("sandwich", "gaps"):
        if options.get(name) and len(runs) > 1:
            raise InputError(f"`{name}` applies to a single run: give one run, or leave it out")
    opened = [as_run(run) for run in runs]
    scores = []
    for name, run in zip(short_names(opened), opened, strict=True):
        on_batch = None if on_run is None else (lambda done, total, name=name: on_run(name, done, total))
        scores.append(evaluate_run(run, new=new, on_batch=on_batch, tell=tell, **options))
    return ScoredRuns(opened, scores, new is not None)
