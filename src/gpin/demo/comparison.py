"""The comparison: statistics, table rows and sentences, which terminal and page share, and all numbers as JSON."""

import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gpin.demo.estimates import verdict
from gpin.demo.experiment import BATCH, PROPOSALS, Contender, Digits, Settings
from gpin.evaluation.importance import LogLikelihood
from gpin.report.numbers import Correlation, caution, mean_and_error, plus_minus, share_above, without_nan

__all__ = ["LEAD", "Result", "Row"]

LEAD = (
    "Two variational autoencoders learnt the same small images. They differ only in the encoder, the network that "
    "guesses the hidden code of an image: the plain VAE’s gives one answer; the GP’s is a random function with a "
    "Gaussian-process prior, so that each answer comes with its uncertainty. Both are scored on digits that neither "
    "has seen."
)
"""What is compared, for those who have not met it before."""


@dataclass(frozen=True)
class Row:
    """A line of the comparison: what is measured, which way is better, how to read it, and each method's value.

    A label that begins with a dot tells more about the row above.
    """

    label: str
    better: str
    note: str
    cells: list[str]


@dataclass(frozen=True)
class Result:
    """What came out of the demo.

    Attributes:
        settings: What it ran with.
        digits: The data.
        contenders: By method.
        uncertainty: Of the GP encoder for each test digit, `(count,)`.
        folder: Where report and models are.
    """

    settings: Settings
    digits: Digits
    contenders: dict[str, Contender]
    uncertainty: Tensor
    folder: Path

    # Statistics -----------------------------------------------------------------------------------

    def difference(self, proposal: str) -> tuple[float, float]:
        """Log-likelihood by the GP model less that by the VAE, paired: the mean over digits, and its standard error."""
        vae, gp = (self.contenders[name].scores[proposal].values for name in ("vae", "gp"))
        return mean_and_error(gp - vae)

    def time_ratio(self, contender: Contender) -> float:
        """Inference time relative to the VAE's: the median over interleaved repeats."""
        reference = self.contenders["vae"].seconds
        return statistics.median(a / b for a, b in zip(contender.seconds, reference, strict=True))

    @property
    def most_certain(self) -> list[int]:
        """Six test digits, the most certain first."""
        return self.uncertainty.argsort()[:6].tolist()

    @property
    def least_certain(self) -> list[int]:
        """Six test digits, the least certain first."""
        return self.uncertainty.argsort().flip(0)[:6].tolist()

    @property
    def gap(self) -> Tensor:
        """How much the GP encoder's bound leaves out, for each test digit: refined log-likelihood − ELBO.

        Without the weights' part of the bound, which is the same for all.
        """
        gp = self.contenders["gp"]
        return gp.scores["refined"].values - (gp.elbo.value + gp.elbo.weight_kl)

    @property
    def gap_by_uncertainty(self) -> Correlation:
        """How well uncertainty, known from one pass of the encoder, ranks the gap."""
        return Correlation.of(self.uncertainty, self.gap)

    @property
    def gap_by_elbo(self) -> Correlation:
        """How well the negative ELBO, which needs the decoder too, ranks it: the baseline."""
        return Correlation.of(-self.contenders["gp"].elbo.value, self.gap)

    # The table ------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """The comparison, line by line."""
        contenders = list(self.contenders.values())
        reference, k = contenders[0], self.settings.samples
        return [
            *self._score_rows(
                "encoder",
                "Test log-likelihood",
                f"how probable the model finds a digit: nats ± standard error, from {k} proposals of the encoder",
            ),
            *self._score_rows(
                "refined",
                "Refined log-likelihood",
                f"the same, from {k} proposals fitted to each digit: scores the model, not the encoder",
            ),
            Row(
                "ELBO",
                "higher",
                "the bound that training raises, after the cost of random weights; ± standard error",
                [plus_minus(*mean_and_error(c.elbo.value)) for c in contenders],
            ),
            Row(
                "· cost of random weights",
                "",
                "for having a distribution of weights; already taken off above",
                [f"{c.elbo.weight_kl.mean():.2f}" for c in contenders],
            ),
            Row(
                "Inference time",
                "lower",
                f"to encode a batch of {BATCH}; the {reference.title} takes {reference.milliseconds:.2f} ms",
                [f"{self.time_ratio(c):.2f}×" for c in contenders],
            ),
            Row("Parameters", "", "of encoder and decoder", [f"{c.parameters:,}" for c in contenders]),
        ]

    def _score_rows(self, proposal: str, label: str, note: str) -> list[Row]:
        scores = [c.scores[proposal] for c in self.contenders.values()]
        return [
            Row(label, "higher", note, [plus_minus(score.mean, score.stderr) for score in scores]),
            Row(
                "· Monte-Carlo error",
                "lower",
                "of the mean, its random part only; too small where k̂ > 0.7",
                [f"± {score.mean_mc_error:.2f}" for score in scores],
            ),
            Row(
                f"· effective samples of {self.settings.samples}",
                "higher",
                "how many of them count; median",
                [f"{score.ess.median():.1f}" for score in scores],
            ),
            Row(
                "· digits with k̂ > 0.7",
                "lower",
                "share where too few count",
                [f"{100 * share_above(score.khat):.0f}%" for score in scores],
            ),
        ]

    # The sentences --------------------------------------------------------------------------------

    def verdict(self) -> str:
        """Which model is better, if that can be said."""
        encoder, refined = (verdict(*self.difference(proposal)) for proposal in PROPOSALS)
        return (
            f"GP − VAE, digit by digit, over {len(self.digits.test)} test digits: {encoder} "
            f"With refined proposals: {refined} "
            "One run each: the errors cover the choice of test digits only, and another seed can turn the sign."
        )

    def caution(self) -> str:
        """How far to believe the estimates."""
        encoder, refined = (
            max(share_above(c.scores[proposal].khat) for c in self.contenders.values()) for proposal in PROPOSALS
        )
        return caution(encoder, refined, "digits")

    def relation(self) -> str:
        """What the uncertainty says about the gap, in words that claim no more than it shows."""
        found = self.gap_by_uncertainty
        return (
            f"Uncertainty against the encoder’s gap (refined log-likelihood − ELBO): Spearman correlation {found} over "
            f"{len(self.uncertainty)} test digits, so {found.in_words('where the gap is larger')}. The negative ELBO, "
            f"the baseline, has {self.gap_by_elbo}."
        )

    # The record -----------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        sizes = {name: len(getattr(self.digits, name)) for name in ("train", "validation", "test")}
        return without_nan(
            {
                "data": {"name": "scikit-learn digits", "shape": list(self.digits.train.shape[1:]), **sizes},
                "settings": asdict(self.settings),
                "methods": {name: self._method_record(contender) for name, contender in self.contenders.items()},
                "difference": {
                    "what": "test log-likelihood, gp − vae, paired",
                    **{proposal: _mean_record(*self.difference(proposal)) for proposal in PROPOSALS},
                    "sentence": self.verdict(),
                },
                "uncertainty": {
                    "most_certain": [self._digit_record(i) for i in self.most_certain],
                    "least_certain": [self._digit_record(i) for i in self.least_certain],
                    "spearman_with_gap": self.gap_by_uncertainty.rho,
                    "spearman_with_gap_stderr": self.gap_by_uncertainty.stderr,
                    "spearman_of_negative_elbo_with_gap": self.gap_by_elbo.rho,
                },
                "files": {"report": str(self.folder / "report.html"), "models": str(self.folder / "models")},
            }
        )

    def _method_record(self, contender: Contender) -> dict[str, Any]:
        return {
            "log_likelihood": {proposal: _score_record(contender.scores[proposal]) for proposal in PROPOSALS},
            "elbo": contender.elbo.value.mean().item(),
            "elbo_weight_kl": contender.elbo.weight_kl.mean().item(),
            "inference_ms": contender.milliseconds,
            "inference_time_ratio": self.time_ratio(contender),
            "parameters": contender.parameters,
            "best_epoch": contender.history.best,
            "training_seconds": contender.training_seconds,
        }

    def _digit_record(self, index: int) -> dict[str, Any]:
        return {"index": index, "label": self.digits.labels[index], "uncertainty": self.uncertainty[index].item()}


def _score_record(score: LogLikelihood) -> dict[str, Any]:
    return {
        **_mean_record(score.mean, score.stderr),
        "mc_error": score.mean_mc_error,
        "samples": score.samples,
        "effective_sample_size": score.ess.median().item(),
        "khat_above_0.7": share_above(score.khat),
    }


def _mean_record(mean: float, stderr: float) -> dict[str, float]:
    return {"mean": mean, "stderr": stderr}
