"""The results of an experiment: the scores of its runs, read from the store and summarised over runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gpin._core.extras import extra
from gpin.evaluation.paired import PairedDifference, paired_difference
from gpin.evaluation.reliability import lower_bound
from gpin.evaluation.scores import REFINED, SCORES, Score, with_derived
from gpin.experiments.analysis.statistics import Summary
from gpin.experiments.execution.jobs import OWN
from gpin.experiments.execution.store import Store
from gpin.experiments.execution.timing import read_times
from gpin.experiments.protocols import Entry, Experiment, Protocol
from gpin.report.numbers import Correlation, without_nan

if TYPE_CHECKING:
    import duckdb

__all__ = [
    "BASELINES",
    "Difference",
    "PosteriorResult",
    "Results",
    "VariantResult",
    "experiment_record",
    "experiment_times",
]

BASELINES = {"vae": "the VAE", "vae-2x": "the VAE with twice the epochs"}
"""The variants with which all others are compared instance by instance. The second takes about the training time of
`natural`."""

ALL_COUNT = 0.99
"""The effective share of the K samples above which the decoder ignores the code."""
HERE = "where method = $method and data = $data and dim = $dim"


@dataclass(frozen=True)
class Difference:
    """The difference between a variant and the baseline.

    Attributes:
        instances: The paired difference over instances, each averaged over the splits that both variants have: it
            holds for these trainings.
        splits: The paired difference over splits, each averaged over instances: it holds for trainings like these.
        ahead: The number of splits in which the variant is ahead.
    """

    instances: PairedDifference
    splits: PairedDifference
    ahead: int


@dataclass(frozen=True)
class VariantResult:
    """The scores of one variant on one data set with one latent dimension.

    Every `Summary` is over runs, one per split: the initialisation that is best on validation data.

    Attributes:
        row: The name of the variant.
        done: The number of trainings that are done, over all splits and initialisations.
        wanted: The number of trainings in the experiment.
        scores: The headline of every score that all of these runs have, see `gpin.evaluation.scores.SCORES`.
        differences: The differences from the log-likelihood of each baseline, with proposals of the encoder and with
            refined ones, by the name of the baseline; without the variant itself and baselines that have no runs.
        by_uncertainty: The rank correlation of the amortization gap with the encoder's uncertainty, mean over runs;
            None if it has no uncertainty.
        by_elbo: The rank correlation of the amortization gap with −ELBO, which every encoder has.
        by_gap: The rank correlations of the amortization gap with the estimated and with the predicted gap; None for
            runs that were scored without them.
        parameters: The number of trainable parameters.
        collapsed: The splits on which all samples of the encoder, or all of the refined proposals, have equal weight:
            the decoder ignores the code. (Or the proposals are the true posteriors, as they can be in toy problems.)
    """

    row: str
    done: int
    wanted: int
    scores: Mapping[str, Summary]
    differences: Mapping[str, tuple[Difference, ...]]
    by_uncertainty: Correlation | None
    by_elbo: Correlation | None
    by_gap: tuple[Correlation | None, Correlation | None]
    parameters: int
    collapsed: tuple[int, ...]

    def is_bound(self, score: Score) -> bool | None:
        """Whether a score is only a bound, by the share of instances with k̂ > 0.7, mean over runs.

        It is None if that is not known.
        """
        known = None if score.khat is None else self.scores.get(score.khat)
        return False if known is None else lower_bound(known.mean)

    def record(self) -> dict[str, Any]:
        """The numbers, ready for JSON: every score under `scores`, and some also under their former names.

        `lower_bound` says which log-likelihoods are only lower bounds, and these have no `mc_error`.
        """
        record = asdict(self)
        scores = record["scores"]
        record |= {key: scores[name] for key, name in NAMED.items()}
        for key, name in NAMED_PAIRS.items():
            record[key] = {"encoder": scores[name]["mean"], "refined": scores[REFINED + name]["mean"]}
        bounds = {"encoder": self.is_bound(SCORES["mc_error"]), "refined": self.is_bound(SCORES[REFINED + "mc_error"])}
        record["lower_bound"] = bounds
        record["mc_error"] = {how: None if bounds[how] else error for how, error in record["mc_error"].items()}
        record["differences_from"] = {
            baseline: dict(zip(("encoder", "refined"), found, strict=False))
            for baseline, found in record["differences"].items()
        }
        record["differences"] = record["differences_from"].get("vae", {})
        return record


NAMED = {
    "log_likelihood": "log_likelihood",
    "refined": "refined_log_likelihood",
    "elbo": "elbo",
    "gap": "amortization_gap",
}
NAMED_PAIRS = {"ess": "ess", "bad": "khat", "mc_error": "mc_error"}
"""The keys of a variant's record that are older than the registry of scores, with their scores."""


@dataclass(frozen=True)
class PosteriorResult:
    """How far the encoders of one variant are from the true posterior on the grid, and what predicts the distance.

    Attributes:
        log_evidence: The exact log p(x).
        kl: The inference gap, KL(q‖p) from the encoder's posterior to the true one.
        best_kl: The approximation gap, the same for the best diagonal Gaussian of each instance.
        excess: The amortization gap, kl − best_kl.
        by_uncertainty: The rank correlations of the inference and the amortization gap with the encoder's uncertainty.
        by_elbo: The rank correlations with −ELBO.
    """

    log_evidence: Summary
    kl: Summary
    best_kl: Summary
    excess: Summary
    by_uncertainty: tuple[Correlation | None, Correlation | None]
    by_elbo: tuple[Correlation | None, Correlation | None]


class Results:
    """The results that a store has for some entries of an experiment.

    Arguments:
        store: The store.
        entries: The entries of the experiment.
    """

    def __init__(self, store: Store, entries: Sequence[Entry]) -> None:
        self.store, self.entries = store, list(entries)
        self._records = {entry.job.identity: store.result(entry.job) for entry in entries}

    def records(self) -> Iterator[tuple[Entry, dict[str, Any]]]:
        """The entries that have a result, each with its record."""
        for entry in self.entries:
            if (record := self._records[entry.job.identity]) is not None:
                yield entry, record

    @property
    def done(self) -> int:
        """The number of entries that have a result."""
        return sum(self._records[entry.job.identity] is not None for entry in self.entries)

    @cached_property
    def environments(self) -> list[dict[str, Any]]:
        """The different machines and versions that the results come from."""
        found: list[dict[str, Any]] = []
        for record in self._records.values():
            if record is not None and record["environment"] not in found:
                found.append(record["environment"])
        return found

    @cached_property
    def fingerprints(self) -> dict[str, set[str]]:
        """The fingerprints of the training data by data set: more than one means that runs had different data."""
        found: dict[str, set[str]] = {}
        for entry in self.entries:
            record = self._records[entry.job.identity]
            if record is not None:
                found.setdefault(entry.data, set()).add(record["fingerprint"])
        return found

    def sizes(self, data: str) -> list[tuple[int, int]]:
        """The numbers of training and of scored instances."""
        found = [self._records[entry.job.identity] for entry in self.entries if entry.data == data]
        counts = [record["instances"] for record in found if record is not None]
        return sorted({(count["train"], count["test"]) for count in counts})

    def with_plain_steps(self, data: str, latent_dim: int) -> list[str]:
        """The rows with several natural-gradient steps whose runs are older than the acceleration of steps."""
        found = [
            entry.row
            for entry, record in self.records()
            if (entry.data, entry.latent_dim) == (data, latent_dim)
            and (entry.steps or 0) > 1
            and "accelerated" not in record["model"]["options"]
        ]
        return list(dict.fromkeys(found))

    @cached_property
    def _scores(self) -> "duckdb.DuckDBPyConnection":
        """The tables `runs`, the best run of each split on validation data, and `scores`, all of their instances."""
        with extra("experiments"):
            import duckdb

        # One thread adds numbers in one order, so that the same store always gives the same digits.
        connection = duckdb.connect(config={"threads": 1})
        connection.execute(
            "create table every (method text, data text, dim integer, split integer, identity text, "
            "validation double, parameters bigint, file text, steps integer)"
        )
        rows = [
            (
                entry.row,
                entry.data,
                entry.latent_dim,
                entry.split,
                entry.job.identity,
                record["validation_elbo"],
                record["parameters"],
                str(self.store.scores(entry.job)),
                OWN if entry.steps is None else entry.steps,
            )
            for entry in self.entries
            if (record := self._records[entry.job.identity]) is not None
        ]
        if rows:
            connection.executemany(f"insert into every values ({', '.join('?' * len(rows[0]))})", rows)
        connection.execute(
            "create table runs as select * from every qualify row_number() over "
            "(partition by method, data, dim, split order by isnan(validation), validation desc, identity) = 1"
        )
        files = [row[0] for row in connection.execute("select distinct file from runs order by file").fetchall()]
        connection.execute(
            "create table found as select *, filename as file from read_parquet(?, union_by_name = true, "
            "filename = true, hive_partitioning = false)",
            [files],
        )
        for name, kind, *_ in connection.execute("describe found").fetchall():
            if kind == "FLOAT":  # stored in single precision, but not calculated with in it
                connection.execute(f'alter table found alter column "{name}" type double')
        # A file without numbers of steps has the scores of the method's own posterior only.
        connection.execute("alter table found add column if not exists steps integer")
        connection.execute(
            "create table scores as select runs.method, runs.data, runs.dim, runs.split, found.* from runs join found "
            f"on runs.file = found.file and runs.steps = coalesce(found.steps, {OWN})"
        )
        return connection

    def columns(self) -> list[tuple[str, int]]:
        """The data sets and latent dimensions, in the order of the entries."""
        return list(dict.fromkeys((entry.data, entry.latent_dim) for entry in self.entries))

    def variants(self, data: str, latent_dim: int) -> list[VariantResult]:
        """The results of every variant that has at least one."""
        if not self.done:
            return []
        entries = [entry for entry in self.entries if (entry.data, entry.latent_dim) == (data, latent_dim)]
        rows = dict.fromkeys(entry.row for entry in entries)
        found = (self._variant(row, data, latent_dim, [entry for entry in entries if entry.row == row]) for row in rows)
        return [result for result in found if result is not None]

    def _variant(self, row: str, data: str, latent_dim: int, entries: Sequence[Entry]) -> VariantResult | None:
        place = {"method": row, "data": data, "dim": latent_dim}
        splits = self._instances(row, data, latent_dim)
        if not splits:
            return None
        about = self._query(f"select avg(parameters) as size from runs {HERE}", place)
        partial = entries[0].job.scoring.closely is not None
        compared = {
            baseline: tuple(
                found
                for score in ("log_likelihood", "refined_log_likelihood")
                if (found := self._difference(place, baseline, score, partial)) is not None
            )
            for baseline in BASELINES
        }
        most = ALL_COUNT * entries[0].job.scoring.samples
        return VariantResult(
            row,
            done=sum(self._records[entry.job.identity] is not None for entry in entries),
            wanted=len(entries),
            scores={
                name: Summary.of([score.value(_known(columns[name], partial)) for columns in splits.values()])
                for name, score in SCORES.items()
                if all(name in columns for columns in splits.values())
            },
            differences={baseline: found for baseline, found in compared.items() if found},
            by_uncertainty=_correlation(splits, "uncertainty", "amortization_gap"),
            by_elbo=_correlation(splits, "elbo", "amortization_gap", sign=-1),
            by_gap=(
                _correlation(splits, "estimated_gap", "amortization_gap"),
                _correlation(splits, "predicted_gap", "amortization_gap"),
            ),
            parameters=int(about["size"][0]),
            collapsed=tuple(
                split
                for split, columns in splits.items()
                if max(SCORES[name].value(_known(columns[name], partial)) for name in ("ess", REFINED + "ess")) > most
            ),
        )

    def _instances(self, row: str, data: str, latent_dim: int) -> dict[int, dict[str, Tensor]]:
        """The scores of all instances by split, each `(n,)`: those that the store has, and those derived from them."""
        place = {"method": row, "data": data, "dim": latent_dim}
        found = self._scores.execute(f"select * from scores {HERE} order by split, instance", place).fetchnumpy()
        splits = {}
        for split in np.unique(found["split"]):
            inside = found["split"] == split
            stored = {name: values[inside] for name, values in found.items() if name in SCORES}
            # A score that another run in the table has but this run lacks is null for all instances.
            known = {name: values for name, values in stored.items() if not np.ma.getmaskarray(values).all()}
            splits[int(split)] = with_derived({name: torch.from_numpy(np.asarray(v)) for name, v in known.items()})
        return splits

    def _difference(self, place: Mapping[str, Any], baseline: str, score: str, partial: bool) -> Difference | None:
        """The difference from a baseline; None for the baseline itself, and if no split has both.

        `partial` says that instances without the score are left out.
        """
        if place["method"] == baseline:
            return None
        pairs = (
            f"select split, instance, ours.{score} as ours, theirs.{score} as theirs from scores as ours "
            "join scores as theirs using (data, dim, split, instance) where ours.method = $method and "
            "theirs.method = $baseline and data = $data and dim = $dim"
        )
        if partial:
            pairs += f" and not isnan(ours.{score}) and not isnan(theirs.{score})"
        each, whole = (
            self._query(
                f"select avg(ours) as ours, avg(theirs) as theirs from ({pairs}) group by {what} order by {what}",
                {**place, "baseline": baseline},
            )
            for what in ("instance", "split")
        )
        if len(each["ours"]) < 2:
            return None
        ahead = int((whole["ours"] > whole["theirs"]).sum())
        return Difference(
            paired_difference(each["ours"], each["theirs"]), paired_difference(whole["ours"], whole["theirs"]), ahead
        )

    def posterior(self, row: str, data: str, latent_dim: int) -> PosteriorResult:
        """The comparison of a variant with the true posterior on the grid."""
        splits = self._instances(row, data, latent_dim)
        log_evidence, kl, best_kl, excess = (
            Summary.of([SCORES[name].value(columns[name]) for columns in splits.values()])
            for name in ("log_evidence", "kl", "best_kl", "grid_amortization_gap")
        )

        def by(predictor: str, sign: int = 1) -> tuple[Correlation | None, Correlation | None]:
            inference, amortization = (
                _correlation(splits, predictor, gap, sign) for gap in ("kl", "grid_amortization_gap")
            )
            return inference, amortization

        return PosteriorResult(log_evidence, kl, best_kl, excess, by("uncertainty"), by("elbo", -1))

    def _query(self, sql: str, place: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The columns of a query by name, with NaN for null."""
        found = self._scores.execute(sql, dict(place)).fetchnumpy()
        return {
            name: np.ma.filled(column.astype(float), np.nan) if np.ma.isMaskedArray(column) else np.asarray(column)
            for name, column in found.items()
        }


def _known(values: Tensor, partial: bool) -> Tensor:
    """The values of the instances that have one, if only a part was scored closely; otherwise all, with NaN."""
    return values[~values.isnan()] if partial else values


def _correlation(splits: Mapping[int, Mapping[str, Tensor]], x: str, y: str, sign: int = 1) -> Correlation | None:
    """The rank correlation over instances of sign · x with y, mean over runs.

    None if a run lacks one of them, such as an uncertainty. Instances for which one is unknown are left out.
    """
    each = []
    for columns in splits.values():
        if x not in columns or y not in columns:
            return None
        one, other = sign * columns[x], columns[y]
        known = ~(one.isnan() | other.isnan())
        if not known.any():
            return None
        each.append(Correlation.of(one[known], other[known]))
    return _mean(each) if each else None


def _mean(found: Sequence[Correlation]) -> Correlation:
    """The mean over runs, with the standard error of one run: all have the same instances."""
    return Correlation(*(float(np.mean(values)) for values in zip(*((c.rho, c.stderr) for c in found), strict=True)))


def experiment_times(
    experiment: Experiment, protocol: Protocol, results: Results, rows: Sequence[str]
) -> dict[str, Any] | None:
    """The inference times of some variants, for the data sets and latent dimensions of the results.

    An experiment that is only timed has no such results, so all columns are returned; None if nothing was measured.
    """
    found = read_times(results.store, experiment, protocol, rows)
    if found is None or not experiment.trained:
        return found
    wanted = results.columns()
    return {**found, "columns": [one for one in found["columns"] if (one["data"], one["latent_dim"]) in wanted]}


def experiment_record(
    experiment: Experiment, protocol: Protocol, results: Results, times: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The numbers of all tables of an experiment, ready for JSON; unknown values are None.

    Arguments:
        experiment: The experiment.
        protocol: The protocol under which it was run.
        results: Its results.
        times: Its inference times, see `experiment_times`.
    """
    columns = []
    for data, dim in results.columns():
        rows = [result.record() for result in results.variants(data, dim)]
        if experiment.grid:
            rows = [{**row, "posterior": asdict(results.posterior(row["row"], data, dim))} for row in rows]
        columns.append({"data": data, "latent_dim": dim, "rows": rows})
    record = {
        "experiment": experiment.name,
        "protocol": protocol.name,
        "runs": len(results.entries),
        "done": results.done,
        "columns": columns,
        "times": times,
    }
    known: dict[str, Any] = without_nan(record)
    return known
