"""The commands for trained runs: `gpin encode`, `sample`, `reconstruct`, `report`, `improve`, `export`."""
# ruff: noqa: D417  (shared parameters are described in base)

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from gpin.cli.base import (
    Columns,
    Device,
    Fixed,
    Flag,
    Grey,
    Key,
    Out,
    RunFolder,
    Size,
    SkipDamaged,
    app,
    fixed_conditions,
    number,
    print_json,
    progress,
    quoted,
    show_pairs,
    source_options,
    staged_progress,
    tell,
)

if TYPE_CHECKING:
    pass


@app.command(sort_key=3, help_epilogue="Example: `gpin encode runs/digits-gp-1a2b3c4d digits -o latents.parquet`")
def encode(
    run: RunFolder,
    data: str,
    /,
    *,
    out: Out,
    samples: int = 100,
    steps: int | None = None,
    tolerance: float | None = None,
    max_steps: int | None = None,
    gap: Literal["predicted", "estimated", "refined", "none"] = "estimated",
    anomalies: Annotated[bool, Flag] = False,
    moved: Annotated[str | None, Parameter(name="--data")] = None,
    seed: int = 0,
    columns: Columns = None,
    key: Key = None,
    size: Size = None,
    grey: Grey = None,
    skip_damaged: SkipDamaged = None,
    given: Fixed = None,
    device: Device = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Write latent codes, gaps, uncertainties and log-likelihoods, one row per instance.

    The columns are row, counted from 0; file, for a folder of pictures; mean_0, … and std_0, … of the latent code;
    uncertainty, with its parts uncertainty_f (of the mean) and uncertainty_h (of the standard deviation), for methods
    that have it; steps, the number of steps taken, with --steps or --tolerance; gap, in nats, how far the code is from
    the best one that refinement finds, with the ends gap_low and gap_high of an 80 % interval, or with --tolerance the
    estimated gap that is left; reconstruction_error, the mean squared error in the units of the model; log_likelihood
    in these units, with its diagnostics ess and khat; and elbo.

    Parameters
    ----------
    data
        The data to encode: a data set's name or a path. It is read as in the run, unless options below say otherwise.
    out
        The file to write, .parquet or .csv.
    samples
        The number of importance samples for each log-likelihood; 0 leaves it out, which is faster.
    steps
        Improve the codes by this many natural-gradient steps; 0 uses the encoder alone. By default the method's own
        posterior is written.
    tolerance
        Continue the steps of an instance until its estimated remaining gap is at most this many nats.
    max_steps
        The maximum number of steps with --tolerance; 20 by default.
    gap
        How the amortization gap of each instance is determined: predicted from the encoder alone; estimated, with one
        decoder gradient; measured by refinement, which is slow; or not at all.
    anomalies
        Also write the columns of `gpin rank` that say how unusual each instance is compared with the run's own data,
        and why.
    moved
        With --anomalies: the new location of the run's own data, if it has moved.
    seed
        Seeds all noise.
    json
        Print a summary of the output as JSON.
    """
    from gpin.runs import encode_to_file

    options = source_options(columns, key, size, grey, skip_damaged) | {"given": fixed_conditions(given)}
    with progress("encoding") as on_batch:
        found = encode_to_file(
            run,
            data,
            out,
            samples=samples,
            steps=steps,
            tolerance=tolerance,
            max_steps=max_steps,
            gap=gap,
            anomalies=anomalies,
            moved=moved,
            seed=seed,
            **options,
            device=device,
            on_batch=on_batch,
            tell=tell,
        )
    _wrote(out, f"{found.count:,} rows", json, rows=found.count, columns=found.columns)


@app.command(sort_key=5, help_epilogue="Example: `gpin sample runs/digits-gp-1a2b3c4d -o grid.png --count 100`")
def sample(
    run: RunFolder,
    /,
    *,
    out: Out,
    count: int = 64,
    noise: Annotated[bool, Flag] = False,
    given: Fixed = None,
    seed: int = 0,
    device: Device = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Draw samples from the model: a picture of images, or a table in the units of your data.

    Parameters
    ----------
    out
        The file to write: .png for images, .csv or .parquet for tables, .npy for both.
    count
        The number of samples.
    noise
        Draw x with the noise of p(x|z), instead of its mean.
    seed
        Seeds all noise.
    json
        Print a summary of the output as JSON.
    """
    from gpin.runs import sample_to_file

    conditions = fixed_conditions(given)
    sample_to_file(run, out, count=count, noise=noise, given=conditions, seed=seed, device=device, tell=tell)
    _wrote(out, f"{count:,} samples", json, samples=count)


@app.command(
    sort_key=4, help_epilogue="Example: `gpin reconstruct runs/digits-gp-1a2b3c4d digits -o pairs.png --count 32`"
)
def reconstruct(
    run: RunFolder,
    data: str | None = None,
    /,
    *,
    out: Out,
    count: int | None = None,
    seed: int = 0,
    moved: Annotated[str | None, Parameter(name="--data")] = None,
    columns: Columns = None,
    key: Key = None,
    size: Size = None,
    grey: Grey = None,
    skip_damaged: SkipDamaged = None,
    given: Fixed = None,
    device: Device = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Encode and decode data: a picture of images above their reconstructions, or a table in the units of your data.

    Parameters
    ----------
    data
        A data set's name or a path; without it, the test part of the run's own data.
    out
        The file to write: .png for images, .csv or .parquet for tables, .npy for both.
    count
        The number of instances, evenly spaced; by default 16 for a picture, and all for a table or an array.
    seed
        Seeds all noise, for methods whose encoder is stochastic.
    moved
        Without DATA: the new location of the run's own data, if it has moved.
    json
        Print a summary of the output as JSON.
    """
    from gpin.runs import reconstruct_to_file

    options = source_options(columns, key, size, grey, skip_damaged) | {"given": fixed_conditions(given)}
    with progress("reconstructing") as on_batch:
        found = reconstruct_to_file(
            run,
            out,
            other=data,
            data=moved,
            count=count,
            seed=seed,
            **options,
            device=device,
            on_batch=on_batch,
            tell=tell,
        )
    _wrote(out, f"{found.count:,} reconstructions", json, reconstructions=found.count)


@app.command(
    sort_key=6, help_epilogue="Example: `gpin report runs/digits-gp-1a2b3c4d runs/digits-vae-5e6f7a8b -o report.html`"
)
def report(
    run: Annotated[tuple[Path, ...], Parameter(help="The folders of one or more runs.")],
    /,
    *,
    out: Out = Path("report.html"),
    samples: int = 100,
    limit: int = 1000,
    seed: int = 0,
    data: str | None = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Write one page that explains and compares runs: what the numbers amount to, pictures, latent space, scores.

    Parameters
    ----------
    out
        The HTML file to write, which is self-contained.
    samples
        The number of importance samples for each log-likelihood.
    limit
        Refine the proposals of at most this many test instances, chosen at random; the encoder's score uses all.
    seed
        Seeds all noise and the random choice of instances.
    data
        The new location of the runs' data, if it has moved.
    json
        Print a summary of the output as JSON.
    """
    from gpin.runs.report import write_report

    with staged_progress(lines=True) as on_stage:
        write_report(run, out, samples=samples, limit=limit, seed=seed, data=data, tell=tell, on_stage=on_stage)
    _wrote(out, _count(run), json, runs=[str(folder) for folder in run])


def _count(runs: Sequence[Path]) -> str:
    return f"{len(runs)} runs" if len(runs) > 1 else "1 run"


@app.command(sort_key=7, help_epilogue="Example: `gpin improve runs/digits-vae-1a2b3c4d --epochs 20`")
def improve(
    run: RunFolder,
    /,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    samples: float | None = None,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    data: str | None = None,
    device: Device = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Train the encoder of a run further, with its decoder unchanged; the result is a new run.

    Parameters
    ----------
    epochs
        The number of passes through the training data. [default: 10]
    steps
        The number of natural-gradient steps with which the encoder of a natural run is trained and validated: 0
        improves the encoder alone. [default: those of the run]
    samples
        The weight, from 0 to 1, of images drawn from the model in the loss. [default: 0.2]
    out
        The folder of the new run. [default: the folder of the run with -improved after its name]
    set_
        Another option as key=value; may be repeated: batch_size, learning_rate, schedule, clip_norm, ema, weight_decay,
        augmentation, patience, seed.
    data
        The new location of the run's data, if it has moved.
    json
        Print the result as JSON.
    """
    from gpin.runs import improve_run
    from gpin.runs.settings import values_by_key

    flags = {"epochs": epochs, "steps": steps, "samples": samples}
    given = {name: value for name, value in flags.items() if value is not None}
    options = values_by_key(given, set_ or [])
    found = improve_run(run, out=out, data=data, options=options, device=device, tell=tell)
    if json:
        scores = {"before": found.before, "after": found.after, "gain": found.gain}
        print_json({"run": str(found.run.folder), "done_before": found.done, "validation_score": scores})
        return
    print(f"{'already done' if found.done else 'done'}: {found.run.folder}")
    if found.done:  # otherwise training has said so
        print(f"the validation score had risen from {number(found.before)} to {number(found.after)} nats")
    if sys.stdout.isatty():
        print(f"next: gpin evaluate {quoted(found.run.folder)}")


@app.command(sort_key=8, help_epilogue="Example: `gpin export runs/digits-gp-1a2b3c4d -o encoder.onnx`")
def export(
    run: RunFolder,
    /,
    *,
    out: Out,
    part: Literal["encoder", "decoder", "model"] = "encoder",
    steps: int | None = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Write the encoder or the decoder as an ONNX model, or the whole model as a folder to share.

    The encoder maps data, in their original units, to mean, std and uncertainty; the decoder maps codes to data. The
    folder of the whole model has a model card with a score; commands such as encode, evaluate and report accept it in
    place of a run.

    Parameters
    ----------
    out
        The file to write, .onnx; for the whole model, a new folder.
    part
        What to write.
    steps
        0 exports the encoder of a natural run alone; its steps need the decoder's gradient, which ONNX does not have.
    json
        Print the model's inputs and outputs as JSON.
    """
    from gpin._core.errors import InputError
    from gpin.runs import export_run, share_run

    if part == "model":
        if steps is not None:
            raise InputError("--steps applies to the encoder alone: leave it out with --part model")
        shared = share_run(run, out, tell=tell)
        _wrote(out, ", ".join(shared.files), json, files=list(shared.files))
        return
    found = export_run(run, out, part=part, steps=steps, tell=tell)
    if json:
        print_json({"out": str(out), "inputs": found.inputs, "outputs": found.outputs})
        return
    print(f"wrote {out}")
    sizes = [(name, "in", size) for name, size in found.inputs.items()]
    sizes += [(name, "out", size) for name, size in found.outputs.items()]
    show_pairs([(name, f"{kind:4}({', '.join(map(str, size))})") for name, kind, size in sizes])


def _wrote(out: Path, what: str, json: bool, **record: Any) -> None:
    if json:
        print_json({"out": str(out), **record})
    else:
        print(f"wrote {out}: {what}")
