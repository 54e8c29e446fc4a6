"""How the API reference reads the source: configs with their constructors, formulas as formulas."""

import re

import griffe

FORMULA = re.compile(r"^\.\. math::\s*(.+?)\s*(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


class Source(griffe.Extension):
    """Adds what does not stand in the source."""

    def on_class(self, *, cls, **_):
        """Add to a config the constructor that pydantic will give it: one keyword for each field."""
        if "__init__" in cls.members or not any(
            str(base).split("[")[0].endswith(("Config", "Options")) for base in cls.bases
        ):
            return
        parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
        for name, field in cls.members.items():
            if field.is_attribute and field.annotation and "instance-attribute" in field.labels:
                parameters.append(
                    griffe.Parameter(
                        name,
                        annotation=field.annotation,
                        kind=griffe.ParameterKind.keyword_only,
                        default=_default(field),
                    )
                )
        cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters)))

    def on_object(self, *, obj, **_):
        """Write the formulas of a docstring as the site's Markdown does."""
        if obj.docstring:
            obj.docstring.value = FORMULA.sub(lambda match: f"$$\n{match[1]}\n$$", obj.docstring.value)


def _default(field):
    """The default of a field, also where it stands inside pydantic's `Field(…)`."""
    value = field.value
    if isinstance(value, griffe.ExprCall) and str(value.function) == "Field":
        given = {part.name: part.value for part in value.arguments if isinstance(part, griffe.ExprKeyword)}
        return given.get("default", "…")
    return value
