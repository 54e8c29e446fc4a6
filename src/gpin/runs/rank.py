"""The instances of data in the order of how unusual they are for a run's model, with the reasons."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gpin._core.devices import device_named
from gpin._core.errors import InputError
from gpin._core.files import as_path, write_whole
from gpin._core.inputs import check_seed
from gpin._core.messages import Tell, to_stderr
from gpin._core.seeding import seeded
from gpin.data import Rows, Scaling
from gpin.evaluation.anomalies import AnomalyScore, anomaly_score
from gpin.report.numbers import without_nan
from gpin.runs.folder import Run, as_run
from gpin.runs.outputs import Columns, check_output, pairs_picture, write_array, write_table
from gpin.runs.reference import REFERENCE, Part, Reference, Scorer, joined
from gpin.runs.rows import OnBatch, map_batches, open_data, source_options

__all__ = ["Ranking", "rank_run"]

MAPS = 16
"""The number of instances in a picture of contributions."""


@dataclass(frozen=True)
class Ranking:
    """Instances in the order of how unusual they are, the most unusual first.

    Attributes:
        columns: One row per instance. `rank` counts from 1 and `row` from 0; `file` is the path of a picture in its
            folder. `percentile` is the percentage of the reference that is less unusual. The scores are
            `log_likelihood` with its diagnostics `ess` and `khat`, `elbo`, `reconstruction_error`, `gap`, and for
            pictures `complexity`, the compressed size in nats, and `corrected_log_likelihood`, their sum in the units
            of the data. `reason` says what is unusual. `code_contribution`, and `contribution_…` of each column or
            region, are the nats by which they exceed their means in the reference; together they are the difference of
            −ELBO from its mean, up to the noise of the draws.
        score: The score by which the instances are ranked.
        part: The part of the run's data that is the reference.
        reference: The number of instances in the reference.
        trained: The number of ranked instances that the model was trained on: zero, unless they are the run's own data.
    """

    columns: Columns
    score: AnomalyScore
    part: Part
    reference: int
    trained: int = 0

    def __len__(self) -> int:
        return len(self.columns["row"])

    def record(self, top: int | None = None) -> dict[str, Any]:
        """The ranking, or its first instances, ready for JSON; unknown values are None."""
        lists = {name: column[:top].tolist() for name, column in self.columns.items()}
        rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
        about = {"by": self.score.name, "against": self.part, "reference": self.reference, "instances": len(self)}
        record: dict[str, Any] = without_nan({**about, "ranking": rows})
        return record


def rank_run(
    run: Run | str | os.PathLike[str],
    other: str | os.PathLike[str],
    *,
    by: str = "log_likelihood",
    against: Part | None = None,
    reference: int = REFERENCE,
    samples: int = 100,
    proposal: Literal["encoder", "refined"] = "encoder",
    gap: str | None = None,
    out: str | os.PathLike[str] | None = None,
    contributions: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    data: str | os.PathLike[str] | None = None,
    seed: int = 0,
    columns: Sequence[str] | None = None,
    key: str | None = None,
    size: Sequence[int] | None = None,
    grey: bool | None = None,
    skip_damaged: bool | None = None,
    given: Mapping[str, Any] | None = None,
    device: str | None = None,
    on_batch: OnBatch | None = None,
    tell: Tell = to_stderr,
) -> Ranking:
    """Rank instances by how unusual they are for a run's model, as `gpin rank` does.

    Arguments:
        run: The run, or its folder.
        other: The data to rank: a data set's name or a path. It is read as in the run, except for the options given.
        by: The score: "log_likelihood", "elbo", "reconstruction", "gap" (the likelihood regret) or "complexity" (for
            pictures, the log-likelihood plus the compressed size), see `gpin.evaluation.anomalies`.
        against: The part of the run's data with which instances are compared. By default "validation", because a
            model explains the instances it was fitted to better than new ones; but "train" if there are fewer than 100
            validation instances.
        reference: The maximum number of these instances, chosen at random.
        samples: K, the number of importance samples for each log-likelihood.
        proposal: The distribution to sample from: the encoder's posterior, or a Gaussian refined for each instance.
        gap: How the gap is determined, see `VAE.gap`; "none" leaves it out. By default "refined" to rank by the gap,
            because the others are calibrated for ordinary instances, and "estimated" otherwise.
        out: A file to write all columns to, .csv, .parquet or .json.
        contributions: For pictures, a file for the contributions of single pixels: .npy for those of all instances,
            `(n, *shape)` in the order of the rows; .png for a picture of the 16 most unusual instances, each above a
            map in which bright pixels are unusual.
        overwrite: Whether files that exist may be replaced.
        data: The new location of the run's own data, if it has moved.
        seed: The seed of all noise and of the choice of the reference.
        columns: The columns of a table.
        key: The array in an .npz archive.
        size: The height and width to resize the images of a folder to.
        grey: Whether to read the images of a folder in grey, with one channel.
        skip_damaged: Whether to leave out files of a folder that cannot be read as one picture.
        given: Values of the conditions of a conditional model that are the same for all instances, by name; the others
            are read with the data, as in the run.
        device: The device, such as "cpu" or "cuda"; by default a GPU if there is one.
        on_batch: Called after each batch, first of the reference and then of the instances to rank, with the number of
            instances done and their total.
        tell: Called with each message for the user.

    Example:
        found = rank_run("runs/wine-gp-1a2b3c4d", "wine.csv", by="gap")
        found.columns["row"][:10], found.columns["reason"][:10]
    """
    run, score = as_run(run), anomaly_score(by)
    gap = gap or ("refined" if score.name == "gap" else "estimated")
    check_seed(seed)
    places = [str(other), run.location, None if data is None else str(data)]
    table = None if out is None else _file(out, "a ranking", overwrite, *places, tell=tell)
    maps = None if contributions is None else _maps_file(contributions, run, overwrite, *places, tell=tell)
    vae = run.load(tell).to(device_named(device))
    scorer = Scorer.of(run, vae, samples=samples, proposal=proposal, gap=gap)
    options = source_options(columns=columns, key=key, size=size, grey=grey, skip_damaged=skip_damaged)
    rows = open_data(run, other, **options, given=given, tell=tell)
    found = Reference.measured(
        run, scorer, score, against=against, limit=reference, data=data, seed=seed, on_batch=on_batch
    )
    if maps is not None and found.values is None:
        raise InputError(
            "the likelihood of the run does not say how probable single pixels are: leave contributions out"
        )
    batches: list[Columns] = []

    def scored() -> Iterator[np.ndarray]:
        """Keep the columns of each batch, and yield its contributions."""
        for columns, values in _scored(found, rows, seed, on_batch):
            batches.append(columns)
            yield values

    if maps is not None and maps.suffix.lower() == ".npy":
        write_array(maps, scored(), len(rows))
    else:
        for _ in scored():
            pass
    every = joined(batches)
    order = np.argsort(-score.of(every), kind="stable")
    ranking = Ranking(
        {"rank": np.arange(1, len(order) + 1)} | {name: column[order] for name, column in every.items()},
        score,
        found.part,
        len(found.unusual),
        0 if options or given else _trained_on(run, other),
    )
    if maps is not None and maps.suffix.lower() == ".png":
        with seeded(seed):
            write_whole(maps, _maps(found, rows.chosen(order[:MAPS])[:]))
    if table is not None:
        _write(ranking, table)
    return ranking


def _trained_on(run: Run, other: str | os.PathLike[str]) -> int:
    """The number of training instances in data that is that of the run, by its fingerprint; zero for other data."""
    if run.fitted:
        return 0
    try:
        return len(run.data(other).train)
    except InputError:
        return 0


def _scored(
    reference: Reference, rows: Rows, seed: int, on_batch: OnBatch | None
) -> Iterator[tuple[Columns, np.ndarray]]:
    """The columns of all instances without their ranks, and the contributions of their values, batch by batch."""

    def columns_of(numbers: np.ndarray, x: Tensor) -> tuple[Columns, np.ndarray]:
        columns = {"row": numbers}
        if rows.names is not None:
            columns["file"] = np.array([rows.names[row] for row in numbers])
        scores, contributions = reference.scorer.scores(x), reference.contributions(x)
        more = reference.columns(scores, x, contributions)
        values = np.empty(0) if contributions[0] is None else contributions[0].astype(np.float32)
        return columns | {"percentile": more.pop("percentile")} | scores | more, values

    return map_batches(columns_of, rows, seed=seed, on_batch=on_batch)


def _file(path: str | os.PathLike[str], what: str, overwrite: bool, *data: str | None, tell: Tell) -> Path:
    """A file that can be written, and that does not exist unless it may be replaced."""
    file = as_path(path, "the file to write")
    check_output(file, what, *data, tell=tell)
    if file.exists() and not overwrite:
        raise InputError(f"{file} exists already: choose another name, or replace it with `overwrite`")
    return file


def _maps_file(path: str | os.PathLike[str], run: Run, overwrite: bool, *data: str | None, tell: Tell) -> Path:
    """The file for the contributions of pixels."""
    shape = run.model.shape
    if len(shape) != 3:
        raise InputError(
            "`contributions` are those of the pixels of pictures: those of columns are in the table itself"
        )
    file = _file(path, "images", overwrite, *data, tell=tell)
    if file.suffix.lower() == ".png" and shape[0] not in (1, 3):
        raise InputError(f"pictures of {shape[0]} channels cannot be shown in {file}: write a .npy file instead")
    return file


def _maps(reference: Reference, x: Tensor) -> bytes:
    """Pictures, each above a map of its unusual pixels, as a PNG file."""
    values, _ = reference.contributions(x)
    assert values is not None
    x = reference.scorer.values(x).cpu()
    bright = np.clip(values.sum(1, keepdims=True), 0, None)
    bright /= np.maximum(bright.max(axis=(1, 2, 3), keepdims=True), 1e-12)
    low, high = min(0.0, x.min().item()), max(1.0, x.max().item())
    maps = torch.from_numpy(bright).to(x).expand_as(x)
    return pairs_picture((x - low) / (high - low), maps, Scaling(kind="none"))


def _write(ranking: Ranking, out: Path) -> None:
    """Write all columns of a ranking."""
    if out.suffix.lower() == ".json":
        write_whole(out, json.dumps(ranking.record(), indent=2, ensure_ascii=False, allow_nan=False).encode())
    else:
        write_table(out, [ranking.columns])
