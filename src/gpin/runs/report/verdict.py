"""What the numbers of a run amount to: plain findings, each with the command that does better where there is one."""

import math
from collections.abc import Sequence
from typing import Any

from gpin._core.files import as_path
from gpin.evaluation.reliability import few_instances, share_above
from gpin.evaluation.scores import REFINED, SCORES, mean_and_error
from gpin.report import Finding, Table
from gpin.runs.folder import Run
from gpin.runs.report.commands import Command, data_name, run_name
from gpin.runs.report.comparison import Comparison
from gpin.runs.report.latent import ACTIVE, Codes
from gpin.runs.report.scored_run import ScoredRun, TrainedRun

__all__ = ["best_of", "dimensions", "findings", "gap", "glance", "training"]

SMALL, LARGE = 0.1, 0.5
"""The inference gaps in nats below which a gap is negligible, and above which it is worth closing."""
RISING = 0.02
"""The share of the whole rise of the validation score above which its rise in the last fifth of the epochs counts."""
MANY, CHAINS = 1000, 32
"""The numbers of importance samples and of annealed chains that are advised where the log-likelihood is a bound."""


def findings(comparison: Comparison, one: ScoredRun, codes: Codes) -> list[Finding]:
    """What can be said about a run, the most important first."""
    first, code = _likelihood(comparison, one), dimensions(one, codes)
    how = [training(one), gap(comparison, one, collapsed=codes.collapsed)]
    found = [first, code, *how] if codes.collapsed else [first, *how, code]
    return [finding for finding in [*found, _intervals(one)] if finding is not None]


def _likelihood(comparison: Comparison, one: ScoredRun) -> Finding:
    """The score with the proposals that can be trusted, the refined ones if both can; or that it is a lower bound."""
    likelihood, own = one.likelihood("refined"), one.likelihood("encoder").lower_bound is False
    refined = likelihood.lower_bound is False or not own
    values, prefix = (one.of_chosen if refined else one.encoder.columns), REFINED if refined else ""
    count = len(values[f"{prefix}log_likelihood"])
    title = f"The log-likelihood is {SCORES[f'{prefix}log_likelihood'].shown(values, unit=True)} per {comparison.noun}."
    which = "" if refined else ", estimated with the encoder’s proposals"
    few = few_instances(count, comparison.nouns)
    bits = f"That is {SCORES[f'{prefix}bits_per_dim'].shown(values)} bits per dimension{which}, on "
    bits += f"{_scored(comparison, count)}. {few}".strip()
    if likelihood.lower_bound is False or own:
        text = f"{bits} k̂ is below 0.7 for nearly all of them, so the estimate can be trusted."
        if few:
            text = f"{bits} k̂ is below 0.7 for nearly all of them, so the estimate for each of them can be trusted."
        return Finding(title, text, "plain" if few else "good")
    if likelihood.lower_bound is None:
        why = f"With only {comparison.samples} proposals per {comparison.noun}, k̂ is not known"
    else:
        share = 100 * share_above(likelihood.khat)
        why = f"Even with refined proposals, k̂ is above 0.7 for {share:.0f} % of the {comparison.nouns}"
    closer: dict[str, Any] = {"proposal": "refined", "samples": MANY}
    if comparison.samples >= MANY:
        closer = {"estimator": "annealed", "chains": CHAINS}
    text = f"{bits} {why}, so this is a lower bound: the model is better by an unknown amount. To come closer:"
    return Finding(title, text, "plain", str(Command("evaluate", [run_name(one.run)], closer)))


def _scored(comparison: Comparison, count: int) -> str:
    total = len(comparison.data.test)
    some = comparison.several(count)
    return f"all {some} of the test part" if count == total else f"{some} of the test part, chosen at random"


# Training --------------------------------------------------------------------------------------------


def training(one: TrainedRun) -> Finding | None:
    """Whether training ended before the validation score was flat, and whether the model overfits."""
    history, best, count = one.history, one.history.best, len(one.history.epochs)
    if not history.epochs or not best:
        return None
    asked = one.run.settings.training.epochs
    if not one.finished:
        text = f"It has done {count} of {asked} epochs, and its best weights so far are used here."
        return Finding("Training is not finished.", text, "bad", _train(one.run))
    name, values = _judged(one)
    back = max(1, count // 5)
    rise = max(values) - max(values[:-back]) if count > back else math.nan
    whole = max(values) - values[0]
    # Training that patience has ended is over, even if the best epoch was a late one.
    if best == count or (count == asked and best > count - back and rise > RISING * whole):
        which = "The only epoch" if count == 1 else f"Epoch {best} of {count}"
        risen = f", and the validation {name} rose by {rise:.2f} nats in the last {_epochs(back)}" if rise > 0 else ""
        text = f"{which} was the best{risen}: longer training may help."
        command = _train(one.run, epochs=2 * count)
        return Finding("Training ended before it had flattened.", text, "bad", command)
    fallen = values[best - 1] - values[-1]
    after = f"Epoch {best} of {count} was the best on validation data, and its weights are used."
    if count - best >= 5 and fallen > max(1.0, 0.02 * abs(values[best - 1])):
        since = f"Since then the validation {name} has fallen by {fallen:.2f} nats"
        text = f"{after} {since}: more data would help, longer training would not."
        return Finding("The model began to overfit.", text)
    return Finding("Training has flattened.", f"{after} Longer training is unlikely to help.", "good")


def _judged(one: TrainedRun) -> tuple[str, list[float]]:
    """The values by which the best epoch was chosen, with their name."""
    scores = [score for score in one.history.scores if score is not None]
    return ("score", scores) if len(scores) == len(one.history.epochs) else ("ELBO", one.history.validation)


def _epochs(count: int) -> str:
    return "epoch" if count == 1 else f"{count} epochs"


def _train(run: Run, **options: Any) -> str:
    """The command that trains with the settings of a run, except for the options given; none if it had a start."""
    if run.start is not None:
        return ""
    folder = run_name(run)
    parent = str(as_path(folder, "the run").parent)
    place = {} if parent in ("runs", ".") else {"out": parent}
    return str(Command("train", [data_name(run)], {"config": f"{folder}/run.json", **options, **place}))


# Inference -------------------------------------------------------------------------------------------


def gap(comparison: Comparison, one: ScoredRun, *, collapsed: bool = False) -> Finding:
    """The size of the inference gap, and what closes it; it says little if the posterior has collapsed."""
    values = one.of_chosen
    total, amortization, approximation = (
        mean_and_error(values[name])[0] for name in ("inference_gap", "amortization_gap", "approximation_gap")
    )
    shown = SCORES["inference_gap"].shown(values, unit=True)
    title = f"The encoder loses {shown} per {comparison.noun}."
    if total < SMALL and collapsed:
        text = (
            "This inference gap is negligible, but only because the latent code is not used: there is little to infer."
        )
        return Finding(title, text)
    if total < SMALL:
        text = "This inference gap is negligible: the posteriors are nearly as good as they can be."
        return Finding(title, text, "good")
    parts = (
        f"This inference gap is that between the refined log-likelihood and the ELBO of its posteriors. "
        f"{_nats(amortization)} of it are the amortization gap, which a better encoder closes, and "
        f"{_nats(approximation)} the approximation gap, which takes a more flexible posterior."
    )
    if amortization < SMALL:
        return Finding(title, parts)
    improve = str(Command("improve", [run_name(one.run)]))
    text = f"{parts} To train the encoder further, with the decoder unchanged:"
    return Finding(title, text, "bad" if total > LARGE else "plain", improve)


def _nats(value: float) -> str:
    return f"{value:.2f} nats".replace("-", "−")


def dimensions(one: ScoredRun, codes: Codes) -> Finding:
    """How many latent dimensions are active, and whether the posterior has collapsed."""
    dims, active = one.vae.latent_dim, codes.active
    rule = f"the variance of their posterior means over instances is above {ACTIVE:g}"
    if codes.collapsed:
        why = f"No latent dimension is active ({rule} for none)"
        if active:
            why = f"Together the {dims} latent dimensions say only {codes.kl.sum():.2f} nats about an instance"
        text = (
            f"{why}: the latent code is hardly used, and the model explains all instances alike. If the values of an "
            "instance are independent of each other, no model can do better. Otherwise a KL warm-up often helps:"
        )
        asked = one.run.settings.training
        warm = min(2 * asked.kl_warmup or max(1, asked.epochs // 5), asked.epochs)
        return Finding("The posterior has collapsed.", text, "bad", _train(one.run, set=f"kl_warmup={warm:g}"))
    carried = f"Together the dimensions say {codes.kl.sum():.1f} nats about an instance."
    if active == dims:
        title = "The only latent dimension is active." if dims == 1 else f"All {dims} latent dimensions are active."
        if codes.kl.min() < SMALL:
            text = f"{carried} The weakest says only {codes.kl.min():.2f} nats, so more of them are not needed."
            return Finding(title, text)
        text = f"{carried} None is left over, so more of them may help:"
        return Finding(title, text, "plain", _train(one.run, latent_dim=2 * dims))
    title = f"{active} of {dims} latent dimensions {'is' if active == 1 else 'are'} active."
    return Finding(title, f"{carried} The others stay at the prior; they do no harm, but more are not needed.", "good")


def _intervals(one: ScoredRun) -> Finding | None:
    """Whether the intervals of the encoder's posterior are too narrow or too wide; None if they hold."""
    if not one.coverage:
        return None
    row = one.coverage[0]
    share, error = row.mean(0.8), row.stderr(0.8)
    if abs(share - 0.8) <= max(0.05, 2 * error):
        return None
    wrong = "narrow" if share < 0.8 else "wide"
    better = "In Python, vae.calibrate corrects that."
    for other in one.coverage:
        if other.posterior == f"{row.posterior}, calibrated":
            better = f"Those of vae.encode(x, calibrated=True) cover {100 * other.mean(0.8):.0f} %."
    text = (
        f"The 80 % intervals of the encoder’s posterior cover {100 * share:.0f} % of the true codes of instances "
        f"simulated from the model. {better} For the details:"
    )
    command = str(Command("evaluate", [run_name(one.run)], {"calibration": None}))
    return Finding(f"The intervals of the posterior are too {wrong}.", text, "plain", command)


# Several runs ----------------------------------------------------------------------------------------


def best_of(comparison: Comparison) -> ScoredRun:
    """The run with the largest refined log-likelihood among those that can be compared with the first."""
    able = [one for one in comparison.scored if comparison.comparable(one)]
    return max(able, key=lambda one: one.likelihood("refined").mean)


def glance(comparison: Comparison, codes: Sequence[Codes]) -> Table:
    """The most important numbers of several runs, one row per run."""
    rows = []
    for one, code in zip(comparison.scored, codes, strict=True):
        likelihood = SCORES["refined_log_likelihood"].shown(one.of_chosen)
        gap = SCORES["inference_gap"].shown(one.of_chosen)
        epochs = f"{one.history.best} of {len(one.history.epochs)}" if one.history.best else "—"
        rows.append([one.name, likelihood, gap, f"{code.active} of {one.vae.latent_dim}", epochs])
    best = comparison.scored.index(best_of(comparison))
    head = ["", "log-likelihood, nats", "inference gap, nats", "active dimensions", "best epoch"]
    caption = f"Refined log-likelihood per test {comparison.noun}; the best is red."
    return Table(head, rows, caption, marks={(best, 1): "red"})
