"""How instances become pixels."""

import numpy as np
import pytest
import torch

from gpin.data import Rows, Scaling
from gpin.runs.report.display import PANEL, Display, series_channels, words_for

NONE = Scaling(kind="none")


@pytest.mark.parametrize(
    ("shape", "kind", "channels"),
    [
        ((1, 2, 64), "none", 2),
        ((2, 64), "standardised", 2),
        ((1, 1, 64), "none", 1),
        ((1, 64, 3), "none", 3),
        ((1, 28, 28), "none", 0),
        ((1, 2, 64), "pixels", 0),
        ((3, 2, 64), "none", 0),
        ((64,), "none", 0),
    ],
)
def test_series_have_few_channels_and_a_length(shape, kind, channels):
    assert series_channels(shape, Scaling(kind=kind)) == channels


def test_words():
    assert words_for((3,), NONE).nouns == "rows"
    assert words_for((1, 2, 64), NONE).one == "a series"
    assert words_for((3, 64, 64), NONE).nouns == "images"


def test_a_series_is_drawn_over_the_range_of_each_channel():
    values = np.stack([np.linspace(0, 1, 32), np.linspace(900, 500, 32)]).astype(np.float32)[None, None]
    display = Display.of(Rows(values, np.arange(1), NONE))
    assert display.series
    assert (display.low.tolist(), display.high.tolist()) == ([0, 500], [1, 900])
    (image,) = display(torch.tensor(values))
    assert image.shape == (3, PANEL[1], PANEL[0])
    inked = image[:, 3:-3, 3:-3].min(axis=0) < 0.9
    left, right = np.flatnonzero(inked[:, 5]), np.flatnonzero(inked[:, -6])
    for column in (left, right):  # one line at the top and one at the bottom, which cross in the middle
        assert column.min() < 10
        assert column.max() > PANEL[1] - 17
    middle = np.flatnonzero(inked[:, inked.shape[1] // 2])
    assert np.ptp(middle) < 10


def test_channels_may_come_last():
    values = np.random.default_rng(0).random((4, 1, 2, 32)).astype(np.float32)
    turned = np.ascontiguousarray(values.swapaxes(2, 3))
    shown = [Display.of(Rows(each, np.arange(4), NONE))(torch.tensor(each)) for each in (values, turned)]
    np.testing.assert_array_equal(*shown)


def test_other_channels_stand_side_by_side():
    values = np.random.default_rng(0).random((3, 2, 4, 5)).astype(np.float32)
    shown = Display.of(Rows(values, np.arange(3), NONE))(torch.tensor(values))
    assert shown.shape == (3, 1, 4, 10)
    np.testing.assert_allclose(shown[:, 0, :, :5], values[:, 0])
    np.testing.assert_allclose(shown[:, 0, :, 5:], values[:, 1])
