"""The tables in `results/` are those of the stores beside them."""

import importlib
import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "results"

if not (RESULTS / "desk").is_dir():
    pytest.skip("there is no store of results here, as in a source distribution", allow_module_level=True)


SCRIPT, EXCERPTS = map(importlib.import_module, ("make_results", "excerpts"))


def test_every_committed_table_is_made_by_the_script():
    found = {f"{path.parent.name}/{path.stem}" for path in RESULTS.glob("*/*.md")}
    assert found == set(SCRIPT.TABLES)


@pytest.mark.parametrize("name", SCRIPT.TABLES)
def test_a_table_is_made_from_the_store_byte_for_byte(name):
    study = SCRIPT.study(name)
    assert study.text("markdown").encode() == (RESULTS / f"{name}.md").read_bytes()
    assert study.results.done == len(study.entries)


def test_the_tables_of_the_pages_are_made_from_the_store():
    texts = [page.read_text() for page in SCRIPT.PAGES]
    assert {name for text in texts for _, name, _ in EXCERPTS.BLOCK.findall(text)} == set(EXCERPTS.TABLES)
    assert [EXCERPTS.rendered(text, SCRIPT.study) for text in texts] == texts


def test_every_committed_figure_is_made_by_the_script():
    found = {f"{path.parent.name}/{path.stem}" for path in RESULTS.glob("*/*.png")}
    assert found == set(SCRIPT.FIGURES)


@pytest.mark.parametrize("name", SCRIPT.FIGURES)
def test_a_figure_is_made_from_the_store(name):
    table, row = SCRIPT.FIGURES[name]
    assert SCRIPT.study(table).figure(row).axes
    assert (RESULTS / f"{name}.png").is_file()


def test_every_job_of_the_store_is_found_by_its_identity():
    """A changed identity would have every run trained again."""
    from gpin.experiments.execution.jobs import Job

    folders = sorted(RESULTS.glob("*/*/job.json"))
    assert len(folders) > 200
    for path in folders:
        record = json.loads(path.read_text())
        job = Job.parse({name: record[name] for name in ("data", "settings", "scoring")}, str(path))
        assert job.identity == path.parent.name
