"""How several runs differ: whether they can be compared, their names, and their settings side by side."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpin._core.errors import InputError
from gpin._core.files import read_record
from gpin.data import DataConfig
from gpin.runs.folder import FORMAT, VERSION, Run, versions

__all__ = ["differing", "flat_settings", "refuse_other_data", "short_names", "surroundings"]


def refuse_other_data(runs: Sequence[Run]) -> None:
    """Raise InputError unless all runs were trained on the same data, read, scaled and split in the same way."""
    first = runs[0]
    for other in runs[1:]:
        both = f"{first.folder} and {other.folder}"
        if other.model.condition != first.model.condition:
            raise InputError(f"{both} are not conditional on the same: make one page for each")
        if other.fingerprint != first.fingerprint:
            raise InputError(f"{both} were trained on different data: make one page for each data set")
        if other.settings.data != first.settings.data:
            a, b = (_flat(run.settings.data.model_dump(mode="json")) for run in (first, other))
            name = next(key for key in {**a, **b} if a.get(key) != b.get(key))
            option = {"seed": "split_seed"}.get(name, name.removeprefix("source."))
            raise InputError(
                f"{both} read, scaled or split the same data differently ({option} is {_text(a.get(name))} and "
                f"{_text(b.get(name))}), so their numbers cannot be compared: make one page for each"
            )


def short_names(runs: Sequence[Run]) -> list[str]:
    """A name for each run: its method, its data if they differ, and what distinguishes it from others of that name."""
    names = [run.model.method for run in runs]
    if len({run.fingerprint for run in runs}) > 1:
        names = [f"{name}, {data}" for name, data in zip(names, _data_names(runs), strict=True)]
    for common in dict.fromkeys(names):
        group = [i for i, name in enumerate(names) if name == common]
        if len(group) > 1:
            for i, name in zip(group, _distinct_names(common, [runs[i] for i in group]), strict=True):
                names[i] = name
    return names


def _data_names(runs: Sequence[Run]) -> list[str]:
    """The names of the runs' data, with the endings of files only if it takes them to tell the data apart."""
    files = [Path(run.location).name or run.location for run in runs]
    stems = [Path(name).stem for name in files]
    return stems if len(set(stems)) == len(set(files)) else files


MOST_LETTERS = 20
"""The largest number of letters of a setting's value that is part of a name."""


def _distinct_names(common: str, runs: Sequence[Run]) -> list[str]:
    """Names with as few settings as needed: a setting is added only if it is short and distinguishes more runs."""
    settings = [flat_settings(run) for run in runs]
    names, distinct = [common] * len(runs), 1
    short = (key for key in differing(settings) if all(len(own.get(key, "")) <= MOST_LETTERS for own in settings))
    for key in short:
        longer = [f"{name}, {key} {own.get(key, '—')}" for name, own in zip(names, settings, strict=True)]
        if len(set(longer)) > distinct:
            names, distinct = longer, len(set(longer))
    if distinct == len(runs):
        return names
    folders = [run.folder.resolve().name for run in runs]
    marks = folders if len(set(folders)) == len(runs) else [str(i + 1) for i in range(len(runs))]
    return [f"{name}, {mark}" for name, mark in zip(names, marks, strict=True)]


def flat_settings(run: Run) -> dict[str, str]:
    """The settings of model and training, with every option resolved, as text by their names in `key=value`."""
    model = run.model
    likelihood = model.likelihood.model_dump(mode="json")
    training = run.settings.training.model_dump()
    seed = training.pop("seed")
    found = {
        "method": model.method,
        "latent_dim": model.latent_dim,
        **model.options,
        **{"likelihood" if k == "kind" else f"likelihood.{k}": v for k, v in likelihood.items()},
        **{f"architecture.{name}": value for name, value in model.architecture.model_dump(mode="json").items()},
        **training,
        "start": None if run.start is None else f"weights {run.start[:8]}",
        "seed": seed,
    }
    return {name: _text(value) for name, value in found.items()}


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The names of the settings that have different values in the runs that have them, in order.

    Example:
        >>> differing([{"method": "gp", "covariance": "full", "seed": "0"}, {"method": "vae", "seed": "0"}])
        ['method']
    """
    names = dict.fromkeys(name for own in settings for name in own)
    return [name for name in names if len({own[name] for own in settings if name in own}) > 1]


def data_settings(config: DataConfig) -> dict[str, str]:
    """The settings of the data as text, without those that are not set."""
    found = _flat(config.model_dump(mode="json"))
    found["split_seed"] = found.pop("seed")
    return {
        name.removeprefix("source."): _text(value)
        for name, value in found.items()
        if value is not None and value is not False
    }


def surroundings(folder: Path) -> dict[str, str]:
    """The versions and machine in the run's `environment.json`; empty if it cannot be read."""
    try:
        record = read_record(folder / "environment.json", FORMAT, VERSION, "a run's environment")
    except (InputError, OSError):
        return {}
    known = [f"{name} {record[name]}" for name in versions() if name in record]
    machine = [str(record[name]) for name in ("system", "machine", "device") if name in record]
    count = record.get("threads")
    threads = [] if count is None else [f"{count} thread{'' if count == 1 else 's'}"]
    return {"versions": ", ".join(known), "machine": ", ".join(machine + threads)}


def _flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in record.items():
        found.update(_flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {before + name: value})
    return found


def _text(value: Any) -> str:
    """A value as one would type it.

    Example:
        >>> _text(None), _text(0.0005), _text("full"), _text(True), _text([32, 64])
        ('none', '0.0005', 'full', 'true', '[32, 64]')
    """
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
