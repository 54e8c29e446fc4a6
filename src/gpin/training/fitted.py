"""What a folder of `gpin.fit` has besides checkpoints and metrics, so that the commands can open it.

`fit.json` holds the model, the options of training and, if it is known, the scaling of the data; `model/` the trained
model. The folder of a run of `gpin.runs.train` has its own `run.json` instead.
"""

from pathlib import Path
from typing import Any

from torch.utils.data import Subset

from gpin._core.files import read_record, write_record
from gpin.data import Batches
from gpin.data.batches import Conditioned
from gpin.training.settings import TrainingConfig
from gpin.vae import VAE

__all__ = ["FITTED", "read_fitted", "save_fitted", "write_fitted"]

FITTED = "fit.json"
FORMAT, VERSION = "gpin-fit", 1


def write_fitted(folder: Path, vae: VAE, config: TrainingConfig, training: Batches) -> None:
    """Write `fit.json`, unless it is there or the folder is that of a run."""
    if (folder / "run.json").exists() or (folder / FITTED).exists():
        return
    scaling = _scaling(training.data)
    record = {
        "model": None if vae.config is None else vae.config.model_dump(mode="json"),
        "training": config.model_dump(mode="json"),
        "scaling": None if scaling is None else scaling.model_dump(mode="json"),
        "instances": training.size,
    }
    write_record(folder / FITTED, FORMAT, VERSION, record)


def read_fitted(folder: Path) -> dict[str, Any]:
    """The content of `fit.json`."""
    return read_record(folder / FITTED, FORMAT, VERSION, "a record of gpin.fit")


def save_fitted(folder: Path, vae: VAE) -> None:
    """Write the trained model, unless it is there or the folder is that of a run."""
    path = folder / "model"
    if not (folder / "run.json").exists() and not path.exists():
        vae.save(path)


def _scaling(data: Any) -> Any:
    """The scaling of data that was read by gpin, which is known to its rows; None for other data."""
    while isinstance(data, Subset | Conditioned):
        data = data.dataset if isinstance(data, Subset) else data.data
    return getattr(data, "scaling", None)
