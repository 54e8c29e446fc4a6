import json
import math

import numpy as np
import pytest
import torch

import gpin
from gpin.data import Scaling, check_values, choose_scaling, scaling

RNG = np.random.default_rng(0)


def images(low, high, dtype, count=20):
    values = RNG.uniform(low, high, (count, 1, 3, 4))
    values.flat[:2] = low, high
    return values.astype(dtype)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (images(0, 255, np.uint8), "pixels"),
        (images(0, 1.9, np.uint8), "binary"),
        (np.zeros((20, 1, 3, 4), np.uint8), "binary"),
        (np.rint(images(0, 1, np.float32)), "binary"),
        (RNG.integers(0, 2, (20, 5)), "binary"),
        (RNG.integers(0, 2, (20, 5)).astype(bool), "binary"),
        (images(0, 255, np.int64), "pixels"),
        (np.rint(images(0, 255, np.float64)), "pixels"),
        (images(0, 1, np.float32), "none"),
        (images(0, 1, np.float16), "none"),
        (images(0, 255, np.float32), "standardised"),
        (images(-100, 100, np.int8), "standardised"),
        (images(0, 60000, np.uint16), "standardised"),
        (images(-1, 1, np.float64), "standardised"),
        (RNG.integers(0, 256, (20, 5), dtype=np.uint8), "standardised"),
        (RNG.uniform(size=(20, 5)), "standardised"),
        (RNG.normal(size=(20, 5)).astype(np.longdouble), "standardised"),
        (RNG.normal(size=(20, 5)).astype(">f4"), "standardised"),
    ],
)
def test_the_scaling_is_chosen_by_what_the_data_is(values, kind):
    chosen = choose_scaling(values)
    assert chosen.kind == kind
    x = chosen.apply(values)
    assert x.dtype == torch.float32
    assert x.shape == values.shape
    expected = {"pixels": values.astype(float) / 255}.get(kind, values.astype(float))
    if kind == "standardised":
        axis = 0 if values.ndim == 2 else None
        assert x.double().mean(axis).abs().max() < 1e-6
        np.testing.assert_allclose(x.double().numpy().std(axis), 1, rtol=1e-6)
    else:
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-7)
    back = chosen.undo(x)
    assert back.dtype == {"pixels": np.uint8, "standardised": np.float64}.get(kind, np.float32)
    np.testing.assert_allclose(back, values.astype(float), rtol=1e-6, atol=1e-5 * float(values.max()))


def test_pixels_are_exact_to_the_last_bit_and_rounded_on_the_way_back():
    values = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    chosen = Scaling(kind="pixels", scale=(255.0,))
    assert np.array_equal(chosen.apply(values).numpy(), (values / 255).astype(np.float32))
    assert np.array_equal(chosen.undo(chosen.apply(values)), values)
    assert chosen.undo(torch.tensor([-0.3, 0.0021, 1.7])).tolist() == [0, 1, 255]


def test_a_mean_that_is_large_beside_the_deviation_loses_no_digits(monkeypatch):
    monkeypatch.setattr(scaling, "PIECE", 64)  # in many pieces
    noise = RNG.normal(size=(5000, 3))
    values = 1e9 + noise * [1, 1e-3, 1e3]
    chosen = choose_scaling(values)
    exact = values.astype(np.longdouble)
    np.testing.assert_allclose(chosen.offset, exact.mean(0).astype(float), rtol=1e-15)
    np.testing.assert_allclose(chosen.scale, exact.std(0).astype(float), rtol=1e-9)
    x = chosen.apply(values).numpy()
    error = np.abs(x - (exact - exact.mean(0)) / exact.std(0)).max(0)
    assert (error < 1e-6 + np.spacing(1e9) / exact.std(0)).all()  # as close as the mean is to a float64


@pytest.mark.parametrize("piece", [1, 7, 60, 10**6])
@pytest.mark.parametrize("shape", [(40, 5), (40, 1, 2, 3), (40, 3, 4, 2), (40, 1, 2, 9), (40, 1, 9, 2)])
def test_statistics_are_those_of_the_training_rows_however_the_data_is_cut(monkeypatch, piece, shape):
    monkeypatch.setattr(scaling, "PIECE", piece)
    values = RNG.normal(3, 2, shape)
    rows = np.sort(RNG.permutation(40)[:25])
    values[np.setdiff1d(np.arange(40), rows)] += 1000
    chosen = choose_scaling(values, rows, test=values + 5)
    axis = {
        (40, 5): 0,
        (40, 1, 2, 3): None,
        (40, 3, 4, 2): (0, 2, 3),
        (40, 1, 2, 9): (0, 1, 3),
        (40, 1, 9, 2): (0, 1, 2),
    }
    np.testing.assert_allclose(chosen.offset, np.atleast_1d(values[rows].mean(axis[shape])))
    np.testing.assert_allclose(chosen.scale, np.atleast_1d(values[rows].std(axis[shape])))


@pytest.mark.parametrize("shape", [(500, 3, 2, 2), (500, 1, 2, 8), (500, 1, 8, 2)])
def test_channels_have_scales_of_their_own(shape):
    units = {
        3: np.reshape([2.0, 500.0, 0.01], (3, 1, 1)),
        2: np.reshape([2.0, 500.0], (2, 1)),
        8: np.array([2.0, 500.0]),
    }[shape[1] if shape[1] > 1 else shape[2]]
    values = RNG.normal(3, 1, shape) * units
    chosen = choose_scaling(values)
    x = chosen.apply(values)
    assert np.allclose(x.numpy().std(0), 1, atol=0.15)  # each place, whatever its channel
    np.testing.assert_array_equal(chosen.apply(values[7]), x[7])  # one instance as a batch
    np.testing.assert_allclose(chosen.undo(x), values, rtol=1e-5, atol=1e-5 * units.max())
    np.testing.assert_array_equal(chosen.undo(x[None])[0], chosen.undo(x))  # samples lead
    offset, scale = chosen.units(shape[1:])
    assert offset.shape == scale.shape == shape[1:]
    dims = math.prod(shape[1:])
    assert chosen.log_volume(dims) == pytest.approx(np.log(scale).sum())
    normal = torch.distributions.Normal(torch.from_numpy(offset.copy()), torch.from_numpy(scale.copy()))
    direct = normal.log_prob(torch.from_numpy(values)).flatten(1).sum(1)
    scaled = torch.distributions.Normal(0, 1).log_prob(x.double()).flatten(1).sum(1)
    torch.testing.assert_close(scaled - chosen.log_volume(dims), direct, rtol=1e-4, atol=1e-4)
    check_values(values, chosen)
    again = Scaling.parse(json.loads(json.dumps(chosen.model_dump(mode="json"))), "")
    assert again == chosen
    with pytest.raises(gpin.InputError, match="channels, but the data has shape"):
        chosen.apply(np.zeros((5, 1, 4, 4)))


def test_a_scaling_without_channels_is_recorded_as_before():
    one = choose_scaling(RNG.normal(size=(20, 1, 4, 4)))
    assert one.axis is None
    assert list(one.model_dump(mode="json")) == ["kind", "offset", "scale"]


def test_a_constant_channel_is_named():
    values = RNG.normal(size=(20, 3, 4, 4))
    values[:, 1] = 7
    with pytest.raises(gpin.InputError, match="channel 2 is always 7 in the training part and cannot be standardised"):
        choose_scaling(values)


def test_the_volume_turns_densities_into_the_units_of_the_data():
    values = RNG.normal(3, [2, 5, 0.1], (500, 3))
    chosen = choose_scaling(values)
    x = chosen.apply(values).double()
    scaled = torch.distributions.Normal(0, 1).log_prob(x).sum(1)
    offset, scale = torch.tensor(chosen.offset), torch.tensor(chosen.scale)
    direct = torch.distributions.Normal(offset.double(), scale.double()).log_prob(torch.from_numpy(values)).sum(1)
    torch.testing.assert_close(scaled - chosen.log_volume(3), direct, rtol=1e-4, atol=1e-4)
    assert Scaling(kind="pixels", scale=(255.0,)).log_volume(784) == pytest.approx(784 * math.log(255))
    assert Scaling(kind="none").log_volume(9) == 0
    with pytest.raises(gpin.InputError, match="an instance has 4 values, but the scaling is for 3"):
        chosen.log_volume(4)


def test_missing_values_do_not_count(monkeypatch):
    monkeypatch.setattr(scaling, "PIECE", 6)
    values = RNG.normal(size=(40, 3)) * (1, 10, 0.1) + (5, 0, 1e6)
    values[RNG.random((40, 3)) < 0.3] = np.nan
    values[0] = np.nan
    found = choose_scaling(values, np.arange(30))
    assert found.missing
    np.testing.assert_allclose(found.offset, np.nanmean(values[:30], 0), rtol=1e-12)
    np.testing.assert_allclose(found.scale, np.nanstd(values[:30], 0), rtol=1e-6)
    x = found.apply(values)
    assert np.array_equal(x.isnan().numpy(), np.isnan(values))
    np.testing.assert_allclose(found.log_volumes(x), (~np.isnan(values)) @ np.log(found.scale))
    pictures = RNG.normal(size=(20, 2, 3, 4))
    pictures[RNG.random(pictures.shape) < 0.3] = np.nan
    found = choose_scaling(pictures)
    np.testing.assert_allclose(found.offset, np.nanmean(pictures, (0, 2, 3)), rtol=1e-9)
    np.testing.assert_allclose(found.scale, np.nanstd(pictures, (0, 2, 3)), rtol=1e-9)
    assert choose_scaling(np.where(RNG.random((20, 3)) < 0.5, np.nan, 1.0).round()).kind == "binary"
    with pytest.raises(gpin.InputError, match=r"\(the first is nan in row 0, .*complete data: .*gpin impute"):
        check_values(values, Scaling(kind="none"))
    values[:, 1] = np.nan
    with pytest.raises(gpin.InputError, match=r"column 'b' has no values in the training part: .*`exclude=b`"):
        choose_scaling(values, columns=("a", "b", "c"))


def with_value(value, row=3, column=1, count=20):
    values = RNG.normal(size=(count, 3))
    values[row, column] = value
    return values


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["auto", "pixels", "standardised", "binary", "none"])
def test_what_is_infinite_is_named_with_its_row_and_column(monkeypatch, value, kind):
    monkeypatch.setattr(scaling, "PIECE", 6)
    with pytest.raises(gpin.InputError, match=rf"holds {value} in row 3, column 'b' \(rows count from 0\)"):
        choose_scaling(with_value(value), np.arange(2), kind, columns=("a", "b", "c"))
    with pytest.raises(gpin.InputError, match=r"row 3 of the test part, column 2"):
        choose_scaling(RNG.normal(size=(20, 3)), test=with_value(value))
    with pytest.raises(gpin.InputError, match=r"row 3, column 2"):
        check_values(with_value(value), Scaling(kind="none"))
    picture = RNG.uniform(size=(20, 1, 3, 4))
    picture[5, 0, 2, 1] = value
    with pytest.raises(gpin.InputError, match=r"row 5, pixel \(0, 2, 1\)"):
        choose_scaling(picture, kind=kind)


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        (with_value(256.0), "pixels", r"holds -?[\d.]+ in row 0.*pixels must be whole numbers from 0 to 255"),
        (images(0, 1, np.float64), "pixels", "pixels must be whole numbers from 0 to 255"),
        (images(0, 256, np.int64), "pixels", "holds 256 in row 0, .*from 0 to 255"),
        (images(0, 1, np.float64), "binary", "binary data must be 0 or 1"),
        (images(0, 2.9, np.uint8), "binary", "holds 2 in row 0, .*binary"),
        (with_value(1e39), "none", r"holds 1e\+39 in row 3, column 2 .*too large for float32"),
        (with_value(1e200), "standardised", r"column 2 from .* to 1e\+200 cannot be standardised in float64"),
        (with_value(1.7e308), "auto", "cannot be standardised in float64"),
        (RNG.normal(size=(20, 2)) * 1e-200, "auto", "cannot be standardised in float64"),
        (np.full((20, 1, 2, 2), 7.5), "standardised", "every pixel of the training part is 7.5"),
        (RNG.normal(size=(20, 2)), "pixel", "unknown scaling 'pixel': did you mean 'pixels'"),
    ],
)
def test_a_scaling_that_does_not_fit_is_refused(values, kind, said):
    with pytest.raises(gpin.InputError, match=said) as caught:
        choose_scaling(values, kind=kind)
    assert "\n" not in str(caught.value)


def test_long_doubles_beyond_float64_are_refused():
    values = with_value(0).astype(np.longdouble)
    values[2, 2] = np.longdouble(10) ** 400
    with pytest.raises(gpin.InputError, match=r"row 2, column 3"):
        choose_scaling(values)


def test_a_row_outside_training_that_is_too_large_for_float32_is_named():
    with pytest.raises(gpin.InputError, match=r"holds 1e\+60 in row 19, column 2 .*float32"):
        choose_scaling(with_value(1e60, row=19), np.arange(10))


def test_large_values_that_float64_can_square_are_standardised():
    values = RNG.normal(size=(50, 2)) * 1e100
    x = choose_scaling(values).apply(values)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(2))


@pytest.mark.parametrize(
    ("constant", "columns", "said"),
    [
        (
            [1],
            ("a", "b", "c"),
            "column 'b' is always 4.5 in the training part .*leave it out with `exclude=b`, or use `scaling=none`",
        ),
        ([0, 2], ("a", "b", "c"), "column 'a' is always 4.5, column 'c' is always 4.5 .*leave them out with"),
        ([1], None, "column 2 is always 4.5 in the training part .*: leave it out, or use `scaling=none`"),
    ],
)
def test_constant_columns_are_named(constant, columns, said):
    values = RNG.normal(size=(20, 3))
    values[:15, constant] = 4.5  # they vary outside the training part only
    with pytest.raises(gpin.InputError, match=said):
        choose_scaling(values, np.arange(15), columns=columns)
    assert choose_scaling(values, np.arange(15), "none", columns=columns).kind == "none"


def test_a_scaling_goes_through_json_without_loss_and_checks_itself():
    chosen = choose_scaling(RNG.normal(size=(30, 4)))
    assert Scaling.parse(json.loads(chosen.model_dump_json()), "scaling") == chosen
    for wrong in ({"offset": (1.0, 2.0)}, {"scale": (0.0,)}, {"scale": (float("nan"),)}, {"scale": ()}):
        with pytest.raises(gpin.InputError):
            Scaling.parse({"kind": "standardised", **wrong}, "scaling")
    with pytest.raises(gpin.InputError, match="the data has 3 columns, but the scaling is for 4"):
        chosen.apply(np.zeros((2, 3)))
    with pytest.raises(gpin.InputError, match="the data has 3 columns, but the scaling is for 4"):
        check_values(np.zeros((2, 3)), chosen)
