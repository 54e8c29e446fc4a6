"""Shows a config as what it is to a caller: a class whose constructor takes its fields as keywords.

Configs are pydantic models, whose constructors do not stand in the source that the API reference is made from.
"""

import griffe


class Configs(griffe.Extension):
    """Gives every config the constructor that pydantic will give it."""

    def on_class(self, *, cls, **_):
        """Add `__init__` with one keyword for each field."""
        if "__init__" in cls.members or not _is_config(cls):
            return
        parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
        for name, field in cls.members.items():
            if field.is_attribute and field.annotation and "ClassVar" not in str(field.annotation):
                keyword = griffe.ParameterKind.keyword_only
                parameters.append(
                    griffe.Parameter(name, annotation=field.annotation, kind=keyword, default=_default(field))
                )
        cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters)))


def _is_config(cls):
    return any(str(base).split("[")[0].endswith("Config") for base in cls.bases)


def _default(field):
    """The default, also where it stands inside pydantic's `Field(…)`."""
    value = field.value
    if isinstance(value, griffe.ExprCall) and str(value.function) == "Field":
        given = {part.name: part.value for part in value.arguments if isinstance(part, griffe.ExprKeyword)}
        return given.get("default", "…")
    return value
