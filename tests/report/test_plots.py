"""The drawn figures, by what is in them."""

import re

import matplotlib as mpl
import numpy as np
import pytest

from gpin.report import plots
from gpin.report.style import DARK, LIGHT

LINES = {"VAE": {"validation": [1, 2, 3], "training": [1, 3, 5]}, "GP <x>": {"validation": [0, 1, 2]}}


def test_curves_have_a_line_a_method_and_kind():
    figure = plots.curves(LINES, "epoch", "ELBO", marks={"VAE": 3})
    (axes,) = figure.axes
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["VAE, validation", "VAE, training", "GP <x>, validation"]
    colours = [line.get_color() for line in axes.get_lines()]
    assert colours == [LIGHT["series-1"]] * 3 + [LIGHT["series-2"]]  # two curves and a mark, then one


def test_the_first_steps_do_not_flatten_the_curves():
    (axes,) = plots.curves({"VAE": {"validation": [-1e6, *range(50)]}}, "epoch", "ELBO").axes
    assert axes.get_ylim()[0] > -10


@pytest.mark.parametrize("values", [[1.0], [2.0, 2.0], [float("nan"), 1.0, 2.0]])
def test_short_flat_and_broken_curves_are_drawn(values):
    assert plots.png(plots.curves({"VAE": {"validation": values}}, "epoch", "ELBO"))


def test_no_two_progress_curves_look_alike():
    lines = {f"method {i}": ([1.0, 2.0], [0.1, 0.2]) for i in range(12)}
    for axes in plots.progress_curves(lines, {}).axes:
        looks = {(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}
        assert len(looks) == len(lines)


def test_a_scatter_has_its_points_and_medians():
    x = np.linspace(1, 10, 100)
    (axes,) = plots.scatter(x, x**2, "x", "y", index=1, log_x=True).axes
    assert len(axes.collections[0].get_offsets()) == 100
    medians = axes.get_lines()[0].get_xydata()
    assert len(medians) == 10
    assert (np.diff(medians[:, 1]) > 0).all()
    (few,) = plots.scatter(x[:5], x[:5], "x", "y").axes
    assert not few.get_lines()


def test_coverage_curves_have_a_line_a_posterior_and_the_diagonal():
    levels = [0.0, 0.5, 1.0]
    lines = {"VAE": {"encoder": [0.0, 0.3, 1.0], "refined": levels}, "GP": {"encoder": levels}}
    (axes,) = plots.coverage_curves(lines, levels).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "VAE, encoder",
        "VAE, refined",
        "GP, encoder",
    ]
    diagonal, encoder, refined, other = axes.get_lines()
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]
    assert encoder.get_xydata().tolist() == [[0, 0], [0.5, 0.3], [1, 1]]
    assert [line.get_color() for line in (encoder, refined, other)] == [LIGHT[f"series-{i}"] for i in (1, 1, 2)]
    assert encoder.get_linestyle() != refined.get_linestyle()


def test_a_strip_is_ordered_and_says_the_values():
    values = np.array([0.3, 0.1, 0.2, 0.4])
    images = np.zeros((4, 1, 8, 8))
    figure = plots.ordered_strip(images, values, images, columns=2, rows=2, title="title")
    assert [axes.get_title() for axes in figure.axes] == ["0.10", "0.20", "0.30", "0.40"]
    assert figure.get_suptitle() == "title"
    assert figure.axes[0].images[0].get_array().shape == (17, 8, 4)


def test_an_svg_follows_the_theme_and_escapes():
    text = plots.svg(plots.curves(LINES, "epoch", "ELBO"))
    assert text.startswith("<svg")
    assert "var(--series-1)" in text
    assert "var(--series-2)" in text
    assert not any(colour in text for colour in LIGHT.values())
    assert "<metadata>" not in text
    assert "GP &lt;x&gt;" in text
    assert not re.search(r'href="(?!#)', text)


def test_both_themes_have_the_same_colours():
    assert LIGHT.keys() == DARK.keys()
    assert [plots.series(i) for i in range(9)] == [LIGHT[f"series-{i}"] for i in (*range(1, 9), 1)]


def test_drawing_leaves_matplotlib_as_it_was():
    before = dict(mpl.rcParams)
    plots.png(plots.curves(LINES, "epoch", "ELBO"))
    plots.svg(plots.scatter([1, 2], [1, 2], "x", "y"))
    assert dict(mpl.rcParams) == before
    assert "matplotlib.pyplot" not in plots.__dict__


def test_long_names_of_methods_leave_room_for_the_curves():
    """Matplotlib warns where the legend takes it all, and a warning fails the test."""
    name = "vae, architecture.kind=residual, architecture.blocks=3, likelihood.kind=heteroscedastic"
    lines = {f"{name}, seed={seed}": {"validation": [1.0, 2.0], "training": [1.0, 3.0]} for seed in range(4)}
    figure = plots.curves(lines, "epoch", "ELBO")
    box = figure.axes[0].get_position()
    assert box.width > 0.7
    assert box.height * figure.get_size_inches()[1] > 2


def test_stacked_bars_add_up_and_negative_parts_go_left():
    groups = {
        "vae": {"test": {"a": 3.0, "b": 1.0}, "train": {"a": 2.0, "b": 1.0}},
        "sa": {"test": {"a": -0.5, "b": 2.0}},
    }
    figure = plots.stacked_bars(groups, "nats")
    (axes,) = figure.axes
    spans = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert spans == [(0, 3), (3, 1), (0, 2), (2, 1), (0, -0.5), (0, 2)]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["test", "train", "test"]
    assert {"4.0", "3.0", "1.5", "vae", "sa"} <= {text.get_text() for text in axes.texts}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert len({bar.get_facecolor()[:3] for bar in axes.patches}) == 2
