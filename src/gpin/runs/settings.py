"""The settings of a run: data, model and training, from options, `key=value` texts and JSON files."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from gpin._core.config import Config, json_or_text, suggest
from gpin._core.errors import InputError
from gpin._core.messages import MEANT
from gpin.data import DataConfig, SourceConfig
from gpin.data.columns import KINDS
from gpin.inference import method_named
from gpin.likelihoods import LIKELIHOODS, as_likelihood_config
from gpin.networks import ARCHITECTURES, architecture_named
from gpin.training import TrainingConfig
from gpin.training.settings import AUTO, CHOSEN

__all__ = [
    "ModelSettings",
    "RunSettings",
    "column_kinds",
    "column_list",
    "height_and_width",
    "read_settings",
    "run_settings",
    "values_by_key",
]


class ModelSettings(Config):
    """The settings of the model.

    Arguments:
        method: The inference model.
        latent_dim: d, the number of latent dimensions.
        options: The options of the method.
        likelihood: Options of p(x|z), including its `kind`; by default Bernoulli for binary data, mixed for a table
            with columns of different kinds, otherwise Gaussian.
        architecture: Options that override the default architecture for the shape of the data, or, with a `kind`, the
            defaults of that architecture.
    """

    method: str = "gp"
    latent_dim: int = Field(default=10, ge=1, strict=True)
    options: dict[str, Any] = Field(default_factory=dict)
    likelihood: dict[str, Any] | None = None
    architecture: dict[str, Any] = Field(default_factory=dict)

    @property
    def mixed(self) -> bool:
        """Whether columns of a table may be of different kinds."""
        return not self.likelihood or self.likelihood.get("kind") == "mixed"

    def check(self) -> None:
        """Raise InputError for an unknown method, likelihood or architecture, or unknown options of the first two.

        This needs no data.
        """
        method_named(self.method).Options.parse(self.options, f"method {self.method!r}")
        as_likelihood_config(self.likelihood or {})
        if "kind" in self.architecture:
            architecture_named(self.architecture["kind"])


class RunSettings(Config):
    """All settings of a run; together with the data they determine the result exactly."""

    data: DataConfig = DataConfig()
    model: ModelSettings = ModelSettings()
    training: TrainingConfig = TrainingConfig()


def read_settings(path: Path, started: bool = False) -> dict[str, Any]:
    """Settings from a JSON file: all or some of those of a `RunSettings`, or a run's own `run.json`.

    Arguments:
        path: The file.
        started: Whether the weights to start from are given; a run that had a start cannot be repeated without them.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise InputError(f"{path} cannot be read as settings: {reason}") from None
    if isinstance(content, dict) and content.get("format") == "gpin-run":
        if content.get("start") is not None and not started:
            raise InputError(f"{path} belongs to a run that started from a trained model: give that model as `start`")
        content = content.get("settings")
    parts: dict[str, type[Config]] = {"data": DataConfig, "model": ModelSettings, "training": TrainingConfig}
    if not isinstance(content, dict) or not all(isinstance(part, dict) for part in content.values()):
        raise InputError(f"{path} must contain settings as a JSON object with the parts {', '.join(parts)}")
    for name, part in content.items():
        if name not in parts:
            raise InputError(f"{path} has an unknown part {name!r}: {suggest(name, list(parts))}")
        parts[name].parse(part, f"{name!r} in {path}")
    return content


def run_settings(
    options: Mapping[str, Any] | None = None,
    *,
    assignments: Iterable[str] = (),
    base: Mapping[str, Any] | None = None,
) -> RunSettings:
    """Settings from options by key, as those of `gpin train`.

    Unless the number of epochs is given, the options of training that can be chosen by the size of the data are "auto",
    see `gpin.training.TrainingConfig.resolved`.

    A key is an option of training, of the data or of the method; `method`, `latent_dim`; `likelihood`,
    `likelihood.variance`, `architecture`, `architecture.width`; `split_seed`, the seed of the split. `steps` is the
    option of the method if it has one, such as natural; `training.steps` is always the number of training steps.

    Arguments:
        options: Values by key.
        assignments: Further options as text, `key=value`; values are parsed as JSON if possible, otherwise as text.
        base: The settings to override: all or some of those of a `RunSettings`, see `read_settings`.

    Example:
        >>> settings = run_settings({"covariance": "full", "epochs": 20}, assignments=["likelihood.variance=analytic"])
        >>> settings.model.options, settings.training.epochs, settings.model.likelihood
        ({'covariance': 'full'}, 20, {'variance': 'analytic'})
    """
    content: dict[str, Any] = json.loads(json.dumps(base or {}))
    pairs = values_by_key(options or {}, assignments)
    for key in ("method", "latent_dim", "likelihood", "architecture"):
        if key in pairs:
            _put(content, ("model", key), pairs.pop(key))
    method = method_named(content.get("model", {}).get("method", "gp"))
    places = _places(list(method.Options.model_fields) + (["preset"] if method.Options.presets else []))
    budgets = {places[key][-1] for key, value in pairs.items() if value is not None and places.get(key) in BUDGETS}
    if len(budgets) > 1:
        raise InputError("`epochs` and `steps` are two ways to say how long to train: give only one of them")
    for _, other in BUDGETS:
        if budgets and other not in budgets:
            content.get("training", {}).pop(other, None)
    for key, value in pairs.items():
        if key not in places:
            hint = f"did you mean {MEANT[key]!r}?" if key in MEANT else suggest(key, list(places))
            raise InputError(f"there is no option {key!r} for method {method.name!r}: {hint}")
        _put(content, places[key], value)
    for name in CHOSEN if "epochs" not in content.get("training", {}) else ():
        content.setdefault("training", {}).setdefault(name, AUTO)
    return RunSettings.parse(content, "the run")


def values_by_key(options: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """The values of options, and of further ones as text, `key=value`; raises InputError if a key is given twice."""
    pairs: dict[str, Any] = {}
    given: dict[str, str] = {}
    texts = [(f"`{name}`", _kind_of(name, value)) for name, value in options.items()]
    for text, (key, value) in [*texts, *((text, _pair(text)) for text in assignments)]:
        if key in pairs:
            raise InputError(f"{key!r} is given twice, as {given[key]} and as {text}: leave one of them out")
        pairs[key], given[key] = value, text
    return pairs


def column_list(text: str) -> list[str]:
    """Names of columns as a user types them, in quotes where they contain commas.

    Example:
        >>> column_list('a, "b, c"')
        ['a', 'b, c']
    """
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [""])]


def column_kinds(text: str) -> dict[str, str]:
    """Kinds of columns as a user types them.

    Example:
        >>> column_kinds("age=gaussian, visits=poisson")
        {'age': 'gaussian', 'visits': 'poisson'}
    """
    found: dict[str, str] = {}
    for part in column_list(text):
        name, sign, kind = (piece.strip() for piece in part.rpartition("="))
        if not sign or kind not in KINDS:
            known = suggest(kind, list(KINDS)) if sign else "expected column=kind, such as age=gaussian"
            raise InputError(f"`kinds` has {part!r}: {known}")
        if name in found:
            raise InputError(f"`kinds` names column {name!r} twice")
        found[name] = kind
    return found


def height_and_width(text: str) -> list[int]:
    """The size of pictures as a user types it.

    Example:
        >>> height_and_width("64"), height_and_width("64x48")
        ([64, 64], [64, 48])
    """
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) > 2 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"`size` must be a height and a width in pixels, such as 64 or 64x48, got {text!r}")
    return [int(part) for part in parts] * (3 - len(parts))


TYPED: dict[str, Callable[[str], Any]] = {
    "columns": column_list,
    "given": column_list,
    "exclude": column_list,
    "kinds": column_kinds,
    "key": str,
    "size": height_and_width,
}
"""Options whose text is not parsed as JSON, with the functions that parse it."""

NONE_IS_A_CHOICE = {"augmentation", "line_search", "scaling"}
"""Options for which none is a value of its own, not the absence of a value."""


def _pair(assignment: str) -> tuple[str, Any]:
    key, sign, text = assignment.partition("=")
    key = key.strip()
    if not sign or not key:
        raise InputError(f"expected key=value, such as epochs=10, got {assignment!r}")
    value = json_or_text(text)
    if text.lower() == "none" and key not in NONE_IS_A_CHOICE:
        value = None
    if key in TYPED and value is not None and not isinstance(value, list | dict):
        value = TYPED[key](text)
    return _kind_of(key, value)


def _kind_of(key: str, value: Any) -> tuple[str, Any]:
    """The key and value of an option, where the name alone of a likelihood or an architecture sets its kind."""
    named = key in ("likelihood", "architecture") and isinstance(value, str)
    return (f"{key}.kind" if named else key), value


BUDGETS = (("training", "epochs"), ("training", "steps"))
"""The places of the two options that say how long to train."""


def _places(options: list[str]) -> dict[str, tuple[str, ...]]:
    """The path of each key within the settings.

    `steps` is an option of training, except for methods that have an option of this name; `training.steps` is always
    that of training.
    """
    return {
        **{
            f"{part}.{name}": ("model", part, name)
            for part, registry in (("likelihood", LIKELIHOODS), ("architecture", ARCHITECTURES))
            for entry in registry.values()
            for name in entry.Options.model_fields
        },
        **{name: ("data", "source", name) for name in SourceConfig.model_fields},
        **{name: ("data", name) for name in ("scaling", "limit", "validation_limit")},
        "split_seed": ("data", "seed"),
        **{name: ("training", name) for name in TrainingConfig.model_fields},
        "training.steps": ("training", "steps"),
        **{name: ("model", "options", name) for name in options},
    }


def _put(content: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    for name in place[:-1]:
        if content.get(name) is None:
            content[name] = {}
        content = content[name]
        if not isinstance(content, dict):
            raise InputError(f"{place[-1]!r} is an option of the {name}, so the {name} cannot be {content!r}")
    content[place[-1]] = value
