"""`gpin train`: train a run on data."""
# ruff: noqa: D417  (shared parameters are described in base)

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, validators

from gpin._core.errors import InputError
from gpin._core.messages import MEANT
from gpin.cli.base import (
    ASSIGNED,
    Columns,
    Device,
    Exclude,
    Flag,
    Given,
    Grey,
    Key,
    Kinds,
    Size,
    SkipDamaged,
    app,
    first_process,
    number,
    on_terminal,
    print_json,
    quoted,
    repeated,
    show_pairs,
    source_options,
    tell,
    with_flags,
)

if TYPE_CHECKING:
    from gpin.data import DataSet, Source
    from gpin.runs import Run, RunSettings
    from gpin.training import History, TrainingConfig
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
    steps: int | None = None,
    max_time: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    out: Path = Path("runs"),
    set_: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    config: Path | None = None,
    seed: int | None = None,
    columns: Columns = None,
    exclude: Exclude = None,
    kinds: Kinds = None,
    key: Key = None,
    size: Size = None,
    grey: Grey = None,
    skip_damaged: SkipDamaged = None,
    given: Given = None,
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
    at any time and resume it with the same result. With more epochs or steps and otherwise the same options, a
    finished run goes on in a new folder.

    Unless you give a number of epochs, the batch size, the learning rate and a budget of steps are chosen by the size
    of the data, and training stops when the validation score no longer improves.

    Parameters
    ----------
    data
        A data set's name (`gpin data list`) or a path: .npy, .npz, .csv, .parquet, or a folder of pictures.
    method
        The inference model, see `gpin methods`. [default: gp]
    latent_dim
        The number of latent dimensions. [default: 10]
    epochs
        The number of passes through the training data, in batches of 128 at a learning rate of 5e-4 unless set
        otherwise. [default: chosen by the size of the data]
    steps
        The largest number of steps, instead of a number of epochs; it is rounded up to whole epochs. It goes on with a
        run that was trained with neither.
    max_time
        Stop after this time, such as 30m, 90s or 1h30m; the same command resumes the run.
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
    scaling
        How the data is scaled for the model; auto decides by its values. [default: auto]
    start
        A run or a saved model to start from: one of the same method and options, or, for methods that build on the
        encoder of a VAE (gp, natural, rme), one of method vae.
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

    wrong = next((text for text in more if "=" not in text), None)
    if wrong is not None:
        raise InputError(
            f"unexpected {wrong!r}: gpin train takes one data set; options begin with dashes, such as --epochs"
        )
    if steps is not None and steps < 1:
        raise InputError(f"`steps` must be a positive whole number, got {steps}")
    flags = {
        "method": method,
        "latent_dim": latent_dim,
        "epochs": epochs,
        "training.steps": steps,
        "seed": seed,
        "scaling": scaling,
    }
    chosen = {name: value for name, value in flags.items() if value is not None}
    settings = run_settings(
        chosen | source_options(columns, key, size, grey, skip_damaged, given, exclude, kinds),
        assignments=[*(set_ or []), *more],
        base=None if config is None else read_settings(config, started=start is not None),
    )
    seconds = None if max_time is None else seconds_of(max_time)
    beginning = Beginning(settings, always=True)
    with beginning.interruptible():
        run, _, history = train_run(
            data,
            settings,
            out=out,
            start=start,
            device=device,
            max_time=seconds,
            checkpoint_seconds=checkpoint_seconds,
            tensorboard=tensorboard,
            log=log,
            on_start=beginning,
            tell=beginning.tell,
        )
    if first_process() and json:
        print_json(_record(run, history, beginning))
    elif first_process():
        _show(run, history, beginning)


def seconds_of(duration: str) -> float:
    """A duration as a user types it, in seconds.

    Example:
        >>> seconds_of("30m"), seconds_of("1h30m"), seconds_of("90s")
        (1800.0, 5400.0, 90.0)
    """
    found = re.fullmatch(r"(?:(\d+\.?\d*)h)?(?:(\d+\.?\d*)m)?(?:(\d+\.?\d*)s)?", duration.strip().lower())
    parts = ("0", "0", "0") if found is None else found.groups("0")
    seconds = sum(float(part) * unit for part, unit in zip(parts, (3600.0, 60.0, 1.0), strict=True))
    if not seconds > 0:
        raise InputError(f"`max_time` must be a positive time with a unit, such as 30m, 90s or 1h30m, got {duration!r}")
    return seconds


def hint_for_option(flag: str) -> str | None:
    """What to type instead of an unknown flag that is an option of training, without dashes or by another name."""
    name = flag.lstrip("-").replace("-", "_")
    name = MEANT.get(name, name)
    if name not in ASSIGNED:
        return None
    return f"there is no option {flag}: use --set {name}=…"


class Beginning:
    """Records the state of a run when training begins, and says on stderr what was understood.

    Arguments:
        asked: The settings before any option was chosen by the size of the data.
        always: Whether to say what was understood even if stderr is not a terminal.
    """

    def __init__(self, asked: "RunSettings | None" = None, always: bool = False) -> None:
        self.asked, self.always = asked, always
        self.batches = 0
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
        from gpin.data import Batches
        from gpin.data.remarks import remarks
        from gpin.runs.understood import understood
        from gpin.training.cost import expected_seconds

        self.folder, training = run.folder, run.settings.training
        self.batches = len(Batches(data.train, training.batch_size))
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
        for sentence in remarks(data.source, data.scaling):
            tell(sentence)
        if self.always or on_terminal():
            seconds = expected_seconds(vae, data.train, data.validation, training)
            left = 1 - (record.get("epoch", 1) - 1) / training.epochs
            chosen = self.asked is not None and "epochs" in self.asked.training.auto
            lines = understood(run, data, vae, left * seconds, chosen)
            self.understood = [(name, with_flags(value)) for name, value in lines]
            show_pairs(self.understood, sys.stderr)
        if self.state == "new" and self.asked is not None:
            self._tell_of_almost(run, data, vae, self.asked.training)
        if self.state == "resumed":
            where = f"{min(record['epoch'], training.epochs)} of {training.epochs}"
            print(f"resuming at epoch {where}: {run.folder}", file=sys.stderr)

    def tell(self, sentence: str) -> None:
        """Print a remark of the library, in which Python's `gpin.improve` becomes the command for this run."""
        tell(
            sentence.replace("`gpin.improve`", f"gpin improve {'RUN' if self.folder is None else quoted(self.folder)}")
        )

    def _tell_of_almost(self, run: "Run", data: "DataSet", vae: "VAE", asked: "TrainingConfig") -> None:
        """Say which command would go on with a run that differs in defaults of training only, if there is one."""
        from gpin.runs.going_on import almost

        found = almost(run, vae, asked, len(data.train))
        if found is None:
            return
        known, options = found
        there = [_assignment(name, value) for name, value in options.items()]
        here = [_assignment(name, getattr(run.settings.training, name)) for name in options]
        tell(
            f"this run starts afresh with {', '.join(here)}, because {known.folder} was trained with "
            f"{', '.join(there)}; to go on with that one: {repeated(without=(), set=there)}"
        )

    def longer(self, run: "Run", history: "History") -> str | None:
        """The command that goes on with a finished training.

        It is for twice as many epochs or steps if the best epoch is the last one, and for twice the patience if
        training stopped early.
        """
        epochs, patience = len(history.epochs), run.settings.training.patience
        if self.asked is None or history.paused or history.stopped or not history.best:
            return None
        if _impatient(run, history):
            return repeated(without=("patience",), set=f"patience={2 * (patience or 1)}")
        if history.best < epochs:
            return None
        in_steps = "epochs" in self.asked.training.auto
        longer = {"steps": 2 * epochs * self.batches} if in_steps else {"epochs": 2 * epochs}
        # In some methods, steps=2 is an option of the method, and not of training.
        own = () if "steps" in run.model.options else ("steps",)
        return repeated(without=("--epochs", "--steps", "epochs", "training.steps", *own), **longer)


def _assignment(name: str, value: Any) -> str:
    """An option as one would type it."""
    return f"{name}={'none' if value is None else value}"


def _has_no_header(source: "Source") -> bool:
    """Whether a text table has columns without names, none of which was chosen by number."""
    numbers = tuple(str(i + 1) for i in range(len(source.columns or ())))
    text = Path(source.location).suffix.lower() in (".csv", ".tsv", ".txt")
    return text and source.columns == numbers and source.config.columns is None


def _show(run: "Run", history: "History", beginning: Beginning) -> None:
    if history.paused:
        done = f"{len(history.epochs)} of {run.settings.training.epochs} epochs"
        print(f"stopped after {done} because time is up: {run.folder}")
        over = _has_diverged(history)
        advice = f", but the validation score has not risen since epoch {history.best}: other settings may help more"
        print(f"the same command resumes it{advice if over else ''}")
    else:
        print(f"{'already done' if beginning.state == 'done' else 'done'}: {run.folder}")
    if not history.best:
        return
    score = history.scores[history.best - 1]
    said = "" if score is None else f" by its validation score of {number(score)} nats"
    print(f"best epoch {history.best} of {len(history.epochs)}{said}, validation ELBO {number(_best(history))} nats")
    print(f"{'this is a lower bound' if score is None else 'both are lower bounds'} of log p(x), mean over instances")
    if (command := beginning.longer(run, history)) is not None:
        patience = run.settings.training.patience
        epochs = "1 epoch" if patience == 1 else f"{patience} epochs"
        waited = f"training stopped early, after {epochs} without a better one"
        why = waited if _impatient(run, history) else "the best epoch is the last one, so more training may help"
        print(f"{why}; to go on: {command}")
    if sys.stdout.isatty() and not history.paused:
        print(f"next: gpin evaluate {quoted(run.folder)}")


def _has_diverged(history: "History") -> bool:
    """Whether training and validation have diverged since the best epoch."""
    from gpin.training.validation import warning_of_overfitting

    later = range(history.best + 1, len(history.epochs) + 1)
    return any(warning_of_overfitting(history.epochs[:count]) is not None for count in later)


def _record(run: "Run", history: "History", beginning: Beginning) -> dict[str, Any]:
    return {
        "run": str(run.folder),
        "began": beginning.state,
        "epochs": len(history.epochs),
        "best_epoch": history.best,
        "validation_elbo": _best(history) if history.best else None,
        "validation_score": history.scores[history.best - 1] if history.best else None,
        "finished": not history.paused,
        "training": run.settings.training.model_dump(mode="json"),
        "continue": beginning.longer(run, history),
        "seconds": history.seconds,
        "data": run.location,
        "shape": list(run.model.shape),
        "scaling": run.scaling.kind,
        "method": run.model.method,
        "skipped": [name for name, _ in run.skipped],
        "understood": dict(beginning.understood),
    }


def _impatient(run: "Run", history: "History") -> bool:
    """Whether training stopped before all epochs because the validation score no longer improved."""
    training, epochs = run.settings.training, len(history.epochs)
    return training.patience is not None and history.best + training.patience <= epochs < training.epochs


def _best(history: "History") -> float:
    return history.validation[history.best - 1]
