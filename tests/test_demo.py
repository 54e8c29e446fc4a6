"""The demo from end to end, on few digits and epochs: results, terminal, report."""

import io
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import gpin
from gpin import demo
from gpin.cli import main

SMALL = demo.Settings(epochs=2, samples=30, validation=40, test=60)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return demo.run(tmp_path_factory.mktemp("demo") / "out", SMALL)


@pytest.fixture(scope="module")
def html(result):
    return (result.folder / "report.html").read_text()


def shown(result, width=80, colour=False):
    """What the terminal gets."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        highlight=False,
    )
    demo.show(result, console)
    return console.file.getvalue()


# Data and results ------------------------------------------------------------------------------------


def test_the_split_is_seeded_and_has_no_overlap():
    first, again = demo.load_digits(demo.Settings()), demo.load_digits(demo.Settings())
    other = demo.load_digits(demo.Settings(seed=1))
    parts = (first.train, first.validation, first.test)
    assert [len(part) for part in parts] == [1197, 200, 400]
    assert all(part.shape[1:] == (1, 8, 8) and part.min() == 0 and part.max() == 1 for part in parts)
    assert torch.equal(first.test, again.test)
    assert not torch.equal(first.test, other.test)
    assert sorted(set(first.labels)) == list(range(10))
    everything = torch.cat(parts).flatten(1)
    assert len(everything.unique(dim=0)) == len(everything)


def test_all_files_are_there(result):
    names = {str(path.relative_to(result.folder)) for path in result.folder.rglob("*") if path.is_file()}
    figures = {"curves", "gap", "reconstructions", "samples-gp", "samples-vae", "uncertainty"}
    models = {f"models/{name}/{file}" for name in ("vae", "gp") for file in ("config.json", "model.safetensors")}
    assert names == {"report.html", "results.json", *(f"figures/{name}.png" for name in figures), *models}


def test_the_saved_models_are_the_ones_reported(result):
    for contender in result.contenders.values():
        again = gpin.load(result.folder / "models" / contender.name)
        assert torch.equal(again.reconstruct(result.digits.test), contender.vae.reconstruct(result.digits.test))


def test_the_record_is_json_and_agrees_with_the_models(result):
    record = json.loads((result.folder / "results.json").read_text())
    assert record == json.loads(json.dumps(result.record(), allow_nan=False))
    assert set(record["methods"]) == {"vae", "gp"}
    vae, gp = record["methods"]["vae"], record["methods"]["gp"]
    assert vae["inference_time_ratio"] == 1
    assert vae["elbo_weight_kl"] == 0 < gp["elbo_weight_kl"]
    for proposal in ("encoder", "refined"):
        scores = [method["log_likelihood"][proposal] for method in (vae, gp)]
        assert [score["samples"] for score in scores] == [30, 30]
        assert gp["elbo"] <= scores[1]["mean"]
        difference = record["difference"][proposal]
        assert difference["mean"] == pytest.approx(scores[1]["mean"] - scores[0]["mean"], abs=1e-3)
        assert difference["stderr"] < scores[1]["stderr"]  # paired: the digits' own spread cancels
    certain, uncertain = record["uncertainty"]["most_certain"], record["uncertainty"]["least_certain"]
    assert [d["uncertainty"] for d in certain] == sorted(d["uncertainty"] for d in certain)
    assert max(d["uncertainty"] for d in certain) < min(d["uncertainty"] for d in uncertain)
    assert all(d["label"] == result.digits.labels[d["index"]] for d in certain + uncertain)


def test_the_same_seed_gives_the_same_numbers_and_leaves_torch_alone(result, tmp_path):
    torch.manual_seed(123)
    expected, threads = torch.rand(1), torch.get_num_threads()
    torch.manual_seed(123)
    again = demo.run(tmp_path, SMALL)
    assert torch.equal(torch.rand(1), expected)
    assert torch.get_num_threads() == threads
    for name, contender in result.contenders.items():
        for proposal, score in contender.scores.items():
            assert torch.equal(again.contenders[name].scores[proposal].values, score.values)
    assert torch.equal(again.uncertainty, result.uncertainty)


def test_the_models_take_turns_when_timed(monkeypatch):
    calls = []

    class Fake:
        def __init__(self, name):
            self.name = name

        def encode(self, x):
            calls.append(self.name)

    times = demo.encoding_times({"a": Fake("a"), "b": Fake("b")}, torch.zeros(1), repeats=3, calls=2)
    assert "".join(calls) == "aabb" * 4
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}


def test_the_correlation_is_spearmans():
    x = torch.arange(100.0)
    assert demo.Correlation.of(x, x**3).rho == pytest.approx(1)
    mixed = demo.Correlation.of(x, torch.randn(100))
    assert abs(mixed.rho) < 4 * mixed.stderr
    assert mixed.stderr == pytest.approx(1 / math.sqrt(97), rel=0.1)


# Honest words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "stderr", "words"),
    [
        (1.0, 0.2, "+1.00 ± 0.20 nats, in favour of the GP model (5.0 standard errors)."),
        (-1.0, 0.2, "−1.00 ± 0.20 nats, in favour of the plain VAE (5.0 standard errors)."),
        (0.3, 0.2, "+0.30 ± 0.20 nats, not significant (1.5 standard errors)."),
        (-0.3, 0.2, "−0.30 ± 0.20 nats, not significant (1.5 standard errors)."),
        (0.0, 0.0, "+0.00 ± 0.00 nats, not significant (0.0 standard errors)."),
        (math.nan, math.nan, "+nan ± nan nats, not significant (0.0 standard errors)."),
    ],
)
def test_the_verdict_claims_no_more_than_is_shown(mean, stderr, words):
    assert demo.verdict(mean, stderr) == words


def test_the_verdict_is_about_both_proposals(result):
    for proposal in ("encoder", "refined"):
        assert demo.verdict(*result.difference(proposal)) in result.verdict()
    assert "over 60 test digits" in result.verdict()
    assert "another seed can turn the sign" in result.verdict()


def test_a_useless_uncertainty_is_called_so(result):
    assert "no relation is shown" in replace(result, uncertainty=torch.randn(60)).relation()
    assert "strongly higher where the gap is larger" in replace(result, uncertainty=result.gap).relation()
    assert "strongly lower where the gap is larger" in replace(result, uncertainty=-result.gap).relation()


def test_unreliable_estimates_are_called_so(result):
    assert "lower bounds" in with_khat(result, 0.8).caution()
    assert "up to 100% of the digits" in with_khat(result, 0.8).caution()
    assert "can be trusted" in with_khat(result, 0.1).caution()


def with_khat(result, khat):
    """The same result with that k̂ for every digit."""
    contenders = {}
    for name, contender in result.contenders.items():
        scores = {p: replace(score, khat=torch.full((60,), khat)) for p, score in contender.scores.items()}
        contenders[name] = replace(contender, scores=scores)
    return replace(result, contenders=contenders)


# The terminal ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_table_digits_and_report(result, width):
    text = shown(result, width)
    header = next(line for line in text.splitlines() if "VAE" in line and "better" in line)
    assert header.split() == ["VAE", "GP", "better"]
    for row in result.rows():
        lines = [line for line in text.splitlines() if line.startswith(row.label)]
        assert any(all(cell in line for cell in row.cells) for line in lines)
    words = " ".join(text.split())
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
    assert [line.plain for line in demo.half_blocks(image, coloured=False)] == [" ▀▄█"]
    assert [line.plain for line in demo.half_blocks(np.ones((2, 2, 1)), coloured=False, gap="|")] == ["█|█"]


def test_half_blocks_in_colour():
    (line,) = demo.half_blocks(np.array([[[0.0], [1.0]]]), coloured=True)
    assert line.plain == "▀"
    assert str(line.spans[0].style) == "#000000 on #ffffff"


def test_the_command_prints_json_and_no_bar(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "Settings", lambda **given: replace(SMALL, **given))
    assert main(["demo", "--out", str(tmp_path), "--epochs", "1", "--seed", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    record = json.loads(out)
    assert (record["settings"]["epochs"], record["settings"]["seed"]) == (1, 3)
    assert (tmp_path / "report.html").is_file()


@pytest.mark.slow
def test_the_command_as_it_comes(capsys, tmp_path):
    assert main(["demo", "--out", str(tmp_path), "--epochs", "3"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "400 to test" in out
    assert out.endswith("report.html\n")


# The report ------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Every element of a page with its attributes, and whether tags match."""

    VOID = frozenset({"meta", "link", "img"})

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_report_holds_every_part(result, html):
    page = Elements(html)
    assert page.open == []
    assert re.findall("<h2[^>]*>(.*?)</h2>", html) == [
        "Which model is better?",
        "How they learnt",
        "Reconstructions",
        "Samples",
        "What the GP encoder is sure of",
        "Does uncertainty find the difficult digits?",
        "Settings",
    ]
    images = [attributes for tag, attributes in page.found if tag == "img"]
    assert len(images) == 3 + 2 + 2 * 36  # reconstructions, samples, tiles with two images each
    assert sum(tag == "svg" for tag, _ in page.found) == 2
    for row in result.rows():
        assert all(f"<td>{cell}</td>" in html for cell in row.cells)
    assert f"Spearman correlation {result.gap_by_uncertainty}" in html
    for name, number in demo.versions().items():
        assert f"{name} {number}" in html


def test_the_report_needs_nothing_from_outside(html):
    for tag, attributes in Elements(html).found:
        assert tag != "script"
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_the_report_names_no_path_of_the_machine(result, html):
    assert str(result.folder) not in html
    assert str(Path.home()) not in html


def test_the_readme_picture_is_small(result):
    png = (result.folder / "figures" / "uncertainty.png").read_bytes()
    assert len(png) < 150_000
    assert int.from_bytes(png[16:20], "big") == 1000  # the width, in PNG's header


PROBE = """<script>addEventListener("load", () => {
  const root = document.documentElement;
  root.dataset.probe = JSON.stringify({
    images: [...document.images].map(image => image.naturalWidth),
    drawings: [...document.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect().width),
    outside: performance.getEntriesByType("resource").map(e => e.name).filter(name => !name.startsWith("data:")),
    sideways: root.scrollWidth - root.clientWidth,
  });
});</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed, so the report cannot be opened")
@pytest.mark.parametrize("width", [1100, 390])
def test_a_browser_shows_the_report(html, tmp_path, width):
    page = tmp_path / "report.html"
    page.write_text(html.replace("</body>", PROBE + "</body>"))
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *quiet, "--enable-logging=stderr", "--v=0"),
            *(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr
    probe = re.search("data-probe='([^']*)'|data-probe=\"([^\"]*)\"", done.stdout)
    assert probe, done.stderr
    found = json.loads((probe[1] or probe[2]).replace("&quot;", '"'))
    assert len(found["images"]) == html.count("<img")
    assert min(found["images"]) >= 8
    assert len(found["drawings"]) == 2
    assert min(found["drawings"]) > 200
    assert found["outside"] == []
    assert found["sideways"] <= 0
