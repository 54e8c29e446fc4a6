"""The history of training, epoch by epoch, and the files it is written to."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpin._core.files import write_whole

__all__ = ["Epoch", "History", "Metrics"]


@dataclass(frozen=True)
class Epoch:
    """The result of one epoch.

    Attributes:
        train: The mean of the method's bound over the steps of the epoch, on training data.
        validation: The mean ELBO of q(z|x) on validation data.
        seconds: The duration of the epoch.
        learning_rate: The learning rate of its last step.
        stage: The stage of training that it belongs to.
        score: The validation score, by which the best epoch is chosen: the mean of log (1/4) Σ_k p(x, z_k) / q(z_k|x)
            over validation data, see `gpin.training.validation`. None if the run was started by a version that chose by
            the method's own bound, which is then in `validation`.
        processor_seconds: The processor time of the epoch, of this process and all its threads. Unlike `seconds`, it
            hardly depends on what else the machine does. None in runs of older versions.
    """

    train: float
    validation: float
    seconds: float
    learning_rate: float = 0.0
    stage: str = "all"
    score: float | None = None
    processor_seconds: float | None = None

    def record(self) -> dict[str, Any]:
        """The epoch as a mapping, ready for JSON; fields that are None are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass
class History:
    """The history of training, epoch by epoch.

    Attributes:
        epochs: The result of each epoch.
        best: The number, from 1, of the epoch whose weights the model has now: the best by its validation score.
        stopped: Whether `on_epoch` ended training early.
        paused: Whether training ended because its time was up (`max_time`), so that the same call resumes it.
    """

    epochs: list[Epoch] = field(default_factory=list)
    best: int = 0
    stopped: bool = False
    paused: bool = False

    @property
    def train(self) -> list[float]:
        """The mean training ELBO of each epoch."""
        return [epoch.train for epoch in self.epochs]

    @property
    def validation(self) -> list[float]:
        """The mean validation ELBO of each epoch."""
        return [epoch.validation for epoch in self.epochs]

    @property
    def scores(self) -> list[float | None]:
        """The validation score of each epoch, by which the best one is chosen."""
        return [epoch.score for epoch in self.epochs]

    @property
    def seconds(self) -> float:
        """The total duration of all epochs."""
        return sum(epoch.seconds for epoch in self.epochs)

    def rows(self) -> list[dict[str, Any]]:
        """One mapping per epoch, ready for a table."""
        return [{"epoch": number, **epoch.record()} for number, epoch in enumerate(self.epochs, start=1)]

    def record(self) -> dict[str, Any]:
        """The history as a mapping, ready for JSON."""
        epochs = [epoch.record() for epoch in self.epochs]
        return {"best": self.best, "stopped": self.stopped, "epochs": epochs}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "History":
        """The history of which `record` made this mapping."""
        return cls([Epoch(**epoch) for epoch in record["epochs"]], record["best"], record.get("stopped", False))


class Metrics:
    """Writes `metrics.jsonl`, one line per epoch, and `metrics.parquet` at the end."""

    def __init__(self, folder: Path, history: History) -> None:
        self.folder = folder
        self.lines = folder / "metrics.jsonl"
        # If training was killed, the last line may be incomplete, or belong to an epoch that will be trained again.
        _write_changed(self.lines, "".join(json.dumps(row) + "\n" for row in history.rows()).encode())

    def add(self, history: History) -> None:
        """Write the newest epoch."""
        row = history.rows()[-1]
        with open(self.lines, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def close(self, history: History) -> None:
        """Write the whole history as a Parquet table."""
        import pyarrow as pa
        from pyarrow import parquet

        buffer = pa.BufferOutputStream()
        rows = history.rows()
        names = dict.fromkeys(name for row in rows for name in row)  # epochs of an older version have fewer
        parquet.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), buffer)
        _write_changed(self.folder / "metrics.parquet", buffer.getvalue().to_pybytes())


def _write_changed(path: Path, content: bytes) -> None:
    """Write a file unless it already has this content: a finished run may be in a read-only folder."""
    if not path.is_file() or path.read_bytes() != content:
        write_whole(path, content)
