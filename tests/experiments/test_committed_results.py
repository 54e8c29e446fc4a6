"""The tables in `results/` are those of the stores beside them."""

import importlib.util
import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "results"

if not (RESULTS / "desk").is_dir():
    pytest.skip("there is no store of results here, as in a source distribution", allow_module_level=True)


def _script():
    spec = importlib.util.spec_from_file_location("make_results", RESULTS / "make_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()


def test_every_committed_table_is_made_by_the_script():
    found = {f"{path.parent.name}/{path.stem}" for path in RESULTS.glob("*/*.md")}
    assert found == set(SCRIPT.TABLES)


@pytest.mark.parametrize("name", SCRIPT.TABLES)
def test_a_table_is_made_from_the_store_byte_for_byte(name):
    study = SCRIPT.study(name)
    assert study.text("markdown").encode() == (RESULTS / f"{name}.md").read_bytes()
    assert study.results.done == len(study.entries)


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
