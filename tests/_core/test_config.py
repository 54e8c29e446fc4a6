"""Configs: frozen, JSON in and out, and errors that a user can act on."""

import json
import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError, model_validator

from gpin._core.config import Config, suggest
from gpin._core.errors import InputError


class Inner(Config):
    depth: int = Field(default=2, ge=1)


class Example(Config):
    """One option of every kind that the package uses."""

    width: int = Field(default=256, ge=1)
    rate: float = Field(default=1e-3, gt=0)
    kind: Literal["plain", "fancy"] = "plain"
    channels: tuple[int, ...] = ()
    inner: Inner = Inner()

    @model_validator(mode="after")
    def _check(self):
        if self.kind == "fancy" and not self.channels:
            raise ValueError("kind='fancy' needs channels")
        return self


class Required(Config):
    size: int


class Empty(Config):
    pass


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (
            Example,
            {"widht": 3},
            "method 'x' has no option 'widht': did you mean 'width'? choose from channels, inner, k",
        ),
        (Example, {"zzz": 3}, "no option 'zzz': choose from channels, inner, kind, rate, width"),
        (Example, {"wi\ndth": 3}, "no option 'wi\\ndth': did you mean 'width'?"),
        (Empty, {"width": 3}, "no option 'width': it has none"),
        (Example, {"width": 0}, "option 'width' of method 'x' must be greater than or equal to 1, got 0"),
        (Example, {"width": 2.5}, "option 'width' of method 'x' must be a valid integer"),
        (Example, {"width": "a\nb"}, ", got 'a\\nb'"),
        (Example, {"width": None}, "option 'width' of method 'x' must be a valid integer, got None"),
        (Example, {"rate": math.nan}, "option 'rate' of method 'x' must be a finite number, got nan"),
        (Example, {"rate": math.inf}, ", got inf"),
        (Example, {"kind": "plane"}, "option 'kind' of method 'x' must be 'plain' or 'fancy', got 'plane'"),
        (Example, {"channels": (8, "many")}, "option 'channels.1' of method 'x'"),
        (Example, {"inner": {"depth": 0}}, "option 'inner.depth' of method 'x'"),
        (Example, {"kind": "fancy"}, "the options of method 'x': kind='fancy' needs channels"),
        (Required, {}, "option 'size' of method 'x': Field required"),
        (Example, {"width": np.zeros((9, 9))}, "option 'width' of method 'x' must be a valid integer, got "),
    ],
)
def test_errors_are_one_line_that_names_option_and_value(config, options, message):
    with pytest.raises(InputError) as caught:
        config.parse(options, "method 'x'")
    text = str(caught.value)
    assert message in text
    assert "method 'x'" in text
    assert "\n" not in text
    assert caught.value.__suppress_context__  # no pydantic traceback behind it


NAMES = st.sampled_from(sorted(Example.model_fields)) | st.text(max_size=8)
VALUES = st.none() | st.integers() | st.floats() | st.text(max_size=8)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(NAMES, VALUES, max_size=3))
def test_any_options_are_parsed_or_refused_in_one_line(options):
    try:
        Example.parse(options, "the example")
    except InputError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
    else:
        assert set(options) <= set(Example.model_fields)


def test_configs_are_frozen():
    config = Example()
    with pytest.raises(ValidationError, match="frozen"):
        config.width = 3
    assert config == Example()


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({}, []),
        ({"width": 256, "kind": "plain"}, []),
        ({"width": 3}, ["width"]),
        ({"kind": "fancy", "channels": (8, 16), "rate": 0.1}, ["rate", "kind", "channels"]),
        ({"inner": {"depth": 5}}, ["inner"]),
    ],
)
def test_configs_survive_json_and_know_what_was_changed(options, changed):
    config = Example.parse(options, "the example")
    assert config.changed() == changed
    again = Example.parse(json.loads(json.dumps(config.model_dump(mode="json"))), "the example")
    assert again == config
    assert again.changed() == changed


@pytest.mark.parametrize(
    ("name", "text"),
    [("fulll", "did you mean 'full'? choose from diagonal, full"), ("x", "choose from diagonal, full")],
)
def test_suggestions_lead_with_the_closest_name(name, text):
    assert suggest(name, ["full", "diagonal"]) == text
