"""The kinds of columns: detection, conversion there and back, and what is remarked about them."""

import numpy as np
import pytest
import torch

import gpin
from gpin.data import DataConfig, Scaling, Source, SourceConfig, as_model_data, split_and_scale
from gpin.data.columns import ColumnScaling, Levels, choose_columns
from gpin.data.remarks import remarks

RNG = np.random.default_rng(0)
N = 200
COLUMNS = {
    "gaussian": RNG.normal(5, 2, N),
    "bernoulli": RNG.integers(0, 2, N).astype(float),
    "poisson": RNG.poisson(3, N).astype(float),
    "negative_binomial": RNG.negative_binomial(1, 0.1, N).astype(float),
    "lognormal": np.exp(RNG.normal(3, 1.2, N)),
    "categorical": RNG.integers(0, 3, N).astype(float),
}
LEVELS = tuple(Levels(("blue", "green", "red")) if name == "categorical" else None for name in COLUMNS)


def table(missing=0.1, **options):
    values = np.stack(list(COLUMNS.values()), 1)
    values[np.random.default_rng(1).random(values.shape) < missing] = np.nan
    return Source("some", "some.csv", SourceConfig(**options), values, "table", columns=tuple(COLUMNS), levels=LEVELS)


def test_kinds_are_detected_and_values_return_as_they_were():
    source = table()
    data = split_and_scale(source, DataConfig())
    assert [column.kind for column in data.scaling.columns] == list(COLUMNS)
    assert data.scaling.missing
    assert data.shape == data.train.shape == (8,)
    x = data.train[:]
    assert x.shape == (160, 8)
    given = source.values[data.train.rows]
    assert np.array_equal(x[:, :5].isnan().numpy(), np.isnan(given[:, :5]))
    assert np.array_equal(x[:, 5:].isnan().all(1).numpy(), np.isnan(given[:, 5]))
    np.testing.assert_allclose(data.scaling.undo(x), given, rtol=1e-5)
    assert x[:, 0].nanmean().abs() < 1e-5
    assert x[:, 4].nanmean().abs() < 1e-5
    again = Scaling.parse(data.scaling.model_dump(mode="json"), "it")
    assert again == data.scaling
    assert again.apply(source.values[0]).shape == (8,)


def test_output_of_the_model_becomes_values_of_the_kinds():
    scaling = split_and_scale(table(), DataConfig()).scaling
    x = np.array([[0.3, 0.7, 2.6, -0.2, 1.0, 0.2, 0.5, 0.3], [-3.0, 1.4, 0.4, 7.5, -2.0, 0.9, 0.05, 0.05]])
    gaussian, binary, poisson, negative, lognormal, colours = scaling.decoded(scaling.undo(x))
    assert binary.tolist() == [1, 1]
    assert (poisson.tolist(), negative.tolist()) == ([3, 0], [0, 8])
    assert (binary.dtype, poisson.dtype) == (np.int64, np.int64)
    assert colours.tolist() == ["green", "blue"]
    assert (lognormal > 0).all()
    assert gaussian.dtype == np.float64
    values = scaling.undo(x)[0]
    assert [scaling.label(index, value) for index, value in enumerate(values)] == [None, "1", "3", "0", None, "green"]
    assert scaling.label(5, np.nan) == "missing"
    numbers = ColumnScaling(kind="categorical", levels=("1", "5"), numeric=True)
    assert numbers.decoded(np.array([1.0, 0.0])).tolist() == [5, 1]


def test_the_volume_is_the_derivative_of_the_values():
    scaling = split_and_scale(table(missing=0.0), DataConfig()).scaling
    x = scaling.apply(table(missing=0.0).values[:5]).double().numpy()
    step = np.zeros(8)
    step[[0, 4]] = 1e-4
    slopes = (scaling.undo(x + step) - scaling.undo(x - step))[:, [0, 4]] / 2e-4
    np.testing.assert_allclose(scaling.log_volumes(torch.from_numpy(x)), np.log(slopes).sum(1), rtol=1e-5)
    x[0, 4] = np.nan
    assert scaling.log_volumes(torch.from_numpy(x))[0].item() == pytest.approx(np.log(slopes[0, 0]), rel=1e-5)


def test_kinds_can_be_corrected_and_plain_tables_stay_as_they_were():
    chosen = split_and_scale(table(kinds={"poisson": "gaussian", "lognormal": "gaussian"}), DataConfig()).scaling
    assert [column.kind for column in chosen.columns][2::2] == ["gaussian", "gaussian"]
    plain = Source("some", "some.csv", SourceConfig(), RNG.normal(size=(50, 2)), "table", columns=("a", "b"))
    found = split_and_scale(plain, DataConfig()).scaling
    assert (found.kind, found.columns, found.missing) == ("standardised", (), False)
    assert set(found.model_dump(mode="json")) == {"kind", "offset", "scale"}
    binary = Source("some", "some.csv", SourceConfig(), RNG.integers(0, 2, (50, 2)), "table", columns=("a", "b"))
    assert split_and_scale(binary, DataConfig()).scaling.kind == "binary"
    nameless = Source("some", "some.npy", SourceConfig(), RNG.integers(0, 9, (50, 2)), "table")
    assert split_and_scale(nameless, DataConfig()).scaling.kind == "standardised"


def test_other_data_is_matched_by_the_names_of_levels():
    data = split_and_scale(table(), DataConfig())
    other = Source(
        "other",
        "other.csv",
        SourceConfig(),
        np.array([[0.0, 1, 2, 3, 4, 0], [1.0, 0, 0, 0, 1, np.nan]])[:, ::-1],
        "table",
        columns=tuple(COLUMNS)[::-1],
        levels=(Levels(("red",)), None, None, None, None, None),
    )
    rows = as_model_data(other, data.shape, data.scaling, tuple(COLUMNS))
    x = rows[:]
    assert x[0, 5:].tolist() == [0, 0, 1]
    assert x[1, 5:].isnan().all()


@pytest.mark.parametrize(
    ("levels", "value", "says"),
    [
        (Levels(("pink",)), 0.0, "column 'categorical' holds 'pink', which the model has not seen .*row 0"),
        (None, 3.0, "holds numbers, but the model was trained on text"),
    ],
)
def test_unknown_levels_are_refused(levels, value, says):
    data = split_and_scale(table(), DataConfig())
    values = np.ones((2, 6))
    values[:, 5] = value
    own = (*[None] * 5, levels)
    other = Source("other", "other.csv", SourceConfig(), values, "table", columns=tuple(COLUMNS), levels=own)
    with pytest.raises(gpin.InputError, match=says):
        as_model_data(other, data.shape, data.scaling, tuple(COLUMNS))


@pytest.mark.parametrize(
    ("values", "kind", "says"),
    [
        ([0.0, 2.0, 1.0], "bernoulli", "holds 2 in row 1 .*the kind 'bernoulli' needs 0 or 1"),
        ([0.0, 1.5, 1.0], "poisson", "holds 1.5 in row 1 .*whole numbers from 0"),
        ([0.0, 1.5, 1.0], "lognormal", "holds 0 in row 0 .*positive numbers"),
        ([1.0, 1.0, 1.0], "gaussian", "cannot be standardised, .*`exclude=a b`"),
        ([np.nan] * 3, "gaussian", "no values in the training part: .*`exclude=a b`"),
    ],
)
def test_kinds_that_do_not_fit_are_refused(values, kind, says):
    with pytest.raises(gpin.InputError, match=says):
        choose_columns(np.array(values)[:, None], np.arange(3), ("a b",), None, {"a b": kind}, "some")


def test_what_cannot_have_kinds_is_refused():
    with pytest.raises(gpin.InputError, match="no column 'gausian', whose kind is given: did you mean 'gaussian'"):
        split_and_scale(table(kinds={"gausian": "poisson"}), DataConfig())
    with pytest.raises(gpin.InputError, match="column 'categorical' has a kind of its own"):
        split_and_scale(table(), DataConfig(scaling="standardised"))
    with pytest.raises(gpin.InputError, match="column 'categorical' holds text, so its kind is 'categorical'"):
        split_and_scale(table(kinds={"categorical": "poisson"}), DataConfig())
    same = Source("some", "s.csv", SourceConfig(), np.zeros((20, 1)), "table", columns=("a",), levels=(Levels(("x",)),))
    with pytest.raises(gpin.InputError, match="column 'a' is always 'x': leave it out"):
        split_and_scale(same, DataConfig())


def test_identifiers_and_extreme_values_are_pointed_out():
    values = np.stack([np.arange(5.0, 55), RNG.normal(100, 1, 50), RNG.normal(size=50), np.arange(50.0)], 1)
    values[7, 1] = 1e6
    levels = (None, None, None, Levels(tuple(f"x{i:02}" for i in range(50))))
    options = SourceConfig(exclude=("z",))
    source = Source("s", "s.csv", options, values, "table", columns=("id", "big, one", "c", "name"), levels=levels)
    found = list(remarks(source, Scaling(kind="standardised")))
    assert len(found) == 3
    assert (
        "column 'id' looks like an identifier, because its values are in sequence: leave it out with `exclude=z,id`"
        in found[0]
    )
    assert "column 'big, one' has 1 extreme value; the farthest is 1e+06 in row 7" in found[1]
    assert """`kinds="big, one=lognormal"`""" in found[1]
    assert "column 'name' looks like an identifier, because its values are all different" in found[2]
