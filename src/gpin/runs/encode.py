"""Latent codes, uncertainties and log-likelihoods of data, as the columns of a table."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from gpin._core.devices import device_named
from gpin._core.errors import InputError
from gpin._core.files import as_path
from gpin._core.inputs import whole_number
from gpin._core.messages import Tell, to_stderr
from gpin.data import Rows
from gpin.evaluation.anomalies import anomaly_score, reconstruction_error
from gpin.runs.folder import Run, as_run
from gpin.runs.outputs import Columns, Written, check_output, write_table
from gpin.runs.reference import Reference, Scorer
from gpin.runs.rows import OnBatch, map_batches, open_data, source_options
from gpin.vae import VAE, check_steps

__all__ = ["encode_rows", "encode_to_file"]


def encode_to_file(
    run: Run | str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    samples: int = 100,
    steps: int | None = None,
    tolerance: float | None = None,
    max_steps: int | None = None,
    gap: str = "estimated",
    anomalies: bool = False,
    moved: str | os.PathLike[str] | None = None,
    seed: int = 0,
    columns: Sequence[str] | None = None,
    key: str | None = None,
    size: Sequence[int] | None = None,
    grey: bool | None = None,
    skip_damaged: bool | None = None,
    given: Mapping[str, Any] | None = None,
    device: str | None = None,
    on_batch: OnBatch | None = None,
    tell: Tell = to_stderr,
) -> Written:
    """Write the latent codes of data to a table, one row per instance, as `gpin encode` does; see `encode_rows`.

    Arguments:
        run: The run, or its folder.
        data: The data to encode: a data set's name or a path. It is read as in the run, except for the options given.
        out: The file to write, .parquet or .csv.
        samples: K, the number of importance samples for each log-likelihood; 0 leaves it out, which is faster.
        steps: The number of natural-gradient steps that improve the codes, see `VAE.encode`; None takes the method's
            own.
        tolerance: The estimated remaining gap, in nats, at which the steps of an instance end.
        max_steps: The maximum number of steps with a tolerance.
        gap: How the gap of each instance is determined, see `VAE.gap`; "none" leaves it out.
        anomalies: Whether to add how unusual each instance is, by its log-likelihood: the columns of `Ranking` that
            compare it with the run's own data.
        moved: With `anomalies`: the new location of the run's own data, if it has moved.
        seed: The seed of all noise.
        columns: The columns of a table.
        key: The array in an .npz archive.
        size: The height and width to resize the images of a folder to.
        grey: Whether to read the images of a folder in grey, with one channel.
        skip_damaged: Whether to leave out files of a folder that cannot be read as one picture.
        given: Values of the conditions of a conditional model that are the same for all instances, by name; the others
            are read with the data, as in the run.
        device: The device, such as "cpu" or "cuda"; by default a GPU if there is one.
        on_batch: Called after each batch with the number of instances done and their total.
        tell: Called with each message for the user.
    """
    run, out = as_run(run), as_path(out, "the file to write")
    check_steps(steps, tolerance, max_steps)
    check_output(out, "one row per instance", str(data), run.location, tell=tell)
    vae = run.load(tell).to(device_named(device))
    options = source_options(columns=columns, key=key, size=size, grey=grey, skip_damaged=skip_damaged, given=given)
    rows = open_data(run, data, **options, tell=tell)
    reference = None
    if anomalies:
        if samples == 0 or steps is not None or tolerance is not None:
            raise InputError("`anomalies` compares log-likelihoods of the encoder: leave out `samples=0` and steps")
        scorer = Scorer.of(run, vae, samples=samples, gap="none")
        reference = Reference.measured(run, scorer, anomaly_score("log_likelihood"), data=moved, seed=seed)
    elif moved is not None:
        raise InputError("the location of the run's own data applies with `anomalies` only: leave it out")
    codes = encode_rows(
        vae,
        rows,
        samples=samples,
        steps=steps,
        tolerance=tolerance,
        max_steps=max_steps,
        gap=gap,
        reference=reference,
        seed=seed,
        on_batch=on_batch,
    )
    return write_table(out, codes)


def encode_rows(
    vae: VAE,
    rows: Rows,
    *,
    samples: int = 100,
    steps: int | None = None,
    tolerance: float | None = None,
    max_steps: int | None = None,
    gap: str = "estimated",
    reference: Reference | None = None,
    seed: int = 0,
    on_batch: OnBatch | None = None,
) -> Iterator[Columns]:
    """The latent codes of instances with their diagnostics, as the columns of a table, batch by batch.

    The columns are `row`; `file`, the path of an image within its folder, for a folder of images; `mean_0`, … and
    `std_0`, … of q(z|x); `uncertainty`, with its parts `uncertainty_f` of the posterior mean and `uncertainty_h` of the
    posterior standard deviation, for methods that have it; `steps`, the natural-gradient steps taken, with `steps` or a
    tolerance; `gap`, the amortization gap in nats, with the ends `gap_low` and `gap_high` of its interval if the model
    is calibrated; with a tolerance, `gap` is the Newton decrement with which it was compared;
    `reconstruction_error`, the mean squared error in model units; `log_likelihood` in model units, with `ess` and
    `khat`, and `elbo`, from the same samples. With a reference, the columns of a `Ranking` that compare an instance
    with it follow.

    Arguments:
        vae: The model.
        rows: The data.
        samples: K, the number of importance samples for each log-likelihood; 0 leaves it out.
        steps: The number of natural-gradient steps, see `VAE.encode`.
        tolerance: The estimated remaining gap, in nats, at which the steps of an instance end.
        max_steps: The maximum number of steps with a tolerance.
        gap: "predicted", "estimated" or "refined", see `VAE.gap`, or "none".
        reference: The instances with which these are compared.
        seed: The seed of all noise.
        on_batch: Called after each batch with the number of instances done and their total.
    """
    whole_number(samples, "samples", least=0)
    check_steps(steps, tolerance, max_steps)
    if tolerance is not None and gap not in ("estimated", "none"):
        raise InputError(f"gap={gap!r} does not apply with a tolerance, whose gap is the estimated one that is left")
    if gap != "none":
        vae.check_gap(gap, steps)

    def columns_of(numbers: np.ndarray, x: Tensor) -> Columns:
        q: Any = vae.encode(x, steps=steps, tolerance=tolerance, max_steps=max_steps)
        columns = {"row": numbers}
        if rows.names is not None:
            columns["file"] = np.array([rows.names[row] for row in numbers])
        for name, moment in (("mean", q.mean), ("std", q.stddev)):
            columns |= {f"{name}_{j}": column for j, column in enumerate(_array(moment).T)}
        if vae.inference.has_uncertainty:
            found = vae.uncertainty(x)
            columns |= {
                "uncertainty": _array(found.total),
                "uncertainty_f": _array(found.mean_part),
                "uncertainty_h": _array(found.std_part),
            }
        if steps is not None or tolerance is not None:
            columns["steps"] = _array(q.ascent.steps)
        if tolerance is not None and gap != "none":
            columns["gap"] = _array(q.ascent.remaining_gap)
        elif gap != "none":
            gaps = vae.gap(x, gap, steps=steps)
            ends = {"gap": gaps.values, "gap_low": gaps.low, "gap_high": gaps.high}
            columns |= {name: _array(end) for name, end in ends.items() if name == "gap" or not end.isnan().all()}
        columns["reconstruction_error"] = _array(reconstruction_error(vae, vae.check(x), q.mean))
        if samples:
            ll = vae.log_likelihood(x, samples, steps=steps, tolerance=tolerance, max_steps=max_steps)
            columns |= {"log_likelihood": _array(ll.values), "ess": _array(ll.ess), "khat": _array(ll.khat)}
            columns["elbo"] = _array(ll.elbo)
        if reference is not None:
            columns |= reference.scorer.complexity(x, columns["log_likelihood"])
            columns |= reference.columns(columns, x, reference.contributions(x))
        return columns

    return map_batches(columns_of, rows, seed=seed, on_batch=on_batch)


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()
