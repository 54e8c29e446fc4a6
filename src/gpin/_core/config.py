"""The base class of every config: frozen, read from and written to JSON, with one-sentence errors."""

import difflib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from gpin._core.errors import InputError

__all__ = ["Config", "KindConfig", "MethodConfig", "json_or_text", "registered", "suggest"]

T = TypeVar("T")


def suggest(name: str, known: list[str]) -> str:
    """A hint that lists the known names, preceded by the one that was probably meant."""
    close = difflib.get_close_matches(name, known, n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + "choose from " + ", ".join(sorted(known))


def registered(registry: Mapping[str, T], name: Any, what: str) -> T:
    """The registry's entry of this name; an unknown name raises InputError with the known ones.

    Arguments:
        registry: The entries by name.
        name: The name to look up.
        what: The kind of entry for the error message, such as "method".
    """
    if not isinstance(name, str) or name not in registry:
        raise InputError(f"unknown {what} {name!r}: {suggest(str(name), list(registry))}")
    return registry[name]


def json_or_text(text: str) -> Any:
    """Parse a value that a user typed: as JSON if it is valid JSON, otherwise as plain text.

    Example:
        >>> json_or_text("1.5"), json_or_text("gpu")
        (1.5, 'gpu')
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


class Config(BaseModel):
    """A frozen record of options. Unknown options and values out of range raise InputError in `parse`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    later: ClassVar[tuple[str, ...]] = ()
    """Options that were added after records had been stored. A record has them only if they are used, so that files and
    identities of what earlier versions could do stay the same; see :meth:`without_unused`."""

    @classmethod
    def parse(cls, options: Mapping[str, Any], what: str) -> Self:
        """Check options and make a config of them; `what` names their owner in errors, such as "method 'gp'"."""
        try:
            return cls(**options)
        except ValidationError as error:
            raise InputError(cls._sentence(error, what)) from None

    def changed(self) -> list[str]:
        """The names of the options that differ from their defaults."""
        fields = type(self).model_fields.items()
        return [name for name, field in fields if getattr(self, name) != field.get_default(call_default_factory=True)]

    def without_unused(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """A record of the options without those of `later` that have their defaults."""
        unused = set(self.later) - set(self.changed())
        return {name: value for name, value in record.items() if name not in unused}

    @classmethod
    def _sentence(cls, error: ValidationError, what: str) -> str:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = list(cls.model_fields)
            return f"{what} has no option {name!r}: " + (suggest(name, known) if known else "it has none")
        reason = f": {first['msg'].removeprefix('Value error, ')}"
        if reason.startswith(": Input should be "):
            reason = f" must be {reason.removeprefix(': Input should be ').replace('a valid dictionary', 'a mapping')}"
        where = f"option {name!r} of {what}" if name else f"the options of {what}"
        got = f", got {' '.join(repr(first['input']).split())}" if name and first["type"] != "missing" else ""
        return f"{where}{reason}{got}"


class MethodConfig(Config):
    """The options of a method or a refinement.

    `presets` are named sets of options, such as those of the paper. `formerly` has what records imply that were written
    before an option existed, if this is not the option's default.
    """

    model_config = ConfigDict(strict=True)  # "2" is not 2, and True is not 1

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    formerly: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def parse(cls, options: Mapping[str, Any], what: str) -> Self:
        """As in `Config`; the option `preset` names a preset whose options apply unless they are given."""
        options = dict(options)
        name = options.pop("preset", None)
        if name is not None:
            if not isinstance(name, str) or name not in cls.presets:
                known = f": {suggest(str(name), list(cls.presets))}" if cls.presets else "; it has none"
                raise InputError(f"{what} has no preset {name!r}{known}")
            options = {**cls.presets[name], **options}
        return super().parse(options, what)


class KindConfig(Config):
    """The options of one registry entry, such as a likelihood; `kind` is the name of the entry."""

    kind: str = "own"

    def record(self) -> dict[str, Any]:
        """The options as they are stored in files and hashed for the identity of a run, ready for JSON."""
        return self.model_dump(mode="json")
