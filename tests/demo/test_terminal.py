"""What is printed, with colours and without."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from gpin.demo import show
from gpin.demo.comparison import LEAD
from gpin.demo.terminal import half_blocks


def shown(result, width=80, colour=False):
    """What the terminal gets."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        highlight=False,
    )
    show(result, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_terminal_shows_table_digits_and_report(result, width):
    text = shown(result, width)
    header = next(line for line in text.splitlines() if line.split()[:2] == ["VAE", "GP"])
    assert header.split()[2:] == (["better"] if width > 60 else [])
    for row in result.rows():
        lines = [line for line in text.splitlines() if line.startswith(row.label)]
        assert any(all(cell in line for cell in row.cells) for line in lines)
    words = " ".join(text.split())
    assert LEAD in words
    assert "proposals fitted to each digit: scores the model, not the encoder" in words
    assert result.verdict() in words
    assert result.relation() in words
    assert "most certain of" in words
    assert "least certain of" in words
    assert str(result.folder / "report.html") in text
    path_line = str(result.folder)
    assert all(len(line) <= width for line in text.splitlines() if path_line not in line)
    assert "\x1b" not in text


def test_a_colour_terminal_gets_shades(result, monkeypatch):
    assert "\x1b[38;2;" in shown(result, colour=True)
    monkeypatch.setenv("NO_COLOR", "1")
    without = shown(result, colour=True)
    assert "\x1b[38;2;" not in without
    assert "█" in without


def test_a_folder_may_have_any_name(result):
    assert "[bold]:dog:/report.html" in shown(replace(result, folder=Path("[bold]:dog:")))


def test_half_blocks_without_colour():
    image = np.array([[[0, 1, 0, 1], [0, 0, 1, 1]]])
    assert [line.plain for line in half_blocks(image, coloured=False)] == [" ▀▄█"]
    assert [line.plain for line in half_blocks(np.ones((2, 2, 1)), coloured=False, gap="|")] == ["█|█"]


def test_half_blocks_in_colour():
    (line,) = half_blocks(np.array([[[0.0], [1.0]]]), coloured=True)
    assert line.plain == "▀"
    assert str(line.spans[0].style) == "#000000 on #ffffff"
