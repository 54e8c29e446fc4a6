"""`gpin demo`: a VAE and a GP encoder on the digits that come with scikit-learn, trained, compared and written up.

Both are runs as made by `gpin train`, and their page is that of `gpin report`.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gpin._core.files import as_path, check_writable, write_whole
from gpin._core.inputs import check_seed
from gpin._core.messages import Tell, to_stderr
from gpin._core.seeding import seeded
from gpin._core.threads import threads
from gpin.data import DataSet, load_benchmark
from gpin.evaluation.scores import mean_and_error
from gpin.report.numbers import Correlation, without_nan
from gpin.runs.folder import Run
from gpin.runs.report import figures
from gpin.runs.report.comparison import Comparison, compare, verdict
from gpin.runs.report.page import compose
from gpin.runs.report.scored_run import ScoredRun
from gpin.runs.settings import run_settings
from gpin.runs.train import train
from gpin.vae import VAE

__all__ = ["Demo", "run_demo"]

METHODS = ("vae", "gp")
"""The methods to compare: the second with the first."""
OPTIONS = {"latent_dim": 16, "learning_rate": 1e-3, "batch_size": 128}
"""The settings of both runs, chosen on validation digits."""
SHOWN = 6
"""The number of digits that are shown with the smallest gap, and with the largest."""


@dataclass(frozen=True)
class Demo:
    """The result of the demo.

    Attributes:
        folder: The folder of all files.
        epochs: The number of passes through the training data.
        comparison: The two runs with their scores, the VAE first.
        labels: The classes of the test digits.
    """

    folder: Path
    epochs: int
    comparison: Comparison
    labels: list[int]

    @property
    def report(self) -> Path:
        """The path of the page."""
        return self.folder / "report.html"

    @property
    def gp(self) -> ScoredRun:
        """The run with the GP encoder."""
        return self.comparison.scored[METHODS.index("gp")]

    @property
    def uncertainty(self) -> Tensor:
        """The GP encoder's uncertainty about each test digit, `(N,)`."""
        assert self.gp.uncertainty is not None
        return self.gp.uncertainty

    @property
    def gap(self) -> Tensor:
        """The estimated gap of the GP encoder for each test digit in nats, `(N,)`."""
        assert self.gp.gap is not None
        return self.gp.gap

    @property
    def smallest_gap(self) -> list[int]:
        """Test digits, that with the smallest estimated gap first."""
        return self.gap.argsort()[:SHOWN].tolist()

    @property
    def largest_gap(self) -> list[int]:
        """Test digits, that with the largest estimated gap first."""
        return self.gap.argsort().flip(0)[:SHOWN].tolist()

    @property
    def most_certain(self) -> list[int]:
        """Test digits, the most certain first."""
        return self.uncertainty.argsort()[:SHOWN].tolist()

    @property
    def least_certain(self) -> list[int]:
        """Test digits, the least certain first."""
        return self.uncertainty.argsort().flip(0)[:SHOWN].tolist()

    def record(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        comparison = self.comparison
        data, other = comparison.data, comparison.scored[1]
        parts = {name: len(getattr(data, name)) for name in ("train", "validation", "test")}
        scores = self.gp.of_chosen
        estimated, found = (
            Correlation.of(scores[name], scores["inference_gap"]) for name in ("estimated_gap", "uncertainty")
        )
        baseline = Correlation.of(-scores["elbo"], scores["inference_gap"])
        return without_nan(
            {
                "data": {"name": data.source.name, "shape": list(data.shape), **parts},
                "settings": {"epochs": self.epochs, "seed": comparison.seed, **OPTIONS, "samples": comparison.samples},
                "methods": {one.name: self._method_record(one) for one in comparison.scored},
                "difference": {
                    "what": "test log-likelihood, gp − vae, paired",
                    **{
                        proposal: dict(zip(("mean", "stderr"), comparison.difference(other, proposal), strict=True))
                        for proposal in ("encoder", "refined")
                    },
                    "sentence": verdict(comparison),
                },
                "gap": {
                    "smallest": [self._digit_record(i) for i in self.smallest_gap],
                    "largest": [self._digit_record(i) for i in self.largest_gap],
                    "spearman_with_inference_gap": estimated.rho,
                    "spearman_with_inference_gap_stderr": estimated.stderr,
                },
                "uncertainty": {
                    "most_certain": [self._digit_record(i) for i in self.most_certain],
                    "least_certain": [self._digit_record(i) for i in self.least_certain],
                    "spearman_with_inference_gap": found.rho,
                    "spearman_with_inference_gap_stderr": found.stderr,
                    "spearman_of_negative_elbo_with_inference_gap": baseline.rho,
                },
                "files": {"report": str(self.report), "runs": [str(one.run.folder) for one in comparison.scored]},
            }
        )

    def _method_record(self, one: ScoredRun) -> dict[str, Any]:
        evaluations = {"encoder": one.encoder.record(), "refined": one.refined.record()}
        return {
            "log_likelihood": {
                proposal: {
                    **record["log_likelihood"],
                    "samples": record["samples"],
                    "effective_sample_size": record["ess"]["median"],
                    "khat_above_0.7": record["khat"]["share_above_0.7"],
                }
                for proposal, record in evaluations.items()
            },
            "elbo": mean_and_error(one.encoder.elbo.value)[0],
            "elbo_weight_kl": mean_and_error(one.encoder.elbo.weight_kl)[0],
            "inference_ms": self.comparison.milliseconds(one),
            "inference_time_ratio": self.comparison.time_ratio(one),
            "parameters": one.parameters,
            "best_epoch": one.history.best,
            "training_seconds": one.history.seconds,
        }

    def _digit_record(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "label": self.labels[index],
            "gap": self.gap[index].item(),
            "uncertainty": self.uncertainty[index].item(),
        }


def run_demo(
    out: str | os.PathLike[str] = "gpin-demo",
    *,
    epochs: int = 100,
    seed: int = 0,
    samples: int = 100,
    progress: bool | None = None,
    on_start: Callable[[Run, DataSet, VAE], None] | None = None,
    tell: Tell = to_stderr,
) -> Demo:
    """Train and compare both methods, and write `report.html`, `results.json`, `figures/` and `runs/` into a folder.

    The same call resumes unfinished runs, reuses finished ones, and writes the other files again.

    Arguments:
        out: The folder, created if it is missing.
        epochs: The number of passes through the training data, for each run.
        seed: The seed of the split, the initial weights and all noise.
        samples: K, the number of proposals for each log-likelihood.
        progress: Whether to show progress bars; by default if there is a terminal.
        on_start: Called before the training of each run with the run, its data and its model.
        tell: Called with each message for the user.
    """
    folder = as_path(out, "the folder of the demo")
    given = {**OPTIONS, "epochs": epochs, "seed": check_seed(seed), "split_seed": seed}
    settings = [run_settings({"method": method, **given}) for method in METHODS]
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    check_writable(folder)
    # The networks are so small that a second thread would slow them down.
    with threads(1), seeded(seed):
        runs = [
            train("digits", each, out=folder / "runs", device="cpu", progress=progress, on_start=on_start, tell=tell)[0]
            for each in settings
        ]
        comparison = compare([run.folder for run in runs], samples=samples, limit=None, seed=seed, tell=tell)
        labels = load_benchmark("digits").train_labels
        assert labels is not None  # the digits have labels, and one part, which is split
        demo = Demo(folder, epochs, comparison, labels[comparison.data.test.rows].tolist())
        _write(demo)
    return demo


def _write(demo: Demo) -> None:
    comparison = demo.comparison
    for name, png in figures.pngs(comparison.scored, comparison.data, comparison.noun, comparison.seed).items():
        write_whole(demo.folder / "figures" / f"{name}.png", png)
    write_whole(demo.folder / "results.json", json.dumps(demo.record(), indent=2, ensure_ascii=False).encode())
    write_whole(demo.report, compose(comparison).html().encode())
