"""The charts that are written as SVG: where their points and bars are, and that their texts are escaped."""

import re

import numpy as np
import pytest

from gpin.report import charts
from gpin.report.style import SCALE


def points(svg):
    """Position, colour and label of every point of a map, by its number."""
    found = re.findall(r'data-at="(\d+)" cx="([\d.]+)" cy="([\d.]+)" r="4" fill="([^"]*)".*?<title>(.*?)</title>', svg)
    return {int(i): (float(x), float(y), fill, text) for i, x, y, fill, text in found}


def test_a_map_has_its_points_in_place_and_coloured_by_rank():
    places = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 2.0], [0.5, 1.0]])
    svg = charts.point_map(places, [5.0, np.nan, 900.0, 7.0], ["a", "b", "<c>", "d"], ("z1", "z2"), "gap")
    found = points(svg)
    assert [found[i][3] for i in range(4)] == ["a", "b", "&lt;c&gt;", "d"]
    assert found[0][0] < found[2][0] == found[3][0] < found[1][0]
    assert found[0][1] == found[1][1] > found[3][1] > found[2][1]  # upwards
    assert (found[0][1] + found[2][1]) / 2 == pytest.approx(found[3][1], abs=0.1)
    assert found[1][2] == "var(--rule)"  # its value is not known
    assert [SCALE.index(found[i][2]) for i in (0, 3, 2)] == [0, 2, 5]
    assert svg.index('data-at="1"') < svg.index('data-at="0"') < svg.index('data-at="2"')  # large values on top


def test_a_map_of_one_point_or_equal_points_is_drawn():
    assert len(points(charts.point_map([[1.0, 2.0]], [np.nan], ["a"], ("", ""), "gap"))) == 1
    assert len(points(charts.point_map([[1.0, 2.0]] * 3, [1.0] * 3, ["a"] * 3, ("", ""), "gap"))) == 3


def test_bars_are_as_long_as_their_values():
    svg = charts.bars({"z2": 2.0, "z1": 1.0, "z3": 0.0}, "nats", faint=["z3"])
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', svg)]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert widths[2] == 1
    assert re.findall(r'fill-opacity="([\d.]+)"', svg) == ["0.9", "0.9", "0.3"]
    assert "2.00 nats" in svg


def test_a_histogram_shows_data_as_bars_and_models_as_lines():
    svg = charts.histogram([0, 1, 2], [0.25, 0.75], [[0.5, 0.5], [0.0, 1.0]])
    first, second = (float(tall) for tall in re.findall(r'<rect [^>]*height="([\d.]+)"', svg))
    assert second == pytest.approx(3 * first, abs=0.2)
    assert re.findall(r"var\(--series-\d\)", svg) == ["var(--series-1)", "var(--series-2)"]
    assert ">0<" in svg
    assert ">2<" in svg
    assert ">&lt;no&gt;<" in charts.histogram([0, 1, 2], [0.5, 0.5], [], ("<no>", "yes"))


@pytest.mark.parametrize("dimensions", [1, 2, 9])
def test_rank_histograms_have_a_panel_a_posterior_and_dimension(dimensions):
    counts = np.arange(4 * dimensions).reshape(4, dimensions)
    svg = charts.rank_histograms({"encoder": counts, "<refined>": 2 * counts}, (3, 9))
    shown = min(dimensions, charts.MOST_DIMENSIONS)
    assert svg.count('class="band"') == 2 * shown
    assert re.findall(">(z\\d)<", svg) == [f"z{k + 1}" for k in range(shown)]
    assert "&lt;refined&gt;" in svg
    bars = re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="[\d.]+" height="([\d.]+)"', svg)
    for row, most in enumerate([max(1.15 * counts[:, :shown].max(), 12.6), max(2.3 * counts[:, :shown].max(), 12.6)]):
        tall = [float(bar) for bar in bars[4 * shown * row : 4 * shown * (row + 1)]]
        expected = (1 + row) * counts[:, :shown].T.flatten() / most * 62
        assert tall == pytest.approx(expected.tolist(), abs=0.06)
