"""`gpin compare`: train, score and compare methods and latent dimensions on your data."""
# ruff: noqa: D417  (shared parameters are described in base)

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from gpin.cli.base import (
    CheckError,
    Columns,
    Exclude,
    Flag,
    Given,
    Grey,
    Key,
    Kinds,
    Size,
    SkipDamaged,
    app,
    latent_dims,
    on_terminal,
    print_json,
    quoted,
    runs_progress,
    show_sentences,
    show_tables,
    source_options,
    tell,
)
from gpin.cli.experiment import slurm_options
from gpin.cli.train import Scaling

if TYPE_CHECKING:
    from gpin.experiments.comparison import ModelComparison


@app.command(
    sort_key=2.5,
    help_epilogue="Example: `gpin compare table.csv --methods vae,gp,natural --latent-dim 2,5,10 --epochs 20`",
)
def compare(
    data: str,
    /,
    *,
    methods: str | None = None,
    latent_dim: str | None = None,
    seeds: int | None = None,
    new_splits: Annotated[bool, Flag] = False,
    baseline: str | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    samples: int | None = None,
    limit: int | None = None,
    out: Path = Path("comparisons"),
    report: Path | None = None,
    columns: Columns = None,
    exclude: Exclude = None,
    kinds: Kinds = None,
    key: Key = None,
    size: Size = None,
    grey: Grey = None,
    skip_damaged: SkipDamaged = None,
    given: Given = None,
    scaling: Scaling | None = None,
    executor: Literal["local", "serial", "slurm", "ray"] = "local",
    workers: int | None = None,
    threads: int = 1,
    address: str | None = None,
    slurm: Annotated[list[str] | None, Parameter(negative="")] = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Train and score several methods and latent dimensions on your data, and say which model is better.

    The command may be stopped at any time: the same command finishes what is left and repeats nothing. When everything
    is done, it prints the result again. More methods, dimensions or seeds can be added later.

    Parameters
    ----------
    data
        A data set's name (`gpin data list`) or a path: .npy, .npz, .csv, .parquet, or a folder of pictures.
    methods
        The inference models, separated by commas, see `gpin methods`. [default: vae,gp,natural]
    latent_dim
        The numbers of latent dimensions, separated by commas. [default: 10]
    seeds
        The number of trainings of every model, with other initial weights. [default: 3]
    new_splits
        Split the data anew for every seed, instead of once for all.
    baseline
        The method to which the others are compared, for equal numbers of latent dimensions; by default every model is
        compared with the best one.
    epochs
        The number of passes through the training data. [default: as in `gpin train`]
    steps
        The largest number of training steps, instead of a number of epochs.
    set_
        Another option as key=value for all models, as in `gpin train`; may be repeated. An option of one method has the
        name of the method before it, such as natural.steps=2.
    samples
        The number of importance samples per test instance. [default: 100]
    limit
        Score at most this many test instances, chosen at random. [default: 1000]
    out
        The folder in which comparisons are stored, each with its runs.
    report
        The page to write, .html. [default: comparison.html in the folder of the comparison]
    scaling
        How the data is scaled for the model; auto decides by its values. [default: auto]
    executor
        Where models are trained: in processes on this machine, in this process, in an array of Slurm jobs, or on Ray.
    workers
        The number of models to train at the same time. [default: the number of cores]
    threads
        The number of threads per worker.
    address
        The address of a Ray cluster, such as auto; by default Ray is started on this machine.
    slurm
        More options for Slurm as key=value, such as slurm_partition=gpu; may be repeated.
    json
        Print the numbers in full precision as JSON.
    """
    from gpin.experiments.comparison import ModelComparison
    from gpin.runs.outputs import check_output
    from gpin.runs.settings import values_by_key

    if report is not None:
        check_output(report, "a page", data)
    flags = {
        "epochs": epochs,
        "training.steps": steps,
        "scaling": scaling,
        **source_options(columns, key, size, grey, skip_damaged, given, exclude, kinds),
    }
    options = values_by_key({name: value for name, value in flags.items() if value is not None}, set_ or [])
    chosen: dict[str, Any] = {
        "methods": None if methods is None else [name.strip() for name in methods.split(",")],
        "latent_dim": None if latent_dim is None else latent_dims(latent_dim),
        "seeds": seeds,
        "samples": samples,
        "limit": limit,
    }
    comparison = ModelComparison(
        data,
        **{name: value for name, value in chosen.items() if value is not None},
        new_splits=new_splits,
        baseline=baseline,
        out=out,
        **options,
    )
    if on_terminal():
        print(_description(comparison), file=sys.stderr)
    try:
        with runs_progress(len(comparison.cells), lines=True) as on_progress:
            comparison.run(
                executor,
                workers,
                threads,
                address=address,
                slurm=slurm_options(slurm or []),
                on_progress=on_progress,
                tell=tell,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted: {comparison.done} of {len(comparison.cells)} trainings are done in "
            f"{comparison.store.root}; run the same command to continue"
        ) from None
    page = comparison.write_page(report)
    if json:
        print_json({**comparison.record(), "report": str(page)})
    else:
        show_tables([comparison.result.table()])
        show_sentences(comparison.recommendation)
        print(f"runs: {comparison.store.runs}")
        print(f"page: {page}")
        if sys.stdout.isatty():
            print(f"next: gpin report {quoted(comparison.result.recommended.best_run)}")
    left = len(comparison.cells) - comparison.done
    if left:
        raise CheckError(
            f"{left} of {len(comparison.cells)} trainings are not done: run the same command to try them again"
        )


def _description(comparison: "ModelComparison") -> str:
    """The data and the number of trainings in one line."""
    from gpin.runs.understood import counted_instances

    data = comparison.data
    counts = f"{len(data.train):,} training, {len(data.validation):,} validation, {len(data.test):,} test"
    models = len(comparison.methods) * len(comparison.latent_dims)
    return (
        f"{comparison.source.name}: {counted_instances(data, counts)} · {data.scaling.kind} · "
        f"{models} models × {comparison.seeds} seeds, {comparison.done} of {len(comparison.cells)} trainings done"
    )
