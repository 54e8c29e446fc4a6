"""The command `gpin rank`."""
# ruff: noqa: D417  (shared parameters are described in base)

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from gpin.cli.base import (
    Columns,
    Device,
    Fixed,
    Flag,
    Grey,
    Key,
    RunFolder,
    Size,
    SkipDamaged,
    app,
    console,
    fixed_conditions,
    number,
    print_json,
    progress,
    show_sentences,
    source_options,
    tell,
)

if TYPE_CHECKING:
    from gpin.runs import Ranking


@app.command(sort_key=3, help_epilogue="Example: `gpin rank runs/wine-gp-1a2b3c4d new.csv --top 20 -o ranking.csv`")
def rank(
    run: RunFolder,
    data: str,
    /,
    *,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    top: int = 10,
    by: Literal["log_likelihood", "elbo", "reconstruction", "gap", "complexity"] = "log_likelihood",
    against: Literal["train", "validation"] | None = None,
    reference: int = 1000,
    samples: int = 100,
    proposal: Literal["encoder", "refined"] = "encoder",
    gap: Literal["predicted", "estimated", "refined", "none"] | None = None,
    contributions: Path | None = None,
    overwrite: Annotated[bool, Flag] = False,
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
    """Rank instances by how unusual they are for the model, and say which columns or regions make them so.

    The percentile of an instance is the percentage of reference instances, from the data of the run, that are less
    unusual. A reason is a column or a region of a picture whose expected −log p(x_i|z) exceeds its mean in the
    reference by at least one nat, or the latent code, if it is far from the prior; the number in parentheses is this
    excess in nats.

    Parameters
    ----------
    data
        The data to rank: a data set's name or a path. It is read as in the run, unless options below say otherwise.
    out
        A file for the ranking of all instances, with all scores and contributions: .csv, .parquet or .json.
    top
        The number of instances to print, the most unusual first.
    by
        The score: the log-likelihood; the ELBO; the reconstruction error; the gap, in nats, by which refinement would
        improve the posterior (likelihood regret); or complexity, for pictures: the log-likelihood plus the compressed
        size of the picture, because plain pictures, such as black ones, have the highest log-likelihoods.
    against
        The part of the run's data to compare with. By default the validation part, because a model explains instances
        that it was fitted to better than new ones; the training part if there are fewer than 100 validation instances.
    reference
        Compare with at most this many instances, chosen at random.
    samples
        The number of importance samples for each log-likelihood.
    proposal
        The distribution to sample from: the encoder's posterior, or a Gaussian refined for each instance (slow).
    gap
        How the gap is determined: predicted from the encoder alone; estimated, with one decoder gradient; measured by
        refinement, which is slow; or not at all. By default it is refined with --by gap, because the others are
        calibrated for ordinary instances, and estimated otherwise.
    contributions
        For pictures: a file for the contributions of single pixels, .npy for all instances, or .png for a picture of
        the 16 most unusual ones, each above a map in which bright pixels are unusual.
    overwrite
        Replace files that exist.
    moved
        The new location of the run's own data, if it has moved.
    seed
        Seeds all noise and the random choice of the reference.
    json
        Print the instances as JSON.
    """
    from gpin._core.inputs import whole_number
    from gpin.runs import rank_run

    whole_number(top, "--top", least=0)
    options = source_options(columns, key, size, grey, skip_damaged) | {"given": fixed_conditions(given)}
    with progress("ranking") as on_batch:
        found = rank_run(
            run,
            data,
            by=by,
            against=against,
            reference=reference,
            samples=samples,
            proposal=proposal,
            gap=gap,
            out=out,
            contributions=contributions,
            overwrite=overwrite,
            data=moved,
            seed=seed,
            **options,
            device=device,
            on_batch=on_batch,
            tell=tell,
        )
    files = [str(file) for file in (out, contributions) if file is not None]
    if json:
        print_json({"run": str(run), "data": data, "files": files, **found.record(top)})
        return
    if top:
        _show(found, top)
        if {"complexity", "reason"} <= found.columns.keys() and contributions is None:
            show_sentences("A picture of the unusual pixels is written with --contributions maps.png.")
    elif not files:
        show_sentences(
            f"{len(found):,} instances are ranked: write the ranking to a file with -o, or print it with --top."
        )
    for file in files:
        print(f"wrote {file}")


def _show(ranking: "Ranking", top: int) -> None:
    from rich.table import Table
    from rich.text import Text

    score, columns = ranking.score, ranking.columns
    shown = min(top, len(ranking))
    unit = f", {score.unit}" if score.unit else ""
    print(f"The {shown:,} most unusual of {len(ranking):,} instances by {score.title}\n")
    table = Table(box=None, padding=(0, 2, 0, 0))
    name = "file" if "file" in columns else "row"
    table.add_column(name, justify="left" if name == "file" else "right", overflow="fold")
    table.add_column(f"{score.title}{unit}", justify="right")
    table.add_column("percentile", justify="right", no_wrap=True)
    table.add_column("what is unusual, nats above the mean", overflow="fold")
    digits = 2 if score.unit else 4
    for i in range(shown):
        reason = str(columns["reason"][i]) if "reason" in columns else ""
        cells = (
            str(columns[name][i]),
            number(columns[score.shown][i], digits),
            f"{columns['percentile'][i]:.1f}",
            reason or "—",
        )
        table.add_row(*map(Text, cells))
    console().print(table)
    above = int((columns["percentile"] == 100).sum())
    part = {"train": "training", "validation": "validation"}[ranking.part]
    print()
    show_sentences(
        f"Percentile: the percentage of {ranking.reference:,} {part} instances that are less unusual. "
        f"{above:,} of the {len(ranking):,} instances {'is' if above == 1 else 'are'} more unusual than all of them."
    )
    if ranking.trained:
        show_sentences(
            f"This is the data of the run: the model was trained on {ranking.trained:,} of these instances, which it "
            "explains better than new ones."
        )
