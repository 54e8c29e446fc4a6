"""The tables of an experiment: scores, differences, diagnostics, true posteriors and inference times."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpin.data import BENCHMARKS
from gpin.evaluation.paired import PairedDifference
from gpin.evaluation.reliability import COMMON
from gpin.evaluation.scores import SCORES, Score
from gpin.experiments.analysis.paper import PAPER
from gpin.experiments.analysis.progress import REFERENCES, paper_scores, progress_of, progress_table
from gpin.experiments.analysis.results import BASELINES, Results, VariantResult
from gpin.experiments.analysis.statistics import Summary, mark
from gpin.experiments.execution.timing import BATCH, REFERENCE, REPEATS
from gpin.experiments.protocols import Experiment, Protocol, variant_named
from gpin.report.numbers import plus_minus
from gpin.report.tables import Mark, ResultTable

__all__ = ["column_title", "experiment_tables", "likelihood_tables", "posterior_tables", "time_tables"]


def experiment_tables(
    experiment: Experiment, protocol: Protocol, results: Results, times: Mapping[str, Any] | None
) -> list[ResultTable]:
    """All tables of an experiment.

    Arguments:
        experiment: The experiment.
        protocol: The protocol under which it was run.
        results: Its results.
        times: Its inference times, see `experiment_times`.
    """
    tables: list[ResultTable] = []
    if results.done:
        tables += posterior_tables(results) if experiment.grid else []
        tables += likelihood_tables(experiment, protocol, results)
    return tables + ([] if times is None else time_tables(experiment, times))


def likelihood_tables(experiment: Experiment, protocol: Protocol, results: Results) -> list[ResultTable]:
    """For every data set and latent dimension: the scores, the differences from the baselines, and the diagnostics."""
    tables = []
    for data, dim in results.columns():
        variants = results.variants(data, dim)
        if variants:
            title = column_title(experiment, data, dim)
            tables.append(_scores(title, experiment, protocol, results, variants, data, dim))
            for baseline in BASELINES:
                if any(baseline in variant.differences for variant in variants):
                    tables.append(_differences(title, baseline, variants))
            tables.append(_diagnostics(title, variants))
            progress, targets = progress_of(results, data, dim), paper_scores(experiment, data, dim)
            if progress and targets and protocol.limit is None:
                tables.append(progress_table(title, progress, targets))
    return tables


def column_title(experiment: Experiment, data: str, dim: int) -> str:
    """The title of the tables and figures of one data set and latent dimension."""
    title = experiment.title if experiment.data == (data,) else f"{experiment.title}, {data.upper()}"
    return f"{title}, d = {dim}"


def _name(variant: VariantResult) -> str:
    """The title of a row, with the number of its trainings if some are missing."""
    return variant_named(variant.row).title + (
        f" ({variant.done} of {variant.wanted} runs)" if variant.done < variant.wanted else ""
    )


def _scores(
    title: str,
    experiment: Experiment,
    protocol: Protocol,
    results: Results,
    variants: Sequence[VariantResult],
    data: str,
    dim: int,
) -> ResultTable:
    marks: dict[tuple[int, int], Mark] = {}
    columns = _score_columns("likelihood", variants)
    runs = max(variant.scores["log_likelihood"].runs for variant in variants)
    # As in the paper, marks compare methods only: neither ablations nor variants with missing runs are marked.
    methods = [variant for variant in variants if not variant_named(variant.row).ablation] or variants
    compared = [
        variant for variant in methods if variant.done == variant.wanted and variant.scores["log_likelihood"].runs > 1
    ]
    if len(compared) == 1:  # a single variant has nothing to be compared with
        compared = []
    for column, score in enumerate(columns, 1):
        known = {variant.row: variant.scores[score.name] for variant in compared if score.name in variant.scores}
        for name, colour in mark(known).items() if score.better == "higher" else ():
            if colour:
                marks[next(i for i, variant in enumerate(variants) if variant.row == name), column] = colour
    compares = bool(marks)
    paper = _paper(experiment, data, dim)
    beside = any(variant.row in paper for variant in variants)
    for i, variant in enumerate(variants):
        if variant.row in paper and paper[variant.row][1]:
            marks[i, 1 + len(columns)] = paper[variant.row][1]
    rows = [
        [
            _name(variant),
            *(_score_cell(score, variant) for score in columns),
            *([paper[variant.row][0] if variant.row in paper else ""] if beside else []),
        ]
        for variant in variants
    ]
    starts = protocol.initialisations
    means, each = ("of one training", "") if runs == 1 else (f"mean ± standard deviation over {runs} runs", "each ")
    best = f", {each}the best on validation data of {starts} initialisations" if starts > 1 else ""
    few = FEW_RUNS if runs < 5 and any(variant.differences for variant in variants) else ""
    notes = [
        f"Test log-likelihood in nats, importance-weighted with K = {protocol.scoring.samples} samples, {means}{best}. "
        "Encoder: proposals of the method's own encoder. Refined: proposals fitted to each instance in the same way "
        "for all methods, so that the score depends mainly on the model (the fit starts from the encoder's mean and "
        "ends when a step gains less than 0.1 nats).",
        *([MARKED + few] if compares else [MARKED_IN_PAPER] if marks else []),
        *_bounds(columns, variants),
        *_collapsed(variants),
        *_cautions(results, data),
        *_plain_steps(results.with_plain_steps(data, dim)),
        *_about_closely(protocol),
        *_about_paper(protocol, paper, {variant.row for variant in variants}),
        *([] if experiment.decoder == "dense" else _about_supplement(variants, data, dim)),
    ]
    head = ["", *(score.symbol for score in columns), *(["paper"] if beside else [])]
    return ResultTable(title, head, rows, marks, notes)


MARKED = (
    "Red (bold): the best. Blue (italic): not significantly different from the best by Welch's t-test at 1 %. "
    "Ablations and rows with missing runs are not compared."
)
MARKED_IN_PAPER = (
    "Red (bold): the best in the paper. Blue (italic): not significantly different from it, by the paper's test. Our "
    "own scores have no such marks, because the test needs several trainings of several methods."
)
FEW_RUNS = " With so few runs this test finds few differences; the paired differences below are more informative."


def _bounds(columns: Sequence[Score], variants: Sequence[VariantResult]) -> list[str]:
    """A note that explains ≥, if a score of the table is only a lower bound."""
    if all(variant.is_bound(score) is False for score in columns for variant in variants):
        return []
    return [
        f"≥: a lower bound, because k̂ is above 0.7 for more than {100 * COMMON:.0f} % of the instances (see the "
        "diagnostics below). The score is too low by an unknown amount, which differs between rows."
    ]


def _collapsed(variants: Sequence[VariantResult]) -> list[str]:
    found = []
    for variant in variants:
        if variant.collapsed:
            splits = f"split{'s' if len(variant.collapsed) > 1 else ''} {', '.join(map(str, variant.collapsed))}"
            found.append(f"{variant_named(variant.row).title} on {splits}")
    why = "all samples of a proposal have equal weight, so the decoder ignores the code"
    return [f"Collapsed trainings ({why}): {'; '.join(found)}."] if found else []


def _cautions(results: Results, data: str) -> list[str]:
    """The sizes of the data, and whether the runs differ in other ways than the table shows."""
    found = _sizes(results, data)
    if len(results.fingerprints.get(data, ())) > 1:
        found.append(f"The runs on {data} did not all have the same images: their fingerprints differ.")
    if data in BENCHMARKS and BENCHMARKS[data].counts[1] is None:
        found.append(
            "The test part differs between splits, which increases the deviations over runs, but not the differences."
        )
    return found


def _plain_steps(rows: Sequence[str]) -> list[str]:
    """A note on rows whose steps newer versions take differently."""
    titles = ", ".join(variant_named(row).title for row in rows)
    return [f"From older runs, whose steps were not accelerated: {titles}. New runs differ."] if rows else []


def _sizes(results: Results, data: str) -> list[str]:
    return [
        f"Trained on {train:,} instances, scored on {test:,} of the test part." for train, test in results.sizes(data)
    ]


def _about_paper(protocol: Protocol, paper: Mapping[str, tuple[str, Mark]], shown: Collection[str]) -> list[str]:
    """How the paper's numbers compare with ours, and those of its references if the table does not have their rows."""
    if not paper:
        return []
    other = {
        "paper": "",
        "long": f", after 2000 epochs on all images; ours are after {protocol.epochs}, or as many as the row says",
    }.get(protocol.name, ", after 2000 epochs on all images, which are not comparable with ours")
    references = [f"{variant_named(row).title} {paper[row][0]}" for row in REFERENCES if row in {*paper} - {*shown}]
    if not {*paper} & {*shown}:
        return [f"Paper: {' and '.join(references)}{other}."] if references else []
    unseen = [f"The paper also has {' and '.join(references)}."] if references else []
    return [f"Paper: the numbers in the paper{other}.", *unseen]


def _about_closely(protocol: Protocol) -> list[str]:
    count = protocol.scoring.closely
    scores = "Refined and annealed" if protocol.scoring.temperatures else "Refined"
    return [] if count is None else [f"{scores} scores are those of {count:,} of these instances, chosen at random."]


def _about_supplement(variants: Sequence[VariantResult], data: str, dim: int) -> list[str]:
    """A note on numbers that differ between the paper's tables and its supplement."""
    table = PAPER.log_likelihood.get(data, {}).get(dim, {})
    other = PAPER.supplement.get(data, {}).get(dim, {})
    differing = [
        f"{variant_named(variant.row).title} {other[variant.row]:.1f}"
        for variant in variants
        if variant.row in other and f"{other[variant.row]:.1f}" != f"{table[variant.row].mean:.1f}"
    ]
    return [f"The paper's supplement has different numbers: {', '.join(differing)}."] if differing else []


def _differences(title: str, baseline: str, variants: Sequence[VariantResult]) -> ResultTable:
    compared = [variant for variant in variants if baseline in variant.differences]
    rows = [
        [
            _name(variant),
            *(
                cell
                for one in variant.differences[baseline]
                for cell in (
                    _signed(one.instances.mean),
                    _interval(one.instances),
                    f"{_interval(one.splits)} {one.ahead}/{one.splits.instances}".strip(),
                )
            ),
        ]
        for variant in compared
    ]
    head = ["", "encoder", "instances", "trainings", "refined", "instances", "trainings"]
    counts = sorted({one.instances.instances for variant in compared for one in variant.differences[baseline]})
    notes = [
        f"Paired differences on the same {' or '.join(f'{count:,}' for count in counts)} test instances and splits, "
        "nats. Instances: the 95 % interval over test instances, for these trainings. Trainings: the 95 % interval "
        "over splits, of which there are few, followed by the number of splits in which the method is better.",
    ]
    return ResultTable(f"{title}: difference from {BASELINES[baseline]}", head, rows, notes=notes)


def _diagnostics(title: str, variants: Sequence[VariantResult]) -> ResultTable:
    columns = _score_columns("diagnostics", variants)
    gaps = any(correlation is not None for variant in variants for correlation in variant.by_gap)
    predictors = ["ρ unc.", "ρ −ELBO", *(["ρ estimated", "ρ predicted"] if gaps else [])]
    head = ["", *(score.symbol for score in columns), *predictors, "size"]
    rows = []
    for variant in variants:
        correlations = (variant.by_uncertainty, variant.by_elbo, *(variant.by_gap if gaps else ()))
        rows.append(
            [
                _name(variant),
                *(_score_cell(score, variant) for score in columns),
                *("" if correlation is None else str(correlation) for correlation in correlations),
                f"{variant.parameters:,}",
            ]
        )
    notes = [
        f"{_explained(columns)} ± is the standard deviation over runs. Two numbers are the means over runs with "
        "proposals of the encoder / with refined ones.",
        "ρ: Spearman's rank correlation of the amortization gap over instances, ± its standard error, with the "
        "GP's uncertainty (unc.), and with −ELBO, which every encoder has: the baseline to beat (it shares its noise "
        "with the gap). Size: the number of parameters.",
    ]
    if gaps:
        notes.append(
            "ρ estimated and ρ predicted: the same with the gap that is estimated from one decoder gradient, and with "
            "the one predicted from the encoder alone. Both are calibrated on validation data; in newer runs they "
            "learn from training data too. Runs that were scored before these existed have none."
        )
    return ResultTable(f"{title}: amortization gap and diagnostics", head, rows, notes=notes)


def _score_columns(table: str, variants: Sequence[VariantResult]) -> list[Score]:
    """The scores that have a column in a table: those that some variant has."""
    return [
        score
        for name, score in SCORES.items()
        if score.table == table and score.beside is None and any(name in variant.scores for variant in variants)
    ]


def _score_cell(score: Score, variant: VariantResult) -> str:
    """The mean over runs ± standard deviation, or the means of all scores of a column; blank if the runs lack it."""
    shown = [score, *(other for other in SCORES.values() if other.beside == score.name and other.table == score.table)]
    found = [(one, variant.scores[one.name]) for one in shown if one.name in variant.scores]
    texts = []
    for one, summary in found:
        text = _summary(summary, one) if len(shown) == 1 else one.written(summary.mean)
        texts.append(text if variant.is_bound(one) is False else one.as_bound(text))
    return " / ".join(texts)


def _explained(scores: Sequence[Score]) -> str:
    """One sentence that explains each column."""
    parts = (f"{score.symbol}: {score.explanation}{f', {score.unit}' if score.unit else ''}" for score in scores)
    return f"Columns: {'; '.join(parts)}."


def posterior_tables(results: Results) -> list[ResultTable]:
    """How far encoders are from the true posterior on the grid, and what predicts the distance."""
    tables = []
    for data, dim in results.columns():
        variants = results.variants(data, dim)
        columns = _score_columns("posterior", variants)
        rows = []
        for variant in variants:
            found = results.posterior(variant.row, data, dim)
            correlations = (*found.by_uncertainty, *found.by_elbo)
            cells = [_score_cell(score, variant) for score in columns]
            rows.append([_name(variant), *cells, *("" if one is None else str(one) for one in correlations)])
        correlated = [f"ρ {what}, {gap}" for what in ("unc.", "−ELBO") for gap in ("inference", "amort.")]
        head = ["", *(score.symbol for score in columns), *correlated]
        notes = [
            f"{_explained(columns)} Means over instances ± standard deviation over runs.",
            "ρ: Spearman's rank correlation over instances, ± its standard error, of the GP's uncertainty (unc.) and "
            "of −ELBO, which every encoder has, with the inference gap and with the amortization gap (amort.).",
            *_sizes(results, data),
        ]
        if rows:
            tables.append(ResultTable(f"The true posterior, {data.upper()}, d = {dim}", head, rows, notes=notes))
    return tables


def _summary(found: Summary, score: Score) -> str:
    deviation = f" ± {score.written(found.std)}" if math.isfinite(found.std) else ""
    return score.written(found.mean) + deviation


def _signed(value: float) -> str:
    return "" if math.isnan(value) else f"{value:+.2f}".replace("-", "−")


def _interval(found: PairedDifference) -> str:
    return "" if math.isnan(found.low) else f"[{_signed(found.low)}, {_signed(found.high)}]"


def _paper(experiment: Experiment, data: str, dim: int) -> dict[str, tuple[str, Mark]]:
    """The paper's numbers for one column by row, with its marks."""
    if experiment.decoder == "dense":
        column = PAPER.dense_log_likelihood.get(data, {}).get(dim, {})
        return {row: (f"{value:.1f}", "") for row, value in column.items() if not math.isnan(value)}
    marks = PAPER.marks.get(data, {}).get(dim, {})
    found = PAPER.log_likelihood.get(data, {}).get(dim, {})
    return {row: (plus_minus(s.mean, s.std, 1), marks[row]) for row, s in found.items()}


def time_tables(experiment: Experiment, found: Mapping[str, Any]) -> list[ResultTable]:
    """One table per data set and latent dimension: times as multiples of the VAE's, ours and the paper's.

    Arguments:
        experiment: The experiment.
        found: The record of `gpin.experiments.execution.timing.measure_times`.
    """
    tables = []
    for column in found["columns"]:
        data, dim, rows = column["data"], column["latent_dim"], column["rows"]
        paper = _paper_times(experiment, data, dim)
        cells = [
            [
                variant_named(row).title,
                f"{own['milliseconds']:.1f}",
                f"{own['ratio']:.2f}",
                f"{own['least']:.2f} – {own['most']:.2f}",
                f"{paper[row]:.1f}" if row in paper else "",
                f"{paper[row] / paper[REFERENCE]:.2f}" if row in paper and REFERENCE in paper else "",
            ]
            for row, own in rows.items()
        ]
        notes = [
            f"The time to encode a batch of {BATCH} and draw one z for every instance: the mean of {REPEATS} passes "
            f"over {column['images']:,} images, and the median and range of the ratio to the VAE's time before and "
            f"after. Weights and images are random. Threads: {found['threads']}; load average before: "
            f"{found['load']:.1f}. The paper's times were measured on a GPU. Line searches of SA take longer in a "
            "trained model.",
        ]
        head = ["", "ms", "× VAE", "range", "paper, ms", "paper, × VAE"]
        dense = ", dense decoder" if experiment.decoder == "dense" else ""
        title = f"Inference time, {data.upper()}, d = {dim}{dense}"
        tables.append(ResultTable(title, head, cells, notes=notes))
    return tables


def _paper_times(experiment: Experiment, data: str, dim: int) -> Mapping[str, float]:
    """The paper's times in milliseconds by row; those of a mirrored decoder are known at 50 dimensions."""
    if experiment.decoder == "dense":
        return PAPER.dense_inference_time.get(data, {}).get(dim, {})
    return PAPER.inference_time.get(data, {}) if dim == 50 else {}
