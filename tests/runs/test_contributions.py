"""To which columns or regions the surprise of an instance is attributed."""

from types import SimpleNamespace

import numpy as np
import pytest

from gpin.data import Scaling
from gpin.runs.contributions import Parts, reasons


def run(shape, columns=()):
    return SimpleNamespace(model=SimpleNamespace(shape=shape), column_names=list(columns), scaling=Scaling(kind="none"))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 10, 6), (2, 1, 7), (1, 3, 2)])
def test_regions_of_a_picture_sum_its_pixels_once(shape):
    parts = Parts.of(run(shape))
    values = np.random.default_rng(0).normal(size=(5, *shape))
    found = parts.sums(values)
    assert found.shape == (5, len(parts.names))
    assert len(parts.names) == min(4, shape[1]) * min(4, shape[2])
    np.testing.assert_allclose(found.sum(1), values.sum((1, 2, 3)))


def test_a_region_is_where_its_name_says():
    parts = Parts.of(run((2, 28, 28)))
    values = np.zeros((1, 2, 28, 28))
    values[0, 1, 13, 27] = 5.0
    (found,) = parts.sums(values)
    assert {name: value for name, value in zip(parts.names, found, strict=True) if value} == {
        "rows 7–13, columns 21–27": 5.0
    }


def test_columns_are_their_own_parts():
    parts = Parts.of(run((3,), ["a", "b", "c"]))
    values = np.arange(6.0).reshape(2, 3)
    assert parts.names == ("a", "b", "c")
    assert np.array_equal(parts.sums(values), values)


def test_reasons_are_the_largest_contributions_above_one_nat():
    parts = Parts(("a", "b", "c", "d"))
    contributions = np.array([[0.5, 30.0, 2.0, 7.0], [0.1, -5.0, 0.2, 0.9], [1.0, 1.0, 0.0, 0.0]])
    values, expected = np.full((3, 4), -1.5), np.zeros((3, 4))
    found = reasons(parts, contributions, np.array([3.0, 0.0, 40.0]), (values, expected))
    assert found[0] == "b is −1.5, expected 0 (+30.0); d is −1.5, expected 0 (+7.0); the latent code (+3.0)"
    assert found[1] == ""
    assert found[2] == "the latent code (+40.0); a is −1.5, expected 0 (+1.0); b is −1.5, expected 0 (+1.0)"
    assert reasons(parts, contributions, np.zeros(3), None)[0] == "b (+30.0); d (+7.0); c (+2.0)"
