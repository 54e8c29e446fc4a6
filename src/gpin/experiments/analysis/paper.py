"""The paper's own numbers, from `paper.json`, for comparison with ours.

They are keyed by the names of variants, see `gpin.experiments.protocols.VARIANTS`: `sa-4`, `rme-5`, `gp`.
"""

import json
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from gpin.experiments.analysis.statistics import Summary
from gpin.report.tables import Mark

__all__ = ["PAPER", "Paper"]

RUNS = 10
"""The number of runs behind the paper's means and standard deviations."""


@dataclass(frozen=True)
class Paper:
    """The tables of Kim & Pavlovic 2021.

    Attributes:
        log_likelihood: The summary in nats, by data set, latent dimension and variant.
        marks: The marks in the paper, by the same keys.
        supplement: The mean in the supplement, next to that of a fully connected decoder, by the same keys.
        inference_time: Milliseconds per batch of 128 with 50 latent dimensions, by data set and variant.
        dense_log_likelihood: The mean with a fully connected decoder, by data set, latent dimension and variant.
        dense_inference_time: Milliseconds per batch with a fully connected decoder, by the same keys.
    """

    log_likelihood: dict[str, dict[int, dict[str, Summary]]] = field(default_factory=dict)
    marks: dict[str, dict[int, dict[str, Mark]]] = field(default_factory=dict)
    supplement: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)
    inference_time: dict[str, dict[str, float]] = field(default_factory=dict)
    dense_log_likelihood: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)
    dense_inference_time: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)


def _read() -> Paper:
    content: dict[str, Any] = json.loads(
        (files("gpin.experiments.analysis") / "paper.json").read_text(encoding="utf-8")
    )
    likelihood, marks = {}, {}
    for name, by_dim in content["log_likelihood"].items():
        columns = {int(dim): column for dim, column in by_dim.items()}
        likelihood[name] = {
            dim: {method: Summary(mean, std, RUNS) for method, (mean, std, _) in column.items()}
            for dim, column in columns.items()
        }
        marks[name] = {dim: {method: how for method, (_, _, how) in column.items()} for dim, column in columns.items()}
    dense = {
        key: {
            name: {int(dim): {method: value for method, (value, _) in column.items()} for dim, column in by_dim.items()}
            for name, by_dim in content[key].items()
        }
        for key in ("dense_log_likelihood", "dense_inference_time")
    }
    supplement = {
        name: {
            int(dim): {method: other for method, (_, other) in column.items() if other is not None}
            for dim, column in by_dim.items()
        }
        for name, by_dim in content["dense_log_likelihood"].items()
    }
    return Paper(likelihood, marks, supplement, content["inference_time"], **dense)


PAPER = _read()
