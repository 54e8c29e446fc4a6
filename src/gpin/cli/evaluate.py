"""`gpin evaluate`: score one or several runs on their own data or on new data."""
# ruff: noqa: D417  (shared parameters are described in base)

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from gpin._core.errors import InputError, OtherDataError
from gpin.cli.base import (
    Columns,
    Device,
    Fixed,
    Flag,
    Grey,
    Key,
    Size,
    SkipDamaged,
    app,
    closer_estimate,
    console,
    fixed_conditions,
    number,
    print_json,
    progress,
    quoted,
    show_pairs,
    show_sentences,
    show_tables,
    source_options,
    staged_progress,
    tell,
)

if TYPE_CHECKING:
    from gpin.evaluation.annealed import Sandwich
    from gpin.runs import Evaluation, RunCoverage, ScoredRuns


@app.command(
    sort_key=2, help_epilogue="Example: `gpin evaluate runs/digits-gp-1a2b3c4d --samples 500 --proposal refined`"
)
def evaluate(
    run: Annotated[
        tuple[str, ...],
        Parameter(
            help="The folders of one or more runs, as printed by `gpin train`; and after them, to score new data, the "
            "name of a data set or a path."
        ),
    ],
    /,
    *,
    samples: int | None = None,
    proposal: Literal["encoder", "refined"] = "encoder",
    steps: int | None = None,
    tolerance: float | None = None,
    max_steps: int | None = None,
    estimator: Literal["importance", "annealed"] = "importance",
    temperatures: int | None = None,
    chains: int | None = None,
    start: Literal["refined", "prior"] | None = None,
    leapfrog: int | None = None,
    sandwich: int | None = None,
    gaps: Annotated[bool, Flag] = False,
    data: str | None = None,
    part: Literal["test", "validation", "train"] = "test",
    limit: int | None = None,
    columns: Columns = None,
    key: Key = None,
    size: Size = None,
    grey: Grey = None,
    skip_damaged: SkipDamaged = None,
    given: Fixed = None,
    calibration: Annotated[bool, Flag] = False,
    simulations: int | None = None,
    seed: int = 0,
    device: Device = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Score runs on their test data or on new data: log-likelihood with its diagnostics, bits per dimension, ELBO.

    Several runs are scored side by side. Where they are scored on the same instances, the paired difference of each
    from the first is shown with its 95 % interval. New data is read as in the run, unless options below say otherwise,
    and all of it is scored.

    Parameters
    ----------
    samples
        The number of importance samples per instance. [default: 100]
    proposal
        The distribution to sample from: the encoder's posterior, or a Gaussian refined for each instance, whose score
        depends much less on the encoder.
    steps
        Improve the encoder's posterior by this many natural-gradient steps; 0 uses the encoder alone. By default the
        method's own posterior is used. With the refined proposal: the maximum number of steps.
    tolerance
        Continue the steps of an instance until its estimated remaining gap is at most this many nats.
    max_steps
        The maximum number of natural-gradient steps with --tolerance; 20 by default.
    estimator
        Importance sampling, or annealed: chains that move from a start to the posterior, which is slow but much closer
        to log p(x) where importance sampling is poor.
    temperatures
        The number of temperatures of annealed chains, also for --sandwich and --gaps. [default: 200 from the refined
        start, 1000 from the prior]
    chains
        The number of annealed chains per instance. [default: 8]
    start
        Where annealed chains start: a Gaussian refined for each instance, or the prior. [default: refined]
    leapfrog
        The number of leapfrog steps per temperature. [default: 4 from the refined start, 10 from the prior]
    sandwich
        Simulate this many instances from the model, bound their log p(x) from both sides, and say how far importance
        sampling is too low.
    gaps
        Split the inference gap into amortization and approximation gap, on test and on training data, for at most
        --limit or 100 instances each.
    data
        The new location of the run's own data, if it has moved; new data follows the runs instead.
    part
        The part of the run's own data to score.
    limit
        Score at most this many instances, chosen at random.
    calibration
        Also determine how often intervals of the posteriors contain the true latent codes, for instances simulated
        from the model and for the data.
    simulations
        The number of simulated instances with --calibration, and without --limit also of instances of the data; 500 by
        default.
    seed
        Seeds all noise and the random choice of instances.
    json
        Print the scores as JSON.
    """
    from gpin._core.inputs import whole_number
    from gpin.evaluation.calibration import LEAST
    from gpin.runs import evaluate_runs, open_runs
    from gpin.runs.calibration import SIMULATIONS

    if calibration and tolerance is not None:
        raise InputError("--calibration cannot be combined with --tolerance: give --steps, the same for all instances")
    if simulations is not None and not calibration:
        raise InputError("--simulations applies only with --calibration: give both")
    simulations = whole_number(SIMULATIONS if simulations is None else simulations, "--simulations", least=LEAST)
    source = source_options(columns, key, size, grey, skip_damaged)
    if given:
        source["given"] = fixed_conditions(given)
    folders, new = _runs_and_data(run)
    if calibration and (new is not None or len(folders) > 1):
        raise InputError("--calibration applies to a single run and its own data: give one run, or leave it out")
    opened = open_runs(folders)
    try:
        with staged_progress() as on_run:
            scored = evaluate_runs(
                opened,
                samples=samples,
                proposal=proposal,
                steps=steps,
                tolerance=tolerance,
                max_steps=max_steps,
                estimator=estimator,
                temperatures=temperatures,
                chains=chains,
                start=start,
                leapfrog=leapfrog,
                sandwich=sandwich,
                gaps=gaps,
                data=data,
                part=part,
                new=new,
                source=source,
                limit=limit,
                seed=seed,
                device=device,
                on_run=lambda name, done, total: on_run(f"evaluating {name}", done, total),
                tell=tell,
            )
    except OtherDataError as error:
        if data is None:
            raise
        words = " ".join(map(quoted, [*folders, data]))
        raise InputError(f"{error}; to score it as new data: gpin evaluate {words}") from None
    others: dict[str, Any] = {"data": data, "part": None if part == "test" else part, "limit": limit}
    others |= {"columns": columns, "key": key, "size": size, "grey": grey, "skip-damaged": skip_damaged}
    others["given"] = given
    if estimator == "annealed":
        others |= {"start": start, "leapfrog": leapfrog}
    better = None
    bounds = [one.log_likelihood for one in scored.scores if one.log_likelihood.lower_bound is not False]
    if bounds:
        used = bounds[0]
        colder = None if used.annealing is None else used.annealing.temperatures
        what = [*(one.folder for one in opened), *([] if new is None else [new])]
        better = closer_estimate(what, used.proposal, used.samples, colder, **others)
    about: dict[str, Any] = {"part": part, "seed": seed} if new is None else {"data": new, "seed": seed}
    if len(opened) > 1:
        if json:
            print_json({**about, "runs": scored.records(), "closer_estimate": better})
        else:
            _show_runs(scored, part if new is None else new, better)
        return
    (found,) = scored.scores
    record = {"run": str(opened[0].folder), "method": opened[0].model.method, **about, **found.record()}
    coverage = None
    if calibration:
        from gpin.runs import coverage_run

        with progress("calibration") as on_batch:
            coverage = coverage_run(
                opened[0],
                steps=steps if (proposal, estimator) == ("encoder", "importance") else None,
                simulations=simulations,
                limit=limit,
                data=data,
                part=part,
                seed=seed,
                device=device,
                on_batch=on_batch,
                tell=tell,
            )
        record["calibration"] = coverage.record()
    if json:
        print_json({**record, "closer_estimate": better})
        return
    _show_evaluation(opened[0].folder, part if new is None else new, found, better)
    if coverage is not None:
        _show_coverage(coverage)


def _runs_and_data(words: Sequence[str]) -> tuple[list[str], str | None]:
    """The folders of runs and the new data after them, if any: a last word that is not the folder of a run."""
    from gpin.data import BENCHMARKS

    *first, last = words
    if not first or (Path(last) / "run.json").is_file():
        return list(words), None
    if last not in BENCHMARKS and not Path(last).expanduser().exists():
        raise InputError(
            f"{last} is neither the folder of a run nor data: give the folders of runs, and after them new data if "
            "there is any"
        )
    return first, last


def _what(part: str, found: "Evaluation") -> str:
    """What was scored and how, in one line."""
    likelihood = found.log_likelihood
    how = f"{likelihood.samples:,} samples each, {likelihood.proposal} proposal"
    if likelihood.annealing is not None:
        annealing = likelihood.annealing
        how = f"{likelihood.samples:,} annealed chains each, {annealing.temperatures:,} temperatures, "
        how += f"{annealing.start} start"
    known = part in ("test", "validation", "train")
    instances = f"{part} instances" if known else f"instances of {part}"
    return f"{len(likelihood.values):,} {instances}, {how}"


def _show_runs(scored: "ScoredRuns", part: str, better: str | None) -> None:
    for name, run in zip(scored.names, scored.runs, strict=True):
        print(f"{name}: {run.folder}")
    print()
    counts = {len(one.log_likelihood.values) for one in scored.scores}
    title = _what(part, scored.scores[0])
    if len(counts) > 1:
        title = "different numbers of" + title[title.index(" ") :]
    show_tables([scored.table(title)])
    for remark in scored.remarks:
        show_sentences(remark)
    show_sentences("Scores are in nats, except bits; ± is the standard error of the mean over instances.")
    if any(scored.difference(i) for i in range(len(scored.runs))):
        show_sentences(
            "The differences are paired by instance. Their intervals hold for these trained models: training with "
            "other seeds may change them, as gpin compare shows."
        )
    if better is not None:
        print(f"A closer estimate: {better}")


def _show_evaluation(folder: Path, part: str, found: "Evaluation", better: str | None) -> None:
    from gpin.evaluation.reliability import few_instances
    from gpin.evaluation.scores import shown_scores

    print(folder)
    print(f"{_what(part, found)}\n")
    pairs = []
    for score, detail in shown_scores(found.columns):
        remark = score.remark(score.value(found.columns[score.name]))
        text = score.shown(found.columns, unit=True) + (f": {remark}" if remark else "")
        pairs.append(("· " * detail + score.title, text))
    show_pairs(pairs)
    if found.sandwich is not None:
        _show_sandwich(found.sandwich)
    if found.gaps is not None:
        from gpin.report.tables import show

        print()
        show(found.gaps.table(), console())
    print()
    show_sentences("± is the standard error of the mean over instances.")
    if "steps_taken" in found.columns:
        show_sentences("The training ELBO and its terms are those of the method's own posterior, not after the steps.")
    show_sentences(few_instances(len(found.log_likelihood.values)))
    show_sentences(found.caution)
    if better is not None:
        print(f"A closer estimate: {better}")


def _show_sandwich(found: "Sandwich") -> None:
    lower, upper = (f"{number(bound.mean)}" for bound in (found.forward, found.reverse))
    print(f"\n{len(found.lower):,} instances simulated from the model: log p(x) is between {lower} and {upper} nats")
    print("on average. Importance sampling is too low by")
    show_pairs(
        [
            (
                f"· {name}, {found.others[name].samples:,} samples",
                f"{number(bias.at_least)} to {number(bias.at_most)} nats, ± {number(bias.error)}",
            )
            for name, bias in found.biases.items()
        ]
    )


def _show_coverage(found: "RunCoverage") -> None:
    from gpin.evaluation.calibration import LEVELS

    replaced = f"{found.part} instances, with draws from their resampled posteriors in place of the true codes"
    print("\nHow often central intervals contain the latent code, in %")
    for rows, what in ((found.simulated, "simulated instances"), (found.data, replaced)):
        if not rows:
            continue
        print(f"\n{rows[0].count:,} {what}\n")
        width = max(len(row.posterior) for row in rows)
        heads = "".join(f"{100 * level:6.0f} %" for level in LEVELS)
        print(f"{'posterior':{width}}{heads}   error   p-value  temperature")
        for row in rows:
            shares = "".join(f"{100 * row.mean(level):8.1f}" for level in LEVELS)
            p = "< 0.001" if row.p_value < 0.001 else f"{row.p_value:.3f}"
            print(f"{row.posterior:{width}}{shares}{100 * row.stderr(0.8):8.1f}{p:>10}{row.temperature:13.2f}")
    print(
        "\nerror: the standard error of the coverage of 80 % intervals. p-value: that of ranks at least as uneven as\n"
        "these, if the posterior were exact. temperature: the factor on the covariance that makes 80 % cover 80 %."
    )
