"""What is done with a trained run: `gpin evaluate`, `encode`, `sample`, `reconstruct`, `report`, `export`."""
# ruff: noqa: D417  (what several commands take is described once, in base)

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from gpin.cli.base import (
    Columns,
    Device,
    Flag,
    Grey,
    Key,
    Out,
    RunFolder,
    Size,
    app,
    number,
    on_terminal,
    print_json,
    progress,
    show_pairs,
    source_options,
    tell,
)


@app.command(
    sort_key=2, help_epilogue="Example: `gpin evaluate runs/digits-gp-1a2b3c4d --samples 500 --proposal refined`"
)
def evaluate(
    run: RunFolder,
    /,
    *,
    samples: int = 100,
    proposal: Literal["encoder", "refined"] = "encoder",
    data: str | None = None,
    part: Literal["test", "validation", "train"] = "test",
    limit: int | None = None,
    seed: int = 0,
    device: Device = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Score a run on its test data: log-likelihood with its diagnostics, bits per dimension, ELBO.

    Parameters
    ----------
    samples
        Importance samples for each instance.
    proposal
        Where they come from: the encoder, or a Gaussian fitted to each instance, which scores the model much more than
        the encoder.
    data
        Where the run's data is now, if it has moved.
    part
        Which part of it.
    limit
        Score at most so many instances, chosen at random.
    seed
        Of all noise, and of that choice.
    json
        Print the scores as JSON.
    """
    from gpin.runs import evaluate_run, open_run

    opened = open_run(run)
    with progress("evaluating") as on_batch:
        found = evaluate_run(
            opened,
            samples=samples,
            proposal=proposal,
            data=data,
            part=part,
            limit=limit,
            seed=seed,
            device=device,
            on_batch=on_batch,
            tell=tell,
        )
    record = {"run": str(opened.folder), "method": opened.model.method, "part": part, "seed": seed, **found.record()}
    if json:
        print_json(record)
    else:
        _show_evaluation(record)


def _show_evaluation(record: dict[str, Any]) -> None:
    found, ess, khat = record["log_likelihood"], record["ess"], record["khat"]
    bits, elbo = record["bits_per_dim"], record["elbo"]
    share = "unknown: it takes 25 samples to tell"
    if khat["share_above_0.7"] is not None:
        share = f"above 0.7 for {100 * khat['share_above_0.7']:.0f} % of instances, median {khat['median']:.2f}"
    what = f"{record['instances']:,} {record['part']} instances, {record['samples']:,} samples each"
    what += f", {record['proposal']} proposal"
    print(f"{record['run']}\n{what}\n")
    show_pairs(
        [
            ("log-likelihood", f"{_pm(found['mean'], found['stderr'])} nats"),
            ("· Monte-Carlo error", f"{number(found['mc_error'])} nats"),
            ("· effective samples", f"{number(ess['mean'])} on average, median {number(ess['median'])}"),
            ("· Pareto-k̂", share),
            ("bits per dimension", f"{_pm(bits['mean'], bits['stderr'], 3)} in the units of the data"),
            ("ELBO", f"{_pm(elbo['mean'], elbo['stderr'])} nats"),
            ("· reconstruction", number(elbo["reconstruction"])),
            ("· KL of z", _kl_of_code(elbo["kl"])),
            ("· KL of the weights", number(elbo["weight_kl"])),
        ]
    )


def _kl_of_code(kl: float | None) -> str:
    """With a remark where the decoder has learnt to do without the code, which a score alone does not tell."""
    collapsed = kl is not None and kl < 0.1
    return number(kl) + (": the code tells nothing, the posterior has collapsed" if collapsed else "")


def _pm(value: float | None, error: float | None, digits: int = 2) -> str:
    return number(value, digits) + ("" if error is None else f" ± {number(error, digits)}")


@app.command(sort_key=3, help_epilogue="Example: `gpin encode runs/digits-gp-1a2b3c4d digits -o latents.parquet`")
def encode(
    run: RunFolder,
    data: str,
    /,
    *,
    out: Out,
    samples: int = 100,
    seed: int = 0,
    columns: Columns = None,
    key: Key = None,
    size: Size = None,
    grey: Grey = None,
    device: Device = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Write what the encoder says of each instance, a row each.

    The columns: row, from 0, and for a folder of pictures file; mean_0, … and std_0, … of the latent code; uncertainty,
    uncertainty_f and uncertainty_h (in all, of the mean, of the standard deviation; for methods that know);
    log_likelihood in the units of the model, ess and khat.

    Parameters
    ----------
    data
        What to encode: a data set's name or a path. How it is read is as in the run, unless it is said here.
    out
        The file to write, .parquet or .csv.
    samples
        Importance samples for each log-likelihood; 0 leaves it out, and is faster.
    seed
        Of all noise.
    json
        Print what was written as JSON.
    """
    from gpin.runs import encode_to_file

    options = source_options(columns, key, size, grey)
    with progress("encoding") as on_batch:
        found = encode_to_file(
            run, data, out, samples=samples, seed=seed, **options, device=device, on_batch=on_batch, tell=tell
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
    seed: int = 0,
    device: Device = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Draw from the model: a picture of images, or a table in the units of your data.

    Parameters
    ----------
    out
        The file to write: .png for images, .csv or .parquet for tables, .npy for both.
    count
        How many.
    noise
        Draw x itself, with the noise of p(x|z), not its mean.
    seed
        Of all noise.
    json
        Print what was written as JSON.
    """
    from gpin.runs import sample_to_file

    sample_to_file(run, out, count=count, noise=noise, seed=seed, device=device, tell=tell)
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
    device: Device = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Encode and decode: a picture of images above their reconstructions, or a table in the units of your data.

    Parameters
    ----------
    data
        A data set's name or a path; without it, the test part of the run's own data.
    out
        The file to write: .png for images, .csv or .parquet for tables, .npy for both.
    count
        How many, at even distances; by default 16 in a picture, and all in a table or an array.
    seed
        Of all noise, for methods whose encoder is random.
    moved
        Without DATA: where the run's own data is now, if it has moved.
    json
        Print what was written as JSON.
    """
    from gpin.runs import reconstruct_to_file

    options = source_options(columns, key, size, grey)
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
    run: Annotated[tuple[Path, ...], Parameter(help="One or several runs' folders.")],
    /,
    *,
    out: Out = Path("report.html"),
    samples: int = 100,
    limit: int = 1000,
    seed: int = 0,
    data: str | None = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """One page that explains and compares runs: curves, reconstructions, scores, uncertainty.

    Parameters
    ----------
    out
        The page to write; nothing else is needed to read it.
    samples
        Importance samples for each log-likelihood.
    limit
        Fit proposals to at most so many test instances, chosen at random; the encoder's score takes all.
    seed
        Of all noise, and of that choice.
    data
        Where the runs' data is now, if it has moved.
    json
        Print what was written as JSON.
    """
    from gpin.runs.report import write_report

    if on_terminal():
        print(f"scoring {_count(run)}, with proposals of the encoder and with fitted ones", file=sys.stderr)
    write_report(run, out, samples=samples, limit=limit, seed=seed, data=data, tell=tell)
    _wrote(out, _count(run), json, runs=[str(folder) for folder in run])


def _count(runs: Sequence[Path]) -> str:
    return f"{len(runs)} runs" if len(runs) > 1 else "1 run"


@app.command(sort_key=7, help_epilogue="Example: `gpin export runs/digits-gp-1a2b3c4d -o encoder.onnx`")
def export(run: RunFolder, /, *, out: Out, json: Annotated[bool, Flag] = False) -> None:
    """Write the inference path as an ONNX model, which takes data in its own units: x to mean, std and uncertainty.

    Parameters
    ----------
    out
        The file to write, .onnx.
    json
        Print its inputs and outputs as JSON.
    """
    from gpin.runs import export_run

    found = export_run(run, out, tell=tell)
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
