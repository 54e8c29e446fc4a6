"""The experiments of the paper: run them, monitor them, and make their tables, figures and a page.

A `Study` is an experiment under a protocol, in a store. `gpin experiment` does the same from a shell.

Example:
    ```python
    from gpin.experiments import Study, write_report

    study = Study("mnist", protocol="desk", store="experiments", latent_dim=[10], rows=["vae", "gp"])
    print(study.estimate_cost(workers=2).seconds)
    study.run(workers=2)  # the same call resumes what was interrupted, and repeats nothing
    print(study.text("markdown"))
    print(study.record()["columns"][0]["rows"][0]["log_likelihood"]["mean"])
    write_report("experiments.html")
    ```

`rows` takes the names of variants (`VARIANTS`) or of any registered method, including your own.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpin.experiments.analysis.paper import PAPER
    from gpin.experiments.analysis.results import Results
    from gpin.experiments.analysis.statistics import Summary, mark
    from gpin.experiments.comparison import ModelComparison, compare
    from gpin.experiments.protocols import EXPERIMENTS, PROTOCOLS, VARIANTS, Experiment, Protocol, Variant
    from gpin.experiments.study import RunSummary, Study, write_report

__all__ = [
    "EXPERIMENTS",
    "PAPER",
    "PROTOCOLS",
    "VARIANTS",
    "Experiment",
    "ModelComparison",
    "Protocol",
    "Results",
    "RunSummary",
    "Study",
    "Summary",
    "Variant",
    "compare",
    "mark",
    "write_report",
]

_MODULES = {
    "analysis.paper": ("PAPER",),
    "analysis.results": ("Results",),
    "analysis.statistics": ("Summary", "mark"),
    "comparison": ("ModelComparison", "compare"),
    "protocols": ("EXPERIMENTS", "PROTOCOLS", "VARIANTS", "Experiment", "Protocol", "Variant"),
    "study": ("RunSummary", "Study", "write_report"),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that a worker imports only what it needs."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
