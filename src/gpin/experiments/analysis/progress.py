"""How fast trainings approach the scores of the paper: validation scores over epochs and over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from gpin.experiments.analysis.paper import PAPER
from gpin.experiments.analysis.results import Results
from gpin.experiments.protocols import Experiment, variant_named
from gpin.report.tables import ResultTable

if TYPE_CHECKING:
    from gpin.report.plots import Figure

__all__ = [
    "REFERENCES",
    "Progress",
    "paper_scores",
    "processors_note",
    "progress_figure",
    "progress_of",
    "progress_table",
]

REFERENCES = {"vae": "the paper's VAE", "gp": "the paper's GPVAE"}
"""The rows of the paper whose scores are the targets."""

DRAWN = ("vae", "natural", "vae-2x", "gp", "towers")
"""The rows that a figure draws first, so that their colours are the same in all figures that have them."""


@dataclass(frozen=True)
class Progress:
    """The validation scores of one training.

    Attributes:
        scores: The score of each epoch, in nats.
        seconds: The processor time from the beginning of the training to the end of each epoch, or wall-clock time
            where a result of an older version does not have it.
        processor: The name of the processor on which it was trained; empty if it is not known.
    """

    scores: Sequence[float]
    seconds: Sequence[float]
    processor: str = ""

    def first(self, target: float) -> int | None:
        """The number of the first epoch whose score reaches a target, counted from 1; None if there is none.

        Example:
            >>> training = Progress([1.0, 3.0, 2.0], [10.0, 20.0, 30.0])
            >>> training.first(2.5), training.first(4.0)
            (2, None)
        """
        return next((epoch for epoch, score in enumerate(self.scores, start=1) if score >= target), None)


def progress_of(results: Results, data: str, latent_dim: int) -> dict[str, Progress]:
    """The progress of the first training of each variant whose result has a history, by the name of the variant.

    Variants that are scored after other numbers of steps share a training, and appear once.
    """
    found: dict[str, Progress] = {}
    for entry, record in results.records():
        history: Sequence[Mapping[str, Any]] = record.get("history", ())
        here = (entry.data, entry.latent_dim) == (data, latent_dim) and entry.steps is None
        if here and entry.row not in found and history and "score" in history[0]:
            scores = [epoch["score"] for epoch in history]
            clock = "processor_seconds" if all("processor_seconds" in epoch for epoch in history) else "seconds"
            seconds = list(accumulate(epoch[clock] for epoch in history))
            found[entry.row] = Progress(scores, seconds, record["environment"].get("processor", ""))
    return found


def processors_note(found: Mapping[str, Progress]) -> list[str]:
    """A note on which training had which processor, if they differ: their times cannot be compared exactly.

    The processor of most trainings is named last, as that of all others.
    """
    titles: dict[str, list[str]] = {}
    for row, training in found.items():
        titles.setdefault(training.processor or "an unknown processor", []).append(variant_named(row).title)
    if len(titles) < 2:
        return []
    *fewer, (most, _) = sorted(titles.items(), key=lambda item: len(item[1]))
    named = "; ".join(f"{', '.join(rows)}: {processor}" for processor, rows in fewer)
    return [
        f"The trainings had different processors, so that their times are only roughly comparable. {named}; all "
        f"others: {most}."
    ]


def paper_scores(experiment: Experiment, data: str, latent_dim: int) -> dict[str, float]:
    """The mean log-likelihoods of the paper that are the targets, by the name of the row."""
    if experiment.decoder == "dense":
        scores = PAPER.dense_log_likelihood.get(data, {}).get(latent_dim, {})
    else:
        known = PAPER.log_likelihood.get(data, {}).get(latent_dim, {})
        scores = {row: summary.mean for row, summary in known.items()}
    return {row: scores[row] for row in REFERENCES if row in scores}


def progress_table(title: str, found: Mapping[str, Progress], targets: Mapping[str, float]) -> ResultTable:
    """The epochs and the time after which each training reaches the scores of the paper on validation data.

    Arguments:
        title: The data set and the latent dimension.
        found: The trainings, see :func:`progress_of`.
        targets: The scores of the paper, see :func:`paper_scores`.
    """
    rows = []
    for row, training in found.items():
        cells = [variant_named(row).title, str(len(training.scores)), _hours(training.seconds[-1])]
        cells.append(f"{max(training.scores):.1f}")
        for target in targets.values():
            epoch = training.first(target)
            cells.append("not reached" if epoch is None else f"{epoch} ({_hours(training.seconds[epoch - 1])})")
        rows.append(cells)
    head = ["", "epochs", "time", "best score", *(f"{REFERENCES[row]}, {targets[row]:.1f}" for row in targets)]
    notes = [
        "The first epoch whose score on validation data reaches the paper's test log-likelihood after 2000 epochs, and "
        "the processor time of training until then. The validation score has K = 4 samples of the method's own "
        "posterior and is lower than a test score with K = 100."
    ]
    notes += processors_note(found)
    return ResultTable(f"{title}: epochs to the paper's score", head, rows, notes=notes)


def progress_figure(found: Mapping[str, Progress], targets: Mapping[str, float]) -> "Figure":
    """The validation scores of all trainings over epochs and over hours, with the scores of the paper as lines."""
    from gpin.report import plots

    rows = sorted(found, key=lambda row: DRAWN.index(row) if row in DRAWN else len(DRAWN))
    lines = {
        variant_named(row).title: (found[row].scores, [second / 3600 for second in found[row].seconds]) for row in rows
    }
    return plots.progress_curves(lines, {REFERENCES[row]: value for row, value in targets.items()})


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
