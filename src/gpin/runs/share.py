"""A run's model as a folder to share: weights, config, scaling and a model card, without paths of this machine."""

import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from gpin._core.errors import InputError
from gpin._core.files import as_path, make_folder, write_whole
from gpin._core.messages import Tell, to_stderr
from gpin.data import BENCHMARKS, DataSet
from gpin.inference import METHODS
from gpin.report.numbers import plus_minus
from gpin.runs.evaluate import Evaluation, evaluate
from gpin.runs.folder import Run, as_run
from gpin.runs.rows import random_rows
from gpin.training import History
from gpin.vae import VAE

__all__ = ["Shared", "share_run"]

LIMIT = 1000
"""The number of test instances, chosen at random, that are scored for the model card."""
NAMED = 20
"""The largest number of columns that the model card names."""


@dataclass(frozen=True)
class Shared:
    """A folder that was written.

    Attributes:
        path: The folder.
        files: The names of its files.
        evaluation: The scores in its model card; None if the data could not be read.
    """

    path: Path
    files: tuple[str, ...]
    evaluation: Evaluation | None


def share_run(
    run: Run | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    samples: int | None = None,
    tell: Tell = to_stderr,
) -> Shared:
    """Write a run's model to a new folder, ready to be given to others, as `gpin export` does on request.

    `gpin.load` and `gpin.open_run` read the folder. It contains `config.json`, `model.safetensors`, if there is one
    `calibration.safetensors`, `run.json` with the scaling and the columns of the data but without their path, and
    `README.md`, a model card with a score on at most 1,000 test instances. No file contains executable code or data.

    Arguments:
        run: The run, or its folder.
        out: The folder to write, which must be empty or not exist.
        samples: The number of importance samples per instance for the score, 100 by default.
        tell: Called with each message for the user.
    """
    run, out = as_run(run), as_path(out, "the folder to write")
    if out.exists() and not out.is_dir():
        raise InputError(f"cannot write a model to {out}: it is a file, and a folder is needed")
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"cannot write a model to {out}: the folder is not empty; choose another one")
    vae = run.load(tell)
    make_folder(out.absolute().parent, tell)
    evaluation = data = None
    try:
        data = run.data()
    except InputError as error:
        tell(f"{error}; the model card has no score")
    else:
        rows = random_rows(data.test, LIMIT)
        evaluation = evaluate(vae, rows, samples=samples, log_volume=run.log_volume)
    card = model_card(run, vae, out.absolute().name, data, evaluation, run.history(tell)[0])
    # The folder appears with all its files or not at all.
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent))
    try:
        vae.save(beside)
        name = run.location if run.location in BENCHMARKS else Path(run.location).name
        replace(run, folder=beside, location=name, skipped=()).write()
        write_whole(beside / "README.md", card.encode())
        beside.chmod(0o755)
        os.replace(beside, out)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return Shared(out, tuple(sorted(path.name for path in out.iterdir())), evaluation)


def model_card(
    run: Run, vae: VAE, name: str, data: DataSet | None, evaluation: Evaluation | None, history: History
) -> str:
    """A model card in Markdown, with the metadata that model hubs read; what only the user knows is left open."""
    model, training = run.model, run.settings.training
    columns = run.scaling.columns  # of different kinds, which may take several values of x each
    own = (len(columns),) if columns else model.shape
    shape, input_shape = "×".join(map(str, own)), ", ".join(map(str, ("batch", *own)))
    text = "; text as the number of its level" if any(column.levels for column in columns) else ""
    location = run.location if run.location in BENCHMARKS else Path(run.location).name
    sizes = "" if data is None else f", {len(data.train):,} for training, {len(data.validation):,} for validation"
    method = METHODS.get(model.method)
    rows = [("data", f"{location}: instances of {shape}{sizes}")]
    if run.columns is not None:
        named = ", ".join(run.columns[:NAMED])
        rows += [("columns", named if len(run.columns) <= NAMED else f"{named} and {len(run.columns) - NAMED} more")]
    given = "" if model.condition is None else ", y=y"
    if model.condition is not None:
        rows += [("conditional on", str(model.condition))]
    rows += [
        ("scaling", {"none": "not scaled"}.get(run.scaling.kind, run.scaling.kind)),
        ("method", f"`{model.method}`" + (f": {method.title}, {method.reference}" if method else "")),
        ("likelihood", vae.likelihood.name),
        ("latent dimensions", str(model.latent_dim)),
        ("parameters", f"{sum(p.numel() for p in vae.parameters()):,}"),
    ]
    if history.epochs:
        rows += [("training", f"epoch {history.best} of {len(history.epochs)}, the best on validation data")]
    rows += [("batch size, learning rate", f"{training.batch_size}, {training.learning_rate:g}")]
    table = "\n".join(f"| {key} | {value.replace('|', '/')} |" for key, value in rows)
    return f"""---
library_name: gpin
tags: [variational-autoencoder, representation-learning, density-estimation]
# license: choose one, such as mit, and remove the hash
---
# {name}

A variational autoencoder, trained with gpin {version("gpin")}.

| | |
|---|---|
{table}

## Score
{_score(evaluation)}

## Use
```python
import gpin

run = gpin.open_run("{name}")
vae = run.load()
q = vae.encode(run.scaling.apply(values){given})  # values in the units of the data, ({input_shape}){text}
again = run.scaling.undo(vae.decode(q.mean{given}))
```

The commands of gpin take this folder as a run: `gpin encode {name} DATA -o codes.parquet`,
`gpin sample {name} -o samples.{_ending(run)}`.

## To be filled in
- Where the data come from, and under which licence.
- What the model is for, and what it should not be used for.
- The licence of the model.
"""


def _score(evaluation: Evaluation | None) -> str:
    """The test log-likelihood in words, with what limits it."""
    if evaluation is None:
        return "None was computed: the data could not be read."
    found = evaluation.log_likelihood
    value = plus_minus(found.mean, found.stderr)
    kind = "at least " if found.lower_bound else ""
    sentences = [
        f"The log-likelihood is {kind}{value} nats on {len(found.values):,} test instances, mean ± standard error, by "
        f"importance sampling with {found.samples} samples per instance; that is {evaluation.bits_per_dim:.3f} bits "
        "per dimension in the units of the data.",
        "The nats are in the units of the scaled data: compare them only with those of models of the same data, scaled "
        "in the same way.",
    ]
    if evaluation.caution:
        sentences.append(f"Caution: {evaluation.caution.rstrip('.')}.")
    return " ".join(sentences)


def _ending(run: Run) -> str:
    return "png" if len(run.model.shape) == 3 else "csv"
