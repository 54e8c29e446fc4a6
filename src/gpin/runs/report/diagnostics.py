"""The sections of a page about scores, training, the gap and calibration."""

from collections.abc import Sequence

from gpin.report import Page, Table, charts, plots
from gpin.runs.report import figures
from gpin.runs.report.comparison import Comparison, caution, listed, relation, score_rows, units
from gpin.runs.report.display import Words
from gpin.runs.report.scored_run import TrainedRun

__all__ = ["add_calibration", "add_curves", "add_gap", "add_scores"]


def add_scores(page: Page, comparison: Comparison) -> None:
    """The table of all scores."""
    section = page.section("All scores")
    head = ["", *(one.name for one in comparison.scored)]
    section.table(Table(head, score_rows(comparison), series=True))
    section.text(
        f"The log-likelihood measures how probable the model finds {comparison.one} that it has never seen. It cannot "
        f"be computed exactly, so it is estimated from {comparison.samples} proposed codes per {comparison.noun}: "
        f"those of the encoder, or better ones that a search for the mode finds for each {comparison.noun}. The "
        "effective sample size is the number of proposals that matter; k̂ warns if it is too small. ± is the standard "
        f"error of the mean over {comparison.nouns}; the Monte-Carlo error is that of the estimation itself. "
        f"{units(comparison)}{caution(comparison)}",
        kind="note",
    )


# Learning --------------------------------------------------------------------------------------------


def add_curves(page: Page, scored: Sequence[TrainedRun], words: Words) -> None:
    """The learning curves of runs."""
    section = page.section("How it learnt" if len(scored) == 1 else "How they learnt")
    if not any(one.history.epochs for one in scored):
        section.text("The training history is no longer in the folder of the run.")
        return
    drawn = plots.svg(figures.curves(scored, words.noun))
    section.drawing(drawn, alt="Learning curves: the ELBO by epoch.")
    lost = [one.name for one in scored if not one.history.epochs]
    if lost:
        section.text(f"The training history is no longer in the folder of {listed(lost)}.")
    several = len({one.run.model.method for one in scored}) > 1
    section.text(
        f"The ELBO by epoch, on validation {words.nouns} (solid) and training {words.nouns} (dashed). A dot "
        "marks the epoch whose weights were kept, the best in validation. Where the dashed curve leaves the solid one, "
        "the model begins to overfit."
        + (
            " The bounds of different methods are not comparable: compare only curves of one method." if several else ""
        ),
        kind="note",
    )


# The gap ---------------------------------------------------------------------------------------------


def add_gap(page: Page, comparison: Comparison) -> None:
    """The estimated gap of every run against its inference gap."""
    scored = [(i, one) for i, one in enumerate(comparison.scored) if one.gap is not None]
    if not scored:
        return
    noun, nouns, count = comparison.noun, comparison.nouns, len(scored[0][1].chosen)
    section = page.section(f"Does the estimated gap find the difficult {nouns}?")
    many = comparison.several(count)
    drawn = [
        (
            one.name,
            plots.svg(figures.inference_gap(one, index)),
            f"Estimated gap of {one.name} against the inference gap, a point for each of {many}.",
        )
        for index, one in scored
    ]
    if len(drawn) == 1:
        section.drawing(*drawn[0][1:])
    else:
        section.drawings(drawn)
    for _, one in scored:
        section.text(relation(comparison, one), kind="key")
    line = f"The line joins the medians of ten groups of equal size; it rises if the estimate finds difficult {nouns}. "
    section.text(
        f"Each point is a test {noun}. Its inference gap is the refined log-likelihood minus the ELBO of "
        f"the encoder’s posterior: what is lost by using that posterior. {line if count >= 50 else ''}The negative "
        "ELBO is a simple baseline, but it has an advantage, since it is part of the inference gap itself.",
        kind="note",
    )


# Calibration -----------------------------------------------------------------------------------------


def add_calibration(page: Page, comparison: Comparison) -> None:
    """The coverage of the intervals of the posteriors, and the ranks of the true codes."""
    scored = [(i, one) for i, one in enumerate(comparison.scored) if one.coverage]
    if not scored:
        return
    section = page.section("Do the intervals of the posteriors hold?")
    section.drawing(
        plots.svg(figures.coverage(comparison.scored)),
        alt="The share of true codes inside central intervals against the probability of the intervals.",
    )
    for _, one in scored:
        shares = [f"{100 * row.mean(0.8):.0f} % ({row.posterior})" for row in one.coverage]
        section.text(f"The 80 % intervals of {one.name} cover {', '.join(shares)} of the true codes.", kind="key")
    rows = [row for _, one in scored for row in one.coverage]
    count, error = rows[0].count, max(row.stderr(0.8) for row in rows)
    calibrated = ""
    if any("calibrated" in row.posterior for row in rows):
        calibrated = "“Calibrated” posteriors have their covariance multiplied by a temperature, see vae.calibrate. "
    section.text(
        f"The share of the true latent codes inside central intervals of the posteriors, for {count:,} instances "
        "simulated from each model, whose true codes are known, averaged over the latent dimensions; its standard "
        f"error is at most {100 * error:.1f} %. A curve below the diagonal belongs to a posterior whose intervals are "
        f"too narrow. {calibrated}An encoder can be worse for simulated {comparison.nouns} than for real ones, with "
        "which it was trained.",
        kind="note",
    )
    for index, one in scored:
        shown = min(one.vae.latent_dim, charts.MOST_DIMENSIONS)
        section.drawing(
            figures.ranks(one, index),
            alt=f"Histograms of the ranks of the true codes among draws of the posteriors of {one.name}.",
        )
        which = "each latent dimension" if shown == one.vae.latent_dim else f"the first {shown} latent dimensions"
        section.text(
            f"The ranks of the true codes among draws of the posteriors of {one.name}, for {which}. If a posterior is "
            "exact, all bars of a panel end in the grey band with a probability of 95 %. A U shape means that its "
            "intervals are too narrow.",
            kind="note",
        )
