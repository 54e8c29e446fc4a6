"""The scores of many runs, gathered from the store by duckdb."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gpin._core.errors import InputError
from gpin._core.extras import extra
from gpin.data import open_source
from gpin.experiments.analysis.statistics import PairedDifference, Summary, paired_difference
from gpin.experiments.execution.store import Store
from gpin.experiments.protocols import Entry
from gpin.report.numbers import Correlation

if TYPE_CHECKING:
    import duckdb

__all__ = ["BASELINE", "Gathered", "Line", "PosteriorLine", "check_data"]

BASELINE = "vae"
"""The row with which all others are compared instance by instance."""

GAP = "refined_elbo - elbo"
EXCESS = "kl - best_kl"
ALL_COUNT = 0.99
"""Of K samples, the effective share above which the decoder takes no notice of the code."""
HERE = "where method = $method and data = $data and dim = $dim"
BY_SPLIT = f"""
    select split, avg(log_likelihood) as ll, avg(refined_log_likelihood) as refined, avg(elbo) as elbo,
           avg({GAP}) as gap, avg(ess) as ess, avg(refined_ess) as refined_ess,
           sqrt(sum(mc_error ** 2)) / count(*) as error, sqrt(sum(refined_mc_error ** 2)) / count(*) as refined_error,
           avg((khat > 0.7)::int) filter (not isnan(khat)) as bad,
           avg((refined_khat > 0.7)::int) filter (not isnan(refined_khat)) as refined_bad
    from scores {HERE} group by split order by split"""


@dataclass(frozen=True)
class Difference:
    """How much a method is ahead of the baseline.

    Attributes:
        instances: On the same instances, each the mean over the splits that have both: for these trainings.
        splits: Of the means over instances, split by split: for trainings like these, of which there are few.
        ahead: In how many of these splits.
    """

    instances: PairedDifference
    splits: PairedDifference
    ahead: int


@dataclass(frozen=True)
class Line:
    """What the runs of one method came to, on one data set and with one latent dimension.

    Every `Summary` is over runs, one a split: of its initialisations, the best on validation data.

    Attributes:
        row: The method.
        done: Trainings that are there, of all initialisations.
        wanted: Trainings that there should be.
        log_likelihood: Mean over test instances, by proposals of the encoder.
        refined: Likewise, by proposals fitted to each instance: a score of the model, hardly of the encoder.
        elbo: The encoder's bound.
        gap: Refined ELBO − the encoder's: the amortization gap.
        ess: Mean effective samples, of both proposals.
        bad: Share of instances with k̂ > 0.7 among those where it is known, of both.
        mc_error: Monte-Carlo error of the mean of a run, of both.
        differences: To the baseline's log-likelihood, of both proposals; empty for the baseline itself.
        by_uncertainty: Rank correlation of the gap with the encoder's uncertainty, mean over runs; None without one.
        by_elbo: With −ELBO, which every encoder has.
        parameters: How many numbers it learns.
        collapsed: Splits on which all samples of the encoder, or all of the fitted proposals, count alike: the decoder
            takes no notice of the code. (Or these proposals are the true posteriors, as they can be in toy problems.)
    """

    row: str
    done: int
    wanted: int
    log_likelihood: Summary
    refined: Summary
    elbo: Summary
    gap: Summary
    ess: tuple[float, float]
    bad: tuple[float, float]
    mc_error: tuple[float, float]
    differences: tuple[Difference, ...]
    by_uncertainty: Correlation | None
    by_elbo: Correlation | None
    parameters: int
    collapsed: tuple[int, ...]


@dataclass(frozen=True)
class PosteriorLine:
    """How far the encoders of one method are from the true posterior on the grid, and what tells of it.

    Attributes:
        log_evidence: log p(x), exact.
        kl: KL(q‖p) of the encoder's posterior to the true one.
        best_kl: Of the diagonal Gaussian that is best for each instance.
        excess: kl − best_kl: what amortization costs.
        by_uncertainty: Rank correlations of kl and of the excess with the encoder's uncertainty.
        by_elbo: With −ELBO.
    """

    log_evidence: Summary
    kl: Summary
    best_kl: Summary
    excess: Summary
    by_uncertainty: tuple[Correlation | None, Correlation | None]
    by_elbo: tuple[Correlation | None, Correlation | None]


class Gathered:
    """What the store has of some entries.

    Arguments:
        store: Where the results are.
        entries: Which are wanted.
    """

    def __init__(self, store: Store, entries: Sequence[Entry]) -> None:
        self.store, self.entries = store, list(entries)
        self.results = {entry.job.identity: store.result(entry.job) for entry in entries}

    @property
    def done(self) -> int:
        """How many entries have a result."""
        return sum(self.results[entry.job.identity] is not None for entry in self.entries)

    @cached_property
    def environments(self) -> list[dict[str, Any]]:
        """The different machines and versions that the results come from."""
        found: list[dict[str, Any]] = []
        for record in self.results.values():
            if record is not None and record["environment"] not in found:
                found.append(record["environment"])
        return found

    @cached_property
    def fingerprints(self) -> dict[str, set[str]]:
        """By data set, the fingerprints of what was trained on: more than one means that it was not the same."""
        found: dict[str, set[str]] = {}
        for entry in self.entries:
            record = self.results[entry.job.identity]
            if record is not None:
                found.setdefault(entry.data, set()).add(record["fingerprint"])
        return found

    def sizes(self, data: str) -> list[tuple[int, int]]:
        """How many instances were trained and scored on."""
        found = [self.results[entry.job.identity] for entry in self.entries if entry.data == data]
        counts = [record["instances"] for record in found if record is not None]
        return sorted({(count["train"], count["test"]) for count in counts})

    @cached_property
    def _scores(self) -> "duckdb.DuckDBPyConnection":
        """Table `runs`, of each split the best on validation data, and table `scores`, all of their instances."""
        with extra("experiments"):
            import duckdb

        connection = duckdb.connect()
        connection.execute(
            "create table every (method text, data text, dim integer, split integer, identity text, "
            "validation double, parameters bigint, file text)"
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
            )
            for entry in self.entries
            if (record := self.results[entry.job.identity]) is not None
        ]
        if rows:
            connection.executemany(f"insert into every values ({', '.join('?' * len(rows[0]))})", rows)
        connection.execute(
            "create table runs as select * from every qualify row_number() over "
            "(partition by method, data, dim, split order by isnan(validation), validation desc, identity) = 1"
        )
        files = [row[0] for row in connection.execute("select distinct file from runs order by file").fetchall()]
        connection.execute(
            "create table scores as select runs.method, runs.data, runs.dim, runs.split, found.* from runs join "
            "(select *, filename as file from read_parquet(?, union_by_name = true, filename = true, "
            "hive_partitioning = false)) as found using (file)",
            [files],
        )
        return connection

    def columns(self) -> list[tuple[str, int]]:
        """Data sets and latent dimensions, in the order of the entries."""
        return list(dict.fromkeys((entry.data, entry.latent_dim) for entry in self.entries))

    def lines(self, data: str, latent_dim: int) -> list[Line]:
        """A line for every method that has at least one result."""
        if not self.done:
            return []
        mine = [entry for entry in self.entries if (entry.data, entry.latent_dim) == (data, latent_dim)]
        rows = dict.fromkeys(entry.row for entry in mine)
        lines = (self._line(row, data, latent_dim, [entry for entry in mine if entry.row == row]) for row in rows)
        return [line for line in lines if line is not None]

    def _line(self, row: str, data: str, latent_dim: int, entries: Sequence[Entry]) -> Line | None:
        place = {"method": row, "data": data, "dim": latent_dim}
        splits = self._query(BY_SPLIT, place)
        if not len(splits["split"]):
            return None
        about = self._query(f"select avg(parameters) as size from runs {HERE}", place)
        found = (self._difference(place, score) for score in ("log_likelihood", "refined_log_likelihood"))
        return Line(
            row,
            done=sum(self.results[entry.job.identity] is not None for entry in entries),
            wanted=len(entries),
            log_likelihood=Summary.of(splits["ll"]),
            refined=Summary.of(splits["refined"]),
            elbo=Summary.of(splits["elbo"]),
            gap=Summary.of(splits["gap"]),
            ess=(float(splits["ess"].mean()), float(splits["refined_ess"].mean())),
            bad=(float(splits["bad"].mean()), float(splits["refined_bad"].mean())),
            mc_error=(float(splits["error"].mean()), float(splits["refined_error"].mean())),
            differences=tuple(difference for difference in found if difference is not None),
            by_uncertainty=self.correlation(row, data, latent_dim, "uncertainty", GAP),
            by_elbo=self.correlation(row, data, latent_dim, "-elbo", GAP),
            parameters=int(about["size"][0]),
            collapsed=tuple(
                int(split)
                for split, *ess in zip(splits["split"], splits["ess"], splits["refined_ess"], strict=True)
                if max(ess) > ALL_COUNT * entries[0].job.scoring.samples
            ),
        )

    def _difference(self, place: Mapping[str, Any], score: str) -> Difference | None:
        """To the baseline; None where no split has both, and for the baseline itself."""
        if place["method"] == BASELINE:
            return None
        pairs = (
            f"select split, instance, ours.{score} as ours, theirs.{score} as theirs from scores as ours "
            "join scores as theirs using (data, dim, split, instance) where ours.method = $method and "
            "theirs.method = $baseline and data = $data and dim = $dim"
        )
        each, whole = (
            self._query(
                f"select avg(ours) as ours, avg(theirs) as theirs from ({pairs}) group by {what} order by {what}",
                {**place, "baseline": BASELINE},
            )
            for what in ("instance", "split")
        )
        if len(each["ours"]) < 2:
            return None
        ahead = int((whole["ours"] > whole["theirs"]).sum())
        return Difference(
            paired_difference(each["ours"], each["theirs"]), paired_difference(whole["ours"], whole["theirs"]), ahead
        )

    def correlation(self, row: str, data: str, latent_dim: int, x: str, y: str) -> Correlation | None:
        """Rank correlation over instances of two expressions of their scores, mean over runs.

        None where a run does not have them, such as an uncertainty; instances for which one is not known are left out.
        """
        with extra("experiments"):
            from duckdb import BinderException

        place = {"method": row, "data": data, "dim": latent_dim}
        try:
            sql = f"select split, ({x})::double as x, ({y})::double as y from scores {HERE} order by split, instance"
            found = self._query(sql, place)
        except BinderException:  # no run at all has such a score
            return None
        each = []
        for split in np.unique(found["split"]):
            mine = found["split"] == split
            one, other = (torch.from_numpy(found[name][mine]) for name in ("x", "y"))
            known = ~(one.isnan() | other.isnan())
            if not known.any():
                return None
            each.append(Correlation.of(one[known], other[known]))
        return _mean(each) if each else None

    def posterior_line(self, row: str, data: str, latent_dim: int) -> PosteriorLine:
        """Of a method that has results with a grid."""
        place = {"method": row, "data": data, "dim": latent_dim}
        scores = {"log_evidence": "log_evidence", "kl": "kl", "best_kl": "best_kl", "excess": EXCESS}
        means = ", ".join(f"avg({score}) as {name}" for name, score in scores.items())
        found = self._query(f"select {means} from scores {HERE} group by split order by split", place)

        def by(teller: str) -> tuple[Correlation | None, Correlation | None]:
            over, excess = (self.correlation(row, data, latent_dim, teller, distance) for distance in ("kl", EXCESS))
            return over, excess

        summaries = {name: Summary.of(found[name]) for name in scores}
        return PosteriorLine(**summaries, by_uncertainty=by("uncertainty"), by_elbo=by("-elbo"))

    def _query(self, sql: str, place: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Columns by name; what is null becomes NaN."""
        found = self._scores.execute(sql, dict(place)).fetchnumpy()
        return {
            name: np.ma.filled(column.astype(float), np.nan) if np.ma.isMaskedArray(column) else np.asarray(column)
            for name, column in found.items()
        }


def check_data(store: Store, entries: Sequence[Entry], needed: Collection[str]) -> None:
    """Refuse to go on with other images than those that the results in the store are of.

    Arguments:
        store: Where the results are.
        entries: Of the table.
        needed: Data sets that will be trained on; of the others, those that are not here are not looked at.
    """
    known = Gathered(store, entries).fingerprints
    for data in dict.fromkeys(entry.data for entry in entries):
        try:
            source = open_source(data)
        except InputError:
            if data in needed:
                raise
            continue
        if data in known and known[data] != {source.fingerprint()}:
            raise InputError(
                f"{store.root} has results of other images under the name {data} than are here now: "
                "take another `store`, or move those results away"
            )


def _mean(found: Sequence[Correlation]) -> Correlation:
    """Of runs, with the error of one: their instances are the same."""
    return Correlation(*(float(np.mean(values)) for values in zip(*((c.rho, c.stderr) for c in found), strict=True)))
