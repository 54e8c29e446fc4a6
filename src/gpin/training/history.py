"""What happened in training, epoch by epoch, and the files that tell of it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpin.errors import InputError
from gpin.files import write_whole

__all__ = ["Epoch", "History", "Metrics"]


@dataclass(frozen=True)
class Epoch:
    """One epoch: the mean ELBO on training and validation data, and the seconds it took."""

    train: float
    validation: float
    seconds: float
    learning_rate: float = 0.0
    stage: str = "all"


@dataclass
class History:
    """What happened, epoch by epoch. `best` is the epoch (from 1) whose weights the model has now."""

    epochs: list[Epoch] = field(default_factory=list)
    best: int = 0

    @property
    def train(self) -> list[float]:
        """Mean training ELBO by epoch."""
        return [epoch.train for epoch in self.epochs]

    @property
    def validation(self) -> list[float]:
        """Mean validation ELBO by epoch."""
        return [epoch.validation for epoch in self.epochs]

    @property
    def seconds(self) -> float:
        """All epochs together."""
        return sum(epoch.seconds for epoch in self.epochs)

    def rows(self) -> list[dict[str, Any]]:
        """One mapping an epoch, ready for a table."""
        return [{"epoch": number, **asdict(epoch)} for number, epoch in enumerate(self.epochs, start=1)]

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"best": self.best, "epochs": [asdict(epoch) for epoch in self.epochs]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "History":
        """What `record` gave."""
        return cls([Epoch(**epoch) for epoch in record["epochs"]], record["best"])


class Metrics:
    """`metrics.jsonl`, a line an epoch as training goes on; `metrics.parquet` at its end; TensorBoard on request."""

    def __init__(self, folder: Path, history: History, tensorboard: bool = False) -> None:
        self.folder = folder
        self.lines = folder / "metrics.jsonl"
        # After a kill the last line may be torn, or of an epoch that will be trained again.
        write_whole(self.lines, "".join(json.dumps(row) + "\n" for row in history.rows()).encode())
        self.writer = _tensorboard_writer(folder, len(history.epochs)) if tensorboard else None

    def add(self, history: History) -> None:
        """Write the newest epoch."""
        row = history.rows()[-1]
        with open(self.lines, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if self.writer is not None:
            for name in ("train", "validation", "learning_rate"):
                self.writer.add_scalar(name if name == "learning_rate" else f"elbo/{name}", row[name], row["epoch"])
            self.writer.flush()

    def close(self, history: History) -> None:
        """Write the whole history as a table."""
        import pyarrow as pa
        from pyarrow import parquet

        buffer = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_pylist(history.rows()), buffer)
        write_whole(self.folder / "metrics.parquet", buffer.getvalue().to_pybytes())
        if self.writer is not None:
            self.writer.close()


def _tensorboard_writer(folder: Path, done: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise InputError("TensorBoard is not installed: pip install 'gpin[tensorboard]'") from None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)
