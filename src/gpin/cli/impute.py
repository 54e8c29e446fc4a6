"""The command `gpin impute`."""
# ruff: noqa: D417  (shared parameters are described in base)

from pathlib import Path
from typing import Annotated, Literal

from gpin.cli.base import (
    Device,
    Flag,
    Grey,
    Key,
    Out,
    RunFolder,
    Size,
    app,
    print_json,
    progress,
    source_options,
    tell,
)


@app.command(sort_key=5, help_epilogue="Example: `gpin impute runs/wine-gp-1a2b3c4d wine.csv -o filled.csv`")
def impute(
    run: RunFolder,
    data: str,
    /,
    *,
    out: Out,
    mask: Path | None = None,
    samples: int = 200,
    proposal: Literal["encoder", "refined"] = "refined",
    overwrite: Annotated[bool, Flag] = False,
    seed: int = 0,
    key: Key = None,
    size: Size = None,
    grey: Grey = None,
    device: Device = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Fill in missing values with what the model expects there, given the values that are known.

    A missing number is replaced by its mean over the posterior of the latent code, in a log-normal column by the
    median (that is, the mean of logarithms), a missing category by the most probable one. Everything else is written as
    it is, columns that the model does not know included. The run may have been trained on data with missing values or
    on complete data.

    Parameters
    ----------
    data
        The data to complete: a data set's name or a path. Empty cells of a table and NaN in an array are missing.
    out
        The file to write: .csv or .parquet for tables, .npy for arrays and pictures, .png to look at up to 16 pictures.
    mask
        For arrays and pictures: what is missing, besides NaN. An .npy file of zeros and ones, a picture in which white
        is missing, or a folder of such pictures; for one instance, or for each.
    samples
        The number of draws from the posterior of each instance.
    proposal
        Draw from a Gaussian refined for each instance, or from the encoder's posterior, which is faster.
    overwrite
        Replace the file if it exists.
    seed
        Seeds all noise.
    json
        Print a summary of the output as JSON.
    """
    from gpin.runs import impute_to_file

    options = source_options(None, key, size, grey)
    with progress("imputing") as on_batch:
        found = impute_to_file(
            run,
            data,
            out,
            mask=mask,
            samples=samples,
            proposal=proposal,
            overwrite=overwrite,
            seed=seed,
            **options,
            device=device,
            on_batch=on_batch,
            tell=tell,
        )
    if json:
        print_json({"out": str(out), "instances": found.count, "imputed": found.filled})
    else:
        print(f"wrote {out}: {found.count:,} instances, {found.filled:,} values imputed")
