"""The registry of all scores of a trained model.

A `Score` defines its name, how it is computed for each instance, how the instances are summarised and how to read the
result. All output of scores is made from `SCORES`: the terminal output and the JSON of `gpin evaluate`, the page of
`gpin report`, and the stores and tables of experiments. To add a diagnostic, write its function and register one entry
here.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gpin._core.errors import InputError
from gpin.evaluation.gaps import Gap, amortization_gap, approximation_gap, grid_gaps, inference_gap
from gpin.evaluation.importance import LogLikelihood
from gpin.evaluation.reliability import COMMON, lower_bound, share_above
from gpin.generative import has_gradient
from gpin.inference import ELBO, Uncertainty

if TYPE_CHECKING:
    from gpin.vae import VAE

__all__ = [
    "ANNEALED",
    "MEAN",
    "MEDIAN",
    "REFINED",
    "SCORES",
    "Columns",
    "Measurement",
    "Reduction",
    "Score",
    "join_columns",
    "known_gaps",
    "mean_and_error",
    "register",
    "share_above",
    "shown_scores",
    "with_derived",
]

Columns = Mapping[str, Tensor]
"""The values of n instances by the name of the score, each `(n,)`."""

REFINED = "refined_"
"""The prefix of the names of scores that use refined proposals, such as `refined_ess`."""

ANNEALED = "annealed_"
"""The prefix of the names of scores that use annealed chains, such as `annealed_ess`."""


# From instances to a number --------------------------------------------------------------------------


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """The mean over instances, and its standard error (NaN for one instance)."""
    values = values.double()
    error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return values.mean().item(), error


@dataclass(frozen=True)
class Reduction:
    """A summary of the values of n instances by one number.

    Attributes:
        name: The key of the number in JSON.
        of: Values `(n,)` → the number; NaN if it is not known.
        stderr: Values `(n,)` → the standard error of the number over instances, if it has one.
        format: The format of the number, if it differs from that of the score.
    """

    name: str
    of: Callable[[Tensor], float]
    stderr: Callable[[Tensor], float] | None = None
    format: str | None = None


MEAN = Reduction("mean", lambda values: mean_and_error(values)[0], lambda values: mean_and_error(values)[1])
MEAN_ALONE = replace(MEAN, stderr=None)
MEDIAN = Reduction("median", lambda values: values.nanmedian().item())
SHARE_ABOVE = Reduction("share_above_0.7", share_above, format=".0%")
ERROR_OF_MEAN = Reduction("error_of_mean", lambda values: values.double().square().sum().sqrt().item() / len(values))
"""The standard error of a mean whose terms have these independent errors: √(Σ e²) / n."""


# Scores ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The measurements of a batch of instances; None for those not taken or not supported by the method.

    Attributes:
        vae: The model.
        x: The instances, `(batch, *shape)`.
        encoder: log p(x) with proposals of the encoder.
        refined: log p(x) with refined proposals.
        annealed: log p(x) from annealed chains.
        elbo: The bound that training maximises, with its terms.
        uncertainty: The encoder's uncertainty.
        gaps: The predicted and the estimated gap of the encoder, by these names, see :func:`known_gaps`.
        grid: The scores from a grid in two latent dimensions, see `gpin.evaluation.grid.grid_scores`.
        log_volume: Σ log scale over the dimensions of an instance, one number or `(batch,)`: log p(value) = log p(x) −
            log_volume in the units of the data.
    """

    vae: "VAE"
    x: Tensor
    encoder: LogLikelihood | None = None
    refined: LogLikelihood | None = None
    annealed: LogLikelihood | None = None
    elbo: ELBO | None = None
    uncertainty: Uncertainty | None = None
    gaps: Mapping[str, Gap] = field(default_factory=dict)
    grid: Columns | None = None
    log_volume: float | Tensor | None = None

    def columns(self) -> dict[str, Tensor]:
        """The values of all scores that these measurements determine, each `(batch,)` in float64 on the CPU."""
        found = {}
        for name, score in SCORES.items():
            values = None if score.measure is None else score.measure(self)
            if values is None:
                continue
            if values.shape != self.x.shape[:1]:
                raise InputError(
                    f"score {name!r} has shape {tuple(values.shape)} for {len(self.x)} instances: "
                    "it must return one value per instance"
                )
            found[name] = values.detach().double().cpu()
        return found


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score of a model or its inference, and how to compute, summarise and read it.

    A score is either measured or derived from the values of other scores; a store holds measured scores only.

    Arguments:
        name: The key in JSON and the column in a store.
        symbol: The heading of its column in a table.
        title: The label of its row in `gpin evaluate` and `gpin report`.
        explanation: What it is and how to read it, as a phrase without a full stop.
        unit: The unit, such as "nats"; empty for a dimensionless number.
        better: Which direction is better, if any.
        reductions: The summaries over instances; the first is the headline, which tables show.
        format: The format specification of its values.
        measure: Measurement → the values `(batch,)`, or None if they are not known.
        derive: The values `(n,)` of the scores in `inputs` → the values `(n,)` of this score.
        inputs: The scores from which it is derived.
        under: The score of which it is a detail, and below which it is shown.
        in_runs: Whether `gpin evaluate` and `gpin report` have a row for it.
        table: The table of an experiment that shows it.
        beside: The score in whose column that table shows it, after a slash; by default it has its own column.
        remark: The value of the headline → a remark for the reader, empty for most values.
        khat: The score with the k̂ of the weights from which it is estimated, if it is estimated from any. Where k̂ is
            above 0.7 too often, see `gpin.evaluation.reliability`, the score is only a bound.
        as_bound: Its text → its text where it is only a bound, or k̂ is not known.
    """

    name: str
    symbol: str
    title: str
    explanation: str
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""
    reductions: tuple[Reduction, ...] = (MEAN,)
    format: str = ".2f"
    measure: Callable[[Measurement], Tensor | None] | None = None
    derive: Callable[..., Tensor] | None = None
    inputs: tuple[str, ...] = ()
    under: str | None = None
    in_runs: bool = True
    table: Literal["likelihood", "diagnostics", "posterior"] | None = "diagnostics"
    beside: str | None = None
    remark: Callable[[float], str] = lambda value: ""
    khat: str | None = None
    as_bound: Callable[[str], str] = lambda text: text

    def __post_init__(self) -> None:
        if (self.measure is None) == (self.derive is None):
            raise InputError(f"score {self.name!r} must have either measure or derive")

    def value(self, values: Tensor) -> float:
        """The headline for values `(n,)`."""
        return self.reductions[0].of(values)

    def record(self, values: Tensor) -> dict[str, float]:
        """All summaries of values `(n,)` by the name of the reduction, with the headline's `stderr` if it has one.

        Example:
            >>> SCORES["log_likelihood"].record(torch.tensor([1.0, 3.0]))
            {'mean': 2.0, 'stderr': 1.0}
        """
        found = {reduction.name: reduction.of(values) for reduction in self.reductions}
        error = self.reductions[0].stderr
        return found if error is None else {**found, "stderr": error(values)}

    def text(self, values: Tensor) -> str:
        """All summaries of values `(n,)` as text, without the unit.

        Example:
            >>> SCORES["log_likelihood"].text(torch.tensor([-1.0, -3.0]))
            '−2.00 ± 1.00'
            >>> SCORES["khat"].text(torch.tensor([0.1, 0.2, 0.3, 0.9]))
            '25 % (median 0.20)'
        """
        first, *others = self.reductions
        shown = self.written(first.of(values))
        if first.stderr is not None and math.isfinite(error := first.stderr(values)):
            shown += f" ± {self.written(error)}"
        beside = ((other, other.of(values)) for other in others)
        more = [f"{other.name} {self.written(found, other)}" for other, found in beside if math.isfinite(found)]
        return shown + (f" ({', '.join(more)})" if more else "")

    def is_bound(self, columns: Columns) -> bool | None:
        """Whether the score is only a bound, by its k̂ in the same columns; None if that k̂ is not known."""
        known = None if self.khat is None else columns.get(self.khat)
        return False if known is None else lower_bound(share_above(known))

    def shown(self, columns: Columns, unit: bool = False) -> str:
        """The text of the score in these columns, marked as a bound unless k̂ shows that it is more.

        Arguments:
            columns: The values of n instances by score, among them this one.
            unit: Whether to add the unit.

        Example:
            >>> columns = {"log_likelihood": torch.tensor([-1.0, -3.0]), "khat": torch.tensor([0.9, 0.8])}
            >>> SCORES["log_likelihood"].shown(columns, unit=True)
            '≥ −2.00 ± 1.00 nats'
            >>> SCORES["mc_error"].shown({"mc_error": torch.tensor([0.3, 0.4]), "khat": torch.tensor([0.9, 0.8])})
            'lower bound'
        """
        text = self.text(columns[self.name]) + (f" {self.unit}" if unit and self.unit else "")
        return text if self.is_bound(columns) is False else self.as_bound(text)

    def written(self, value: float, reduction: Reduction | None = None) -> str:
        """One number as text, with a typographic minus sign; a dash if it is not known.

        Example:
            >>> SCORES["elbo"].written(-1.0), SCORES["khat"].written(0.25), SCORES["elbo"].written(math.nan)
            ('−1.00', '25 %', '—')
        """
        if not math.isfinite(value):
            return "—"
        form = (reduction or self.reductions[0]).format or self.format
        return f"{value:{form}}".replace("-", "−").replace("%", " %")

    @property
    def reading(self) -> str:
        """The explanation, followed by the unit and the better direction."""
        better = f"{self.better} is better" if self.better else ""
        return "; ".join(part for part in (self.explanation, self.unit, better) if part)


RESERVED = frozenset({"method", "data", "dim", "split", "instance", "steps", "file", "filename"})
"""The names of the columns that tables of experiments have beside the scores; their case does not matter."""


def register(score: Score) -> Score:
    """Add a score to the registry; all output of scores then includes it."""
    if score.name.lower() in RESERVED:
        raise InputError(f"a score cannot be named {score.name!r}, a column of every experiment: choose another name")
    if score.name in SCORES:
        raise InputError(f"a score named {score.name!r} is already registered: choose another name")
    others = [name for name in (*score.inputs, score.under, score.beside, score.khat) if name is not None]
    unknown = [name for name in others if name not in SCORES]
    if unknown:
        raise InputError(f"score {score.name!r} refers to {unknown[0]!r}, which is not a registered score")
    SCORES[score.name] = score
    return score


def with_derived(columns: Columns) -> dict[str, Tensor]:
    """The columns, together with all scores that can be derived from them."""
    found = dict(columns)
    for name, score in SCORES.items():
        if score.derive is not None and name not in found and all(given in found for given in score.inputs):
            found[name] = score.derive(*(found[given] for given in score.inputs))
    return found


def join_columns(parts: Iterable[Columns]) -> dict[str, Tensor]:
    """Concatenate the columns of several batches; where a part lacks a column that others have, it is NaN."""
    parts = list(parts)
    counts = [len(next(iter(part.values()))) for part in parts]
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: torch.cat(
            [
                part[name] if name in part else torch.full((count,), math.nan, dtype=torch.float64)
                for part, count in zip(parts, counts, strict=True)
            ]
        )
        for name in names
    }


def shown_scores(names: Collection[str]) -> list[tuple[Score, bool]]:
    """The scores of these names that `gpin evaluate` and `gpin report` show, in order, and whether each is a detail.

    A score is followed by its details. A detail whose own score is not among the names is shown like a score.

    Example:
        >>> [(score.name, detail) for score, detail in shown_scores(["ess", "log_likelihood", "refined_ess", "elbo"])]
        [('log_likelihood', False), ('ess', True), ('refined_ess', False)]
    """
    shown = [score for score in SCORES.values() if score.name in names and score.in_runs]
    known = {score.name for score in shown}
    rows = []
    for score in shown:
        if score.under not in known:
            rows.append((score, False))
            rows += [(detail, True) for detail in shown if detail.under == score.name]
    return rows


def known_gaps(vae: "VAE", x: Tensor, steps: int | None = None) -> dict[str, Gap]:
    """The estimated gap of x, and the predicted one of a model that is calibrated, by these names.

    The estimated gap is not known for a decoder or a likelihood that cannot be differentiated.
    """
    known = {
        "estimated": has_gradient(vae, x[:1], x.new_zeros(1, vae.latent_dim)),
        "predicted": steps in vae.calibrations,
    }
    return {how: vae.gap(x, how, steps=steps) for how in known if known[how]}


# The registry ----------------------------------------------------------------------------------------


def _of(part: str, attribute: str) -> Callable[[Measurement], Tensor | None]:
    """A function that returns an attribute of a part of the measurement."""

    def measure(measurement: Measurement) -> Tensor | None:
        found = getattr(measurement, part)
        return None if found is None else getattr(found, attribute)

    return measure


def _ascent(attribute: str) -> Callable[[Measurement], Tensor | None]:
    """A function that returns an attribute of the steps that led to the encoder's proposal, unless it is unknown."""

    def measure(measurement: Measurement) -> Tensor | None:
        ascent = _of("encoder", "ascent")(measurement)
        values = None if ascent is None else getattr(ascent, attribute)
        return None if values is None or values.isnan().all() else values

    return measure


def _bits(proposal: str) -> Callable[[Measurement], Tensor | None]:
    """A function that returns −log₂ p(value) / D in the units of the data."""

    def measure(measurement: Measurement) -> Tensor | None:
        values = _of(proposal, "values")(measurement)
        if values is None or measurement.log_volume is None:
            return None
        vae = measurement.vae
        return -(values - measurement.log_volume) / (vae.likelihood.variables(vae.values(measurement.x)) * math.log(2))

    return measure


def _gap_scores(how: str, explanation: str, under: str | None = None) -> tuple[Score, Score, Score]:
    """The gap of one kind, and the two ends of its interval."""

    def measure(end: str) -> Callable[[Measurement], Tensor | None]:
        def measured(measurement: Measurement) -> Tensor | None:
            values = getattr(measurement.gaps[how], end) if how in measurement.gaps else None
            return None if values is None or values.isnan().all() else values

        return measured

    gap = Score(
        name=f"{how}_gap",
        symbol=f"{how} gap",
        title=f"{how} gap",
        explanation=explanation,
        unit="nats",
        better="lower",
        measure=measure("values"),
        under=under,
        table=None,
    )
    low, high = (
        replace(
            gap,
            name=f"{gap.name}_{end}",
            symbol=f"{gap.symbol}, {end}",
            title=f"{side} end of the {gap.title}",
            explanation=f"the {side} end of the 80 % interval of the {gap.title}",
            measure=measure(end),
            in_runs=False,
        )
        for end, side in (("low", "lower"), ("high", "upper"))
    )
    return gap, low, high


def _grid(name: str) -> Callable[[Measurement], Tensor | None]:
    return lambda measurement: None if measurement.grid is None else measurement.grid[name]


def _collapsed(kl: float) -> str:
    return "the posterior has collapsed to the prior" if kl < 0.1 else ""


def _khat_unknown(share: float) -> str:
    return "unknown with fewer than 25 samples" if math.isnan(share) else ""


def _at_least(text: str) -> str:
    return f"≥ {text}"


def _at_most(text: str) -> str:
    return f"≤ {text}"


def _acceptance(measurement: Measurement) -> Tensor | None:
    annealing = None if measurement.annealed is None else measurement.annealed.annealing
    return None if annealing is None else annealing.acceptance


def _of_every_estimate(score: Score) -> tuple[Score, Score, Score]:
    """A diagnostic of the log-likelihood with proposals from the encoder, with refined proposals, and annealed."""
    refined = replace(
        score,
        name=REFINED + score.name,
        measure=_of("refined", score.name),
        under="refined_log_likelihood",
        beside=score.name,
        khat=None if score.khat is None else REFINED + score.khat,
    )
    annealed = replace(
        score,
        name=ANNEALED + score.name,
        measure=_of("annealed", score.name),
        under="annealed_log_likelihood",
        table=None,
        khat=None if score.khat is None else ANNEALED + score.khat,
    )
    return score, refined, annealed


_SCORES = (
    Score(
        name="log_likelihood",
        symbol="log p(x), encoder",
        title="log-likelihood",
        explanation="how probable an instance is under the model: log p(x), by importance sampling with proposals from "
        "the encoder",
        unit="nats",
        better="higher",
        measure=_of("encoder", "values"),
        table="likelihood",
        khat="khat",
        as_bound=_at_least,
    ),
    Score(
        name="refined_log_likelihood",
        symbol="log p(x), refined",
        title="refined log-likelihood",
        explanation="the same with proposals fitted to each instance, so that it measures the model and hardly depends "
        "on the encoder",
        unit="nats",
        better="higher",
        measure=_of("refined", "values"),
        table="likelihood",
        khat="refined_khat",
        as_bound=_at_least,
    ),
    Score(
        name="annealed_log_likelihood",
        symbol="log p(x), annealed",
        title="annealed log-likelihood",
        explanation="the same from chains that are annealed from a Gaussian to the posterior, the closest to log p(x)",
        unit="nats",
        better="higher",
        measure=_of("annealed", "values"),
        table="likelihood",
        khat="annealed_khat",
        as_bound=_at_least,
    ),
    Score(
        name="acceptance",
        symbol="acceptance",
        title="acceptance rate",
        explanation="the mean acceptance rate of the transitions of the chains; 0.6 to 0.9 is good",
        reductions=(MEAN_ALONE,),
        measure=_acceptance,
        under="annealed_log_likelihood",
        table=None,
    ),
    Score(
        name="bits_per_dim",
        symbol="bits/dim",
        title="bits per dimension",
        explanation="the negative log-likelihood in bits per dimension of an instance, in the units of the data",
        better="lower",
        format=".3f",
        measure=_bits("encoder"),
        table=None,
        khat="khat",
        as_bound=_at_most,
    ),
    Score(
        name="refined_bits_per_dim",
        symbol="bits/dim, refined",
        title="refined bits per dimension",
        explanation="the same from the refined log-likelihood",
        better="lower",
        format=".3f",
        measure=_bits("refined"),
        under="bits_per_dim",
        table=None,
        khat="refined_khat",
        as_bound=_at_most,
    ),
    Score(
        name="annealed_bits_per_dim",
        symbol="bits/dim, annealed",
        title="annealed bits per dimension",
        explanation="the same from the annealed log-likelihood",
        better="lower",
        format=".3f",
        measure=_bits("annealed"),
        under="bits_per_dim",
        table=None,
        khat="annealed_khat",
        as_bound=_at_most,
    ),
    Score(
        name="training_elbo",
        symbol="training ELBO",
        title="training ELBO",
        explanation="the bound that training maximises: reconstruction − KL of z − KL of the weights",
        unit="nats",
        better="higher",
        measure=_of("elbo", "value"),
        table=None,
    ),
    Score(
        name="reconstruction",
        symbol="reconstruction",
        title="reconstruction",
        explanation="E[log p(x|z)], how probable an instance is given its code",
        reductions=(MEAN_ALONE,),
        measure=_of("elbo", "reconstruction"),
        under="training_elbo",
        table=None,
    ),
    Score(
        name="kl_to_prior",
        symbol="KL of z",
        title="KL of z",
        explanation="KL(q(z|x) ‖ p(z)), the information in the code",
        reductions=(MEAN_ALONE,),
        measure=_of("elbo", "kl"),
        under="training_elbo",
        table=None,
        remark=_collapsed,
    ),
    Score(
        name="weight_kl",
        symbol="KL of the weights",
        title="KL of the weights",
        explanation="the KL of an encoder's random weights to their prior, divided by the number of training instances",
        reductions=(MEAN_ALONE,),
        measure=_of("elbo", "weight_kl"),
        under="training_elbo",
        table=None,
    ),
    Score(
        name="inference_gap",
        symbol="inference gap",
        title="inference gap",
        explanation="log p(x) minus the ELBO of the encoder's posterior: the total loss due to inference, with the "
        "refined log-likelihood as estimate of log p(x)",
        unit="nats",
        better="lower",
        derive=inference_gap,
        inputs=("refined_log_likelihood", "elbo"),
        table=None,
        khat="refined_khat",
        as_bound=_at_least,
    ),
    Score(
        name="amortization_gap",
        symbol="amortization gap",
        title="amortization gap",
        explanation="the ELBO of the refined Gaussian, which approximates the best member of the encoder's family, "
        "minus the ELBO of the encoder's posterior (can be negative)",
        unit="nats",
        better="lower",
        derive=amortization_gap,
        inputs=("refined_elbo", "elbo"),
        under="inference_gap",
    ),
    Score(
        name="approximation_gap",
        symbol="approximation gap",
        title="approximation gap",
        explanation="the rest of the inference gap: the refined log-likelihood minus the ELBO of the refined Gaussian",
        unit="nats",
        better="lower",
        derive=approximation_gap,
        inputs=("refined_log_likelihood", "refined_elbo"),
        under="inference_gap",
        table=None,
        khat="refined_khat",
        as_bound=_at_least,
    ),
    Score(
        name="annealed_inference_gap",
        symbol="inference gap, annealed",
        title="annealed inference gap",
        explanation="the annealed log-likelihood minus the ELBO of the encoder's posterior",
        unit="nats",
        better="lower",
        derive=inference_gap,
        inputs=("annealed_log_likelihood", "elbo"),
        khat="annealed_khat",
        as_bound=_at_least,
    ),
    Score(
        name="annealed_approximation_gap",
        symbol="approximation gap, annealed",
        title="annealed approximation gap",
        explanation="the part of it that is not amortization: the annealed log-likelihood minus the ELBO of the "
        "refined Gaussian",
        unit="nats",
        better="lower",
        derive=approximation_gap,
        inputs=("annealed_log_likelihood", "refined_elbo"),
        under="annealed_inference_gap",
        khat="annealed_khat",
        as_bound=_at_least,
    ),
    Score(
        name="elbo",
        symbol="ELBO",
        title="ELBO of the encoder's posterior",
        explanation="the ELBO of the encoder's posterior, from the samples of the log-likelihood",
        unit="nats",
        better="higher",
        measure=_of("encoder", "elbo"),
        in_runs=False,
    ),
    Score(
        name="refined_elbo",
        symbol="refined ELBO",
        title="ELBO of the refined Gaussian",
        explanation="the ELBO of the refined Gaussian, from the samples of the refined log-likelihood",
        unit="nats",
        better="higher",
        measure=_of("refined", "elbo"),
        in_runs=False,
        table=None,
    ),
    *_of_every_estimate(
        Score(
            name="ess",
            symbol="ESS",
            title="effective samples",
            explanation="the effective sample size of an estimate",
            better="higher",
            reductions=(MEAN_ALONE, MEDIAN),
            format=".1f",
            measure=_of("encoder", "ess"),
            under="log_likelihood",
        )
    ),
    *_of_every_estimate(
        Score(
            name="khat",
            symbol="k̂ > 0.7",
            title="Pareto-k̂ above 0.7",
            explanation="the share of instances whose estimate is dominated by too few samples to be reliable",
            better="lower",
            reductions=(SHARE_ABOVE, MEDIAN),
            measure=_of("encoder", "khat"),
            under="log_likelihood",
            remark=_khat_unknown,
        )
    ),
    *_of_every_estimate(
        Score(
            name="mc_error",
            symbol="MC error",
            title="Monte-Carlo error",
            explanation='the Monte-Carlo error of the mean over instances, or "lower bound" where k̂ is above 0.7 for '
            f"more than {100 * COMMON:.0f} % of them, so that it cannot be believed",
            unit="nats",
            better="lower",
            reductions=(ERROR_OF_MEAN,),
            measure=_of("encoder", "mc_error"),
            under="log_likelihood",
            khat="khat",
            as_bound=lambda text: "lower bound",
        )
    ),
    *_gap_scores(
        "estimated",
        "an estimate of the amortization gap from one decoder gradient: the Newton decrement at the encoder's mean or, "
        "if the model is calibrated, a regression on it and other features",
    ),
    *_gap_scores(
        "predicted", "a prediction of the amortization gap from the encoder alone, without the decoder", "estimated_gap"
    ),
    Score(
        name="steps_taken",
        symbol="steps",
        title="natural-gradient steps",
        explanation="the number of natural-gradient steps that led from the encoder's posterior to the proposal",
        reductions=(MEAN_ALONE,),
        format=".1f",
        measure=_ascent("steps"),
        under="log_likelihood",
        table=None,
    ),
    Score(
        name="stepped_elbo",
        symbol="ELBO after steps",
        title="ELBO after the steps",
        explanation="the ELBO of the posterior to which the steps led, from the samples of the log-likelihood",
        unit="nats",
        better="higher",
        derive=lambda elbo, steps: elbo,
        inputs=("elbo", "steps_taken"),
        under="log_likelihood",
        table=None,
    ),
    Score(
        name="remaining_gap",
        symbol="remaining gap",
        title="estimated remaining gap",
        explanation="the Newton decrement after the steps, an estimate of the gap that further steps could close; it "
        "is known if the steps had a tolerance",
        unit="nats",
        better="lower",
        reductions=(MEAN, MEDIAN),
        measure=_ascent("remaining_gap"),
        under="log_likelihood",
        table=None,
    ),
    Score(
        name="uncertainty",
        symbol="uncertainty",
        title="uncertainty",
        explanation="the variance of the encoder's own output, summed over the latent dimensions",
        measure=_of("uncertainty", "total"),
        in_runs=False,
        table=None,
    ),
    Score(
        name="uncertainty_f",
        symbol="uncertainty, f",
        title="of the mean",
        explanation="the part of the uncertainty that comes from the posterior mean",
        measure=_of("uncertainty", "mean_part"),
        in_runs=False,
        table=None,
    ),
    Score(
        name="uncertainty_h",
        symbol="uncertainty, h",
        title="of the standard deviation",
        explanation="the part of the uncertainty that comes from the posterior standard deviation",
        measure=_of("uncertainty", "std_part"),
        in_runs=False,
        table=None,
    ),
    Score(
        name="log_evidence",
        symbol="log p(x)",
        title="exact log-likelihood",
        explanation="the exact log p(x), by quadrature on the grid",
        unit="nats",
        better="higher",
        measure=_grid("log_evidence"),
        table="posterior",
    ),
    Score(
        name="kl",
        symbol="inference gap",
        title="exact inference gap",
        explanation="KL(q‖p) from the encoder's posterior to the true posterior, on the grid",
        unit="nats",
        better="lower",
        measure=_grid("kl"),
        table="posterior",
    ),
    Score(
        name="best_kl",
        symbol="approximation gap",
        title="exact approximation gap",
        explanation="KL(q‖p) of the best diagonal Gaussian for the instance",
        unit="nats",
        better="lower",
        measure=_grid("best_kl"),
        under="kl",
        table="posterior",
    ),
    Score(
        name="grid_amortization_gap",
        symbol="amortization gap",
        title="exact amortization gap",
        explanation="the inference gap minus the approximation gap",
        unit="nats",
        better="lower",
        derive=lambda kl, best_kl: grid_gaps(kl, best_kl).amortization,
        inputs=("kl", "best_kl"),
        under="kl",
        table="posterior",
    ),
)

SCORES: dict[str, Score] = {score.name: score for score in _SCORES}
"""Every score by name, in the order in which they are shown."""
