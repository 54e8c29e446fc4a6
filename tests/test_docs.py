"""Every command and every line of Python in the tutorials, the how-tos and the page of `natural` runs, in order."""

import contextlib
import glob
import io
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from gpin.cli import main
from gpin.data import FORMATS
from gpin.evaluation.scores import SCORES
from gpin.inference import METHODS
from gpin.likelihoods import LIKELIHOODS
from gpin.networks import ARCHITECTURES

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [
    *(DOCS / name for name in ("getting-started.md", "natural.md", "calibration.md")),
    *sorted([*(DOCS / "tutorials").glob("*.md"), *(DOCS / "how-to").glob("*.md")]),
]
BLOCK = re.compile(r"^```(python|sh|sh fails|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def command(line):
    """The words of a command after `gpin`, with `*` expanded as a shell would."""
    words = shlex.split(line)
    assert words[0] == "gpin"
    return [found for word in words[1:] for found in (glob.glob(word) if "*" in word else [word])]


@pytest.fixture(autouse=True)
def registries():
    """What a page registers is gone after it."""
    with contextlib.ExitStack() as stack:
        for registry in (METHODS, LIKELIHOODS, ARCHITECTURES, FORMATS, SCORES):
            stack.enter_context(patch.dict(registry))
        yield


@pytest.mark.pages
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    text = page.read_text()
    blocks = BLOCK.findall(text)
    # Blocks without a language are for reading: several machines, or hours.
    assert len(blocks) == text.count("\n```") // 2 - len(re.findall("\n```\n(?:torchrun|gpin)", text))
    said = io.StringIO()
    for kind, block in blocks:
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block, page.name, "exec"), names)
            continue
        if kind == "text":  # some of the lines that the commands before have printed; … stands for anything
            for line in block.strip().splitlines():
                pattern = re.escape(line).replace("…", ".*")
                assert any(re.fullmatch(pattern, found) for found in said.getvalue().splitlines()), line
            continue
        said = io.StringIO()
        for line in block.strip().splitlines():
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = main(command(line))
            assert code == (2 if "fails" in kind else 0), f"{line}: {said.getvalue()}"


def test_links_between_pages_lead_somewhere():
    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


SCRIPTS = [
    path
    for folder in ("benchmarks", "benchmarks/judges", "scripts", "results")
    for path in sorted((DOCS.parent / folder).glob("*.py"))
    if path.name != "training_worker.py"  # which runs in an environment of its own
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_import_what_exists(script, monkeypatch):
    monkeypatch.syspath_prepend(script.parent)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # which a benchmark sets for itself
    assert runpy.run_path(str(script), run_name="imported")["__doc__"]


def test_every_table_of_costs_is_the_measured_one():
    subprocess.run([sys.executable, DOCS.parent / "benchmarks" / "tables.py", "--check"], check=True)
