"""What was understood of the data, the model and the training of a run, in short lines for people."""

import math

import numpy as np

from gpin.data import DataSet, Source, channel_axis
from gpin.report.numbers import duration, number
from gpin.runs.folder import Run
from gpin.vae import VAE

__all__ = ["counted_instances", "skipped_files", "understood"]

Lines = list[tuple[str, str]]
"""Pairs of a name and a value, to be shown one below the other."""

MOST = 4
"""The largest number of columns, channels or sizes that are listed."""
ALIKE = 100
"""The number of instances that are compared with each other."""
SKIPPED = 10
"""The largest number of skipped files that are listed."""


def counted_instances(data: DataSet, counts: str) -> str:
    """Numbers of instances and what each of them is: "80 rows of 5 columns", or "80 instances of 1×8×8"."""
    if data.source.kind != "table":
        return f"{counts} instances of {'×'.join(map(str, data.shape))}"
    columns = len(data.scaling.columns) or data.shape[0]
    return f"{counts} rows of {columns:,} column{'' if columns == 1 else 's'}"


def understood(run: Run, data: DataSet, vae: VAE, seconds: float | None = None, chosen: bool = False) -> Lines:
    """What was understood before training.

    Arguments:
        run: The run.
        data: Its data.
        vae: Its model.
        seconds: The expected time of the training that is left, if it is known.
        chosen: Whether options of training were chosen by the size of the data.
    """
    return [
        ("data", _counts(data)),
        *_alike(data),
        *_shape(data),
        *_given(data),
        *([("missing", _missing(data))] if data.scaling.missing else []),
        ("scaling", _scaling(data)),
        ("model", _model(run, vae)),
        ("likelihood", vae.likelihood.title),
        ("training", _training(run, data) + ("; chosen by the size of the data" if chosen else "")),
        *([] if seconds is None else [("time", _time(seconds, _stops_early(run)))]),
    ]


def skipped_files(source: Source) -> str | None:
    """A sentence that lists the files of a folder that are left out; None if there are none."""
    skipped = () if source.survey is None else source.survey.skipped
    if not skipped:
        return None
    what = "1 file is" if len(skipped) == 1 else f"{len(skipped):,} files are"
    named = "; ".join(f"{name} {reason}" for name, reason in skipped[:SKIPPED])
    more = f"; and {len(skipped) - SKIPPED:,} more" if len(skipped) > SKIPPED else ""
    return f"{what} left out of {source.location}: {named}{more}"


def _counts(data: DataSet) -> str:
    noun = "rows" if data.source.kind == "table" else "pictures" if data.source.names else "images"
    noun = "series" if _is_series(data) else noun
    parts = f"{len(data.train):,} {noun} for training, {len(data.validation):,} for validation, {len(data.test):,} for "
    return f"{data.source.name}: {parts}testing"


def _alike(data: DataSet) -> Lines:
    """A warning if there is nothing to learn."""
    x = data.train[:ALIKE]
    if len(x) == 1 or not bool((x == x[:1]).all()):
        return []
    which = "all" if len(x) == len(data.train) else f"the first {ALIKE:,}"
    return [("warning", f"{which} instances for training are the same: is this the right data?")]


def _is_series(data: DataSet) -> bool:
    return data.scaling.axis in (1, 2)


# The data --------------------------------------------------------------------------------------------


def _shape(data: DataSet) -> Lines:
    source, shape = data.source, "×".join(map(str, data.shape))
    if data.scaling.columns:
        return [("columns", f"{len(data.scaling.columns):,}"), *_kinds(data)]
    if source.kind == "table":
        return [("columns", f"{data.shape[0]:,}{'' if source.columns is None else ': ' + _listed(source.columns, 12)}")]
    if _is_series(data):
        axis = channel_axis(data.shape)
        assert axis is not None
        length = math.prod(data.shape) // data.shape[axis]
        return [("shape", f"{data.shape[axis]} channels of length {length:,}, read as images of {shape} pixels")]
    lines = [("shape", f"{shape} (channels×height×width)")]
    if source.survey is not None:
        lines += [("colours", _colours(source)), ("sizes", _sizes(source))]
        lines += [("depth", _depth(source))] if source.survey.deep else []
        lines += [("transparent", _transparent(source))] if source.survey.transparent else []
        lines += [("ignored", _ignored(source.survey.ignored))] if source.survey.ignored else []
    return lines


def _given(data: DataSet) -> Lines:
    """What the model is conditional on, and as what it is taken: labels or numbers."""
    if data.condition is None:
        return []
    said = []
    for column in data.condition.columns:
        if column.levels is None:
            about = f"{number(column.mean, column.deviation)} ± {number(column.deviation, column.deviation)}"
        else:
            about = f"{len(column.levels):,} labels, {_listed(list(map(str, column.levels)), MOST)}"
        said.append(f"{column.name} ({about})")
    return [("given", ", ".join(said))]


def _kinds(data: DataSet) -> Lines:
    """The columns of each kind."""
    pairs = list(zip(data.source.columns or (), data.scaling.columns, strict=True))
    lines = []
    for kind in dict.fromkeys(column.kind for _, column in pairs):
        own = [
            f"{name} ({_listed(column.levels, 3)})" if column.levels else name
            for name, column in pairs
            if column.kind == kind
        ]
        lines.append((f"· {kind}", _listed(own, 12)))
    return [*lines, ("", "`kinds` corrects them, as in `kinds=column=gaussian`")]


def _missing(data: DataSet) -> str:
    values, columns = data.source.values, data.source.columns
    gone = np.isnan(values)
    share = f"{gone.sum():,} of {values.size:,} values ({100 * gone.mean():.1f} %) are not known"
    if columns is None or values.ndim != 2:
        return share
    named = [f"{name} ({count:,})" for name, count in zip(columns, gone.sum(0), strict=True) if count]
    return f"{share}, in {_listed(named, MOST)}"


def _colours(source: Source) -> str:
    """The number of channels and the reason."""
    assert source.survey is not None
    count, coloured = len(source.values), source.survey.coloured
    grey = count - len(coloured)
    if not coloured:
        return "all pictures are grey"
    are = "is" if len(coloured) == 1 else "are"
    some = f"{len(coloured):,} of {count:,} pictures {are}"
    if source.values.shape[1] == 1:
        return f"{some} coloured and {are} read in grey"
    if not source.survey.colours:
        return f"{some} stored in colour, but all have only shades of grey; `grey` reads them with one channel"
    if not grey:
        return "all pictures are coloured"
    named = _listed(coloured, 2)
    return f"{some} coloured ({named}), so the {grey:,} grey ones have three channels, too; `grey` reads all in grey"


def _sizes(source: Source) -> str:
    assert source.survey is not None
    sizes, (height, width) = source.survey.sizes, source.values.shape[2:]
    said = _listed([f"{times:,} of {high}×{wide}" for (high, wide), times in sizes], MOST)
    cut = any(high * width != wide * height for (high, wide), _ in sizes)
    resized = f"resized to {height}×{width}" + (" and cropped at the centre" if cut else "")
    if len(sizes) > 1:
        return f"{len(sizes):,} sizes ({said}; height×width), {resized}"
    kept = sizes[0][0] == (height, width)
    found = f"all pictures have {sizes[0][0][0]}×{sizes[0][0][1]} pixels (height×width)"
    return found if kept else f"{found}, {resized}"


def _depth(source: Source) -> str:
    """What is lost of pictures with 16 bits."""
    assert source.survey is not None
    said = f"{source.survey.deep:,} of {len(source.values):,} pictures have 16 bits per pixel, reduced to 8"
    highest = int(source.values.max())
    if highest >= 128:
        return said
    return f"{said}, of which only the values 0 to {highest} are used: one .npy array of all pictures keeps the others"


def _transparent(source: Source) -> str:
    assert source.survey is not None
    count, every = source.survey.transparent, len(source.values)
    return f"{count:,} of {every:,} pictures can be transparent; transparent parts are read as black"


def _ignored(names: tuple[str, ...]) -> str:
    what = "1 file that is not a picture" if len(names) == 1 else f"{len(names):,} files that are not pictures"
    return f"{what} ({_listed(names, 3)})"


def _scaling(data: DataSet) -> str:
    scaling = data.scaling
    if scaling.kind == "pixels":
        return "pixels: 0 to 255 become 0 to 1"
    if scaling.kind == "binary":
        return "none: every value is 0 or 1"
    if scaling.kind == "none":
        return "none: the values are used as they are"
    if scaling.kind == "columns":
        return "by the kind of each column, see above"
    pairs = zip(scaling.offset, scaling.scale, strict=True)
    moments = [f"{number(mean, scale)} ± {number(scale, scale)}" for mean, scale in pairs]
    if len(data.shape) == 3 and scaling.axis is None:
        return f"standardised: {moments[0]} (mean ± standard deviation of all values) becomes 0 ± 1"
    columns = data.source.columns
    noun = "channel" if len(data.shape) == 3 else "column"
    if columns is not None:
        moments = [f"{name} {said}" for name, said in zip(columns, moments, strict=True)]
    return f"standardised per {noun}, from mean ± standard deviation to 0 ± 1: {_listed(moments, MOST)}"


def _listed(names: list[str] | tuple[str, ...], most: int) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


# The model and the training --------------------------------------------------------------------------


def _model(run: Run, vae: VAE) -> str:
    model = run.model
    dims = f"{model.latent_dim} latent dimension" + ("s" if model.latent_dim > 1 else "")
    size = sum(p.numel() for p in vae.parameters())
    return f"method {model.method}, {dims}, {model.architecture.kind} networks, {size:,} parameters"


def _training(run: Run, data: DataSet) -> str:
    config = run.settings.training
    steps = math.ceil(len(data.train) / config.batch_size)
    epochs = f"{config.epochs:,} epoch{'s' if config.epochs > 1 else ''} of {steps:,} step{'s' if steps > 1 else ''}"
    most = "at most " if _stops_early(run) else ""
    said = f"{most}{epochs} each, with batches of {config.batch_size:,} and a learning rate of {config.learning_rate:g}"
    if _stops_early(run):
        said += f"; it stops after {config.patience:,} epochs without a better validation score"
    return said


def _stops_early(run: Run) -> bool:
    config = run.settings.training
    return config.patience is not None and config.patience < config.epochs


def _time(seconds: float, most: bool) -> str:
    said = "less than a second" if seconds < 1 else f"{'at most' if most else 'about'} {duration(seconds)}"
    return f"{said}, estimated from a few steps"
