"""Griffe extension for the API reference: constructors of configs, and the syntax of formulas and references."""

import re

import griffe

FORMULA = re.compile(r"^\.\. math::\s*(.+?)\s*(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
ROLE = re.compile(r":(?:meth|class|func|attr):(?=`)")
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
CONFIG = "gpin._core.config.Config"


class Source(griffe.Extension):
    """Adds constructors to configs and converts docstrings for the site."""

    def on_package(self, *, pkg, **_):
        """Add to every config the constructor that pydantic generates."""
        for cls in _classes(pkg):
            bases = cls.mro()
            if "__init__" not in cls.members and any(base.path == CONFIG for base in bases):
                cls.set_member("__init__", _constructor([*reversed(bases), cls]))

    def on_object(self, *, obj, **_):
        """Convert the formulas, examples and references of a docstring to the syntax of the site."""
        if obj.docstring:
            text = FORMULA.sub(lambda match: f"$$\n{match[1]}\n$$", obj.docstring.value)
            obj.docstring.value = ROLE.sub("", EXAMPLE.sub("Examples:", text))


def _classes(module):
    for member in module.members.values():
        if member.is_alias:
            continue
        if member.is_module:
            yield from _classes(member)
        elif member.is_class:
            yield member


def _constructor(classes):
    """An `__init__` with one keyword for each field of the classes, those of the bases first."""
    parameters = {"self": griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)}
    for cls in classes:
        for name, field in cls.members.items():
            if not field.is_alias and field.is_attribute and field.annotation and "instance-attribute" in field.labels:
                parameters[name] = griffe.Parameter(
                    name, annotation=field.annotation, kind=griffe.ParameterKind.keyword_only, default=_default(field)
                )
    return griffe.Function("__init__", parameters=griffe.Parameters(*parameters.values()))


def _default(field):
    """The default of a field, even if it is inside pydantic's `Field(…)`."""
    value = field.value
    if isinstance(value, griffe.ExprCall) and str(value.function) == "Field":
        given = {part.name: part.value for part in value.arguments if isinstance(part, griffe.ExprKeyword)}
        return given.get("default", "…")
    return value
