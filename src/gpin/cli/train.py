"""`gpin train`: train a run on data."""
# ruff: noqa: D417  (shared parameters are described in base)

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, validators

from gpin._core.errors import InputError
from gpin.cli.base import (
    Columns,
    Device,
    Flag,
    Grey,
    Key,
    Size,
    SkipDamaged,
    app,
    first_process,
    number,
    on_terminal,
    print_json,
    quoted,
    show_pairs,
    source_options,
    tell,
    with_flags,
)

if TYPE_CHECKING:
    from gpin.data import DataSet, Source
    from gpin.runs import Run
    from gpin.training import History
    from gpin.vae import VAE

Scaling = Literal["auto", "pixels", "standardised", "binary", "none"]


@app.command(sort_key=1, help_epilogue="Example: `gpin train digits --method gp --epochs 20 --set learning_rate=0.001`")
def train(
    data: str,
    /,
    *more: Annotated[str, Parameter(show=False)],
    method: str | None = None,
    latent_dim: int | None = None,
    epochs: int | None = None,
    out: Path = Path("runs"),
    set_: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    config: Path | None = None,
    seed: int | None = None,
    columns: Columns = None,
    key: Key = None,
    size: Size = None,
    grey: Grey = None,
    skip_damaged: SkipDamaged = None,
    given: str | None = None,
    scaling: Scaling | None = None,
    start: Path | None = None,
    device: Device = None,
    checkpoint_seconds: Annotated[float, Parameter(validator=validators.Number(gte=0))] = 30.0,
    tensorboard: Annotated[bool, Flag] = False,
    log: Annotated[list[Literal["tensorboard", "wandb", "mlflow"]] | None, Parameter(negative="")] = None,
    json: Annotated[bool, Flag] = False,
) -> None:
    """Train a VAE on your data. The same command resumes a run that is not finished.

    A run is a folder with everything that is needed to describe, resume and repeat it. You can stop or kill training
    at any time and resume it with the same result.

    Parameters
    ----------
    data
        A data set's name (`gpin data list`) or a path: .npy, .npz, .csv, .parquet, or a folder of pictures.
    method
        The inference model, see `gpin methods`. [default: gp]
    latent_dim
        The number of latent dimensions. [default: 10]
    epochs
        The number of passes through the training data. [default: 50]
    out
        The folder in which runs are stored.
    set_
        Another option as key=value; may be repeated. Options of the method, of training (batch_size, learning_rate,
        schedule, clip_norm, ema, weight_decay, augmentation, kl_warmup, patience) and of the data (limit, split_seed)
        have plain names. Those of the likelihood and the architecture are likelihood=bernoulli,
        likelihood.variance=fixed, architecture.width=512, ….
    config
        A JSON file of settings, such as another run's run.json; options on the command line override it.
    seed
        Seeds the initial weights, the order of the data and all noise. [default: 0]
    given
        Make the model conditional: what is given with each instance and not modelled. For a table its columns,
        separated by commas; for an .npz archive other arrays; for a folder of pictures folder, the subfolder of each;
        for a data set label.
    scaling
        How the data is scaled for the model; auto decides by its values. [default: auto]
    start
        A run or a saved model to start from, for methods that support it (gp, rme, vae).
    checkpoint_seconds
        The time between checkpoints, in seconds.
    tensorboard
        The same as --log tensorboard.
    log
        Log the results of each epoch to TensorBoard (files in the run's folder), W&B or MLflow; may be repeated.
    json
        Print the result as JSON.
    """
    from gpin.runs import read_settings, run_settings
    from gpin.runs import train as train_run
    from gpin.runs.settings import column_list

    wrong = next((text for text in more if "=" not in text), None)
    if wrong is not None:
        raise InputError(
            f"unexpected {wrong!r}: gpin train takes one data set; options begin with dashes, such as --epochs"
        )
    flags = {
        "method": method,
        "latent_dim": latent_dim,
        "epochs": epochs,
        "seed": seed,
        "scaling": scaling,
        "given": None if given is None else column_list(given),
    }
    chosen = {name: value for name, value in flags.items() if value is not None}
    settings = run_settings(
        chosen | source_options(columns, key, size, grey, skip_damaged),
        assignments=[*(set_ or []), *more],
        base=None if config is None else read_settings(config, started=start is not None),
    )
    beginning = Beginning(always=True)
    with beginning.interruptible():
        run, _, history = train_run(
            data,
            settings,
            out=out,
            start=start,
            device=device,
            checkpoint_seconds=checkpoint_seconds,
            tensorboard=tensorboard,
            log=log,
            on_start=beginning,
            tell=tell,
        )
    if first_process() and json:
        print_json(_record(run, history, beginning))
    elif first_process():
        _show(run, history, beginning)


class Beginning:
    """Records the state of a run when training begins, and says on stderr what was understood.

    Arguments:
        always: Whether to say it even if stderr is not a terminal.
    """

    def __init__(self, always: bool = False) -> None:
        self.always = always
        self.folder: Path | None = None
        self.state: Literal["new", "resumed", "done"] = "new"
        self.understood: list[tuple[str, str]] = []

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A context in which Ctrl-C is reported with the folder of the run."""
        try:
            yield
        except KeyboardInterrupt:
            if self.folder is None:
                raise
            raise KeyboardInterrupt(
                f"interrupted: the run is saved in {self.folder}; run the same command to resume it"
            ) from None

    def __call__(self, run: "Run", data: "DataSet", vae: "VAE") -> None:
        from gpin.runs.understood import skipped_files, understood
        from gpin.training.cost import expected_seconds

        self.folder = run.folder
        checkpoint = run.checkpoint(lambda sentence: None)
        record: Any = {} if checkpoint is None else checkpoint.record
        if record.get("finished"):
            self.state = "done"
            return
        self.state = "resumed" if record.get("updates") else "new"
        if not first_process():
            return
        if _has_no_header(data.source):
            where = data.source.location
            tell(f"the first row of {where} is all numbers, so it is read as data; the columns are called 1, 2, …")
        skipped = skipped_files(data.source)
        if skipped is not None:
            tell(skipped)
        if self.always or on_terminal():
            seconds = expected_seconds(vae, data.train, data.validation, run.settings.training)
            left = 1 - (record.get("epoch", 1) - 1) / run.settings.training.epochs
            self.understood = [(name, with_flags(value)) for name, value in understood(run, data, vae, left * seconds)]
            show_pairs(self.understood, sys.stderr)
        if self.state == "resumed":
            where = f"{record['epoch']} of {run.settings.training.epochs}"
            print(f"resuming at epoch {where}: {run.folder}", file=sys.stderr)


def _has_no_header(source: "Source") -> bool:
    """Whether a text table has columns without names, none of which was chosen by number."""
    numbers = tuple(str(i + 1) for i in range(len(source.columns or ())))
    text = Path(source.location).suffix.lower() in (".csv", ".tsv", ".txt")
    return text and source.columns == numbers and source.config.columns is None


def _show(run: "Run", history: "History", beginning: Beginning) -> None:
    print(f"{'already done' if beginning.state == 'done' else 'done'}: {run.folder}")
    score = history.scores[history.best - 1]
    said = "" if score is None else f" by its validation score of {number(score)} nats"
    print(f"best epoch {history.best} of {len(history.epochs)}{said}, validation ELBO {number(_best(history))} nats")
    print(f"{'this is a lower bound' if score is None else 'both are lower bounds'} of log p(x), mean over instances")
    if sys.stdout.isatty():
        print(f"next: gpin evaluate {quoted(run.folder)}")


def _record(run: "Run", history: "History", beginning: Beginning) -> dict[str, Any]:
    return {
        "run": str(run.folder),
        "began": beginning.state,
        "epochs": len(history.epochs),
        "best_epoch": history.best,
        "validation_elbo": _best(history),
        "validation_score": history.scores[history.best - 1],
        "seconds": history.seconds,
        "data": run.location,
        "shape": list(run.model.shape),
        "scaling": run.scaling.kind,
        "method": run.model.method,
        "skipped": [name for name, _ in run.skipped],
        "understood": dict(beginning.understood),
    }


def _best(history: "History") -> float:
    return history.validation[history.best - 1]
