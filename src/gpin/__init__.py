"""Amortized inference for variational autoencoders: nine methods behind one interface."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpin._core.errors import InputError, StopTraining, TrainingError
    from gpin.building import build, load
    from gpin.experiments.comparison import compare
    from gpin.export import export
    from gpin.runs import open_run
    from gpin.runs.report import write_report
    from gpin.sklearn import GPVAE
    from gpin.training import fit, improve
    from gpin.vae import VAE

__version__ = "0.1.0"
__all__ = [
    "GPVAE",
    "VAE",
    "InputError",
    "StopTraining",
    "TrainingError",
    "__version__",
    "build",
    "compare",
    "export",
    "fit",
    "improve",
    "load",
    "open_run",
    "write_report",
]

_HOMES = {
    "VAE": "gpin.vae",
    "build": "gpin.building",
    "load": "gpin.building",
    "compare": "gpin.experiments.comparison",
    "fit": "gpin.training",
    "improve": "gpin.training",
    "GPVAE": "gpin.sklearn",
    "export": "gpin.export",
    "open_run": "gpin.runs",
    "write_report": "gpin.runs.report",
    "InputError": "gpin._core.errors",
    "StopTraining": "gpin._core.errors",
    "TrainingError": "gpin._core.errors",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import gpin` does not import torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'gpin' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
