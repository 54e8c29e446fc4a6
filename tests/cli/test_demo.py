"""`gpin demo`: what is printed, with colours and without."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from gpin.cli.demo_view import half_blocks, show
from gpin.runs.demo import run_demo
from gpin.runs.report.comparison import relation, score_rows, verdict
from gpin.runs.report.page import lead


@pytest.fixture(scope="module")
def command(gpin, tmp_path_factory):
    """What the command says as JSON, and the demo that it ran, with few samples."""
    ran = []

    def run_small(*arguments, **options):
        ran.append(run_demo(*arguments, samples=25, **options))
        return ran[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gpin.runs.demo.run_demo", run_small)
        out = tmp_path_factory.mktemp("demo") / "out"
        said = gpin("demo", "--out", out, "--epochs", "1", "--seed", "3", "--json")
    return said, ran[0]


@pytest.fixture
def demo(command):
    return command[1]


def shown(demo, width=80, colour=False):
    """What the terminal gets."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        highlight=False,
    )
    show(demo, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_terminal_shows_table_digits_and_report(demo, width):
    text = shown(demo, width)
    assert any(line.split() == ["vae", "gp"] for line in text.splitlines())
    words = " ".join(text.split())
    for label, *cells in score_rows(demo.comparison):
        lines = [line.split() for line in text.splitlines() if all(cell in line for cell in cells)]
        assert lines
        if width >= 80:  # a narrower terminal may break the labels
            assert [*label.partition("\n")[0].split(), *" ".join(cells).split()] in lines
    for paragraph in lead(demo.comparison):
        assert paragraph in words
    assert verdict(demo.comparison) in words
    assert relation(demo.comparison, demo.gp) in words
    assert "infers best" in words
    assert "infers worst" in words
    assert str(demo.folder / "report.html") in text
    assert all(cell_len(line) <= width for line in text.splitlines() if str(demo.folder) not in line)
    assert "\x1b" not in text


def test_a_colour_terminal_gets_shades(demo, monkeypatch):
    assert "\x1b[38;2;" in shown(demo, colour=True)
    monkeypatch.setenv("NO_COLOR", "1")
    without = shown(demo, colour=True)
    assert "\x1b[38;2;" not in without
    assert "█" in without


def test_a_folder_may_have_any_name(demo):
    assert "[bold]:dog:/report.html" in shown(replace(demo, folder=Path("[bold]:dog:")))


def test_half_blocks_without_colour():
    image = np.array([[[0, 1, 0, 1], [0, 0, 1, 1]]])
    assert [line.plain for line in half_blocks(image, coloured=False)] == [" ▀▄█"]
    assert [line.plain for line in half_blocks(np.ones((2, 2, 1)), coloured=False, gap="|")] == ["█|█"]


def test_half_blocks_in_colour():
    (line,) = half_blocks(np.array([[[0.0], [1.0]]]), coloured=True)
    assert line.plain == "▀"
    assert str(line.spans[0].style) == "#000000 on #ffffff"


def test_the_command_prints_json_and_no_bar(command):
    said, demo = command
    assert (said.code, said.err) == (0, "")
    record = json.loads(said.out)
    assert (record["settings"]["epochs"], record["settings"]["seed"]) == (1, 3)
    assert record == json.loads((demo.folder / "results.json").read_text())


def test_the_command_shows_the_demo(gpin, demo, tmp_path, monkeypatch):
    monkeypatch.setattr("gpin.runs.demo.run_demo", lambda *_, **__: demo)
    assert gpin("demo", "--out", tmp_path).out.endswith("report.html\n")
