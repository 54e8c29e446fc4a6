"""`gpin compare`: its table, JSON and page, how it continues, and what it refuses."""

import json
from pathlib import Path

import pytest

from gpin.cli.base import _state_lines
from gpin.experiments import comparison
from gpin.experiments.execution import worker
from gpin.runs import open_run

TINY = ["--methods", "vae,gp", "--latent-dim", "1", "--epochs", 1, "--set", "architecture.width=8", "--samples", 25]
TINY += ["--set", "batch_size=32", "--executor", "serial"]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("comparisons")


@pytest.fixture(scope="module")
def said(gpin, files, out):
    """The command on a table with chosen columns, as a user sees it the first time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "REPEATS", 2)
        return gpin("compare", files / "mixed.csv", "--columns", "a,b,c", *TINY, "--seeds", 2, "--out", out)


def test_the_table_the_recommendation_and_where_everything_is(said, out):
    assert said.code == 0, said.err
    head, columns, *rows = said.out.splitlines()
    assert head == "mixed: 8 test instances and 2 trainings of each model"
    assert columns.split() == ["model", "log-likelihood", "minus", "the", "best", "training", "inference"]
    assert rows[0].startswith("vae d=1 ")
    assert rows[1].startswith("gp d=1 ")
    assert sum("—" in row for row in rows[:2]) == 1  # the best has no difference from itself
    page = Path(said.out.rsplit("page: ")[1].strip())
    assert page.parent.parent == out
    assert "<svg" in page.read_text()
    assert "trained on 64 rows of 3 columns and chosen on 8 others" in page.read_text()
    assert len(list((page.parent / "runs").iterdir())) == 4


def test_every_training_that_is_done_is_a_line_where_there_is_no_terminal(said):
    assert [line for line in said.err.splitlines() if line.startswith("done: ")] == [
        f"done: {name} d=1, seed {seed} ({number} of 4 done)"
        for number, (seed, name) in enumerate(((0, "vae"), (0, "gp"), (1, "vae"), (1, "gp")), 1)
    ]


def test_trainings_that_are_done_at_the_same_time_are_counted_one_by_one(capsys):
    update = _state_lines()
    for states in ("done running waiting running", "done done failed done"):
        update(dict(zip("abcd", states.split(), strict=True)))
    counts = ["done: b (2 of 4 done)", "failed: c (2 of 4 done)", "done: d (3 of 4 done)"]
    assert capsys.readouterr().err.splitlines() == counts


def test_the_same_command_trains_nothing_and_prints_the_same(gpin, files, said, out, monkeypatch):
    monkeypatch.setattr(worker, "run_job", lambda store, job: pytest.fail("trained again"))
    command = ["compare", files / "mixed.csv", "--columns", "a,b,c", *TINY, "--out", out]
    again = gpin(*command, "--seeds", 2)
    assert (again.code, again.out, again.err) == (0, said.out, "")
    record = json.loads(gpin(*command, "--seeds", 2, "--baseline", "vae", "--json").out)
    assert [one["model"] for one in record["models"]] == ["vae d=1", "gp d=1"]
    assert record["models"][1]["difference"]["to"] == "vae d=1"
    assert record["recommendation"] in " ".join(said.out.split())
    assert Path(record["report"]).is_file()


def test_an_interruption_says_what_is_done_and_a_failure_what_is_left(gpin, files, out, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "REPEATS", 2)
    command = ["compare", files / "mixed.csv", "--columns", "a,b,c", *TINY, "--out", out, "--seeds", 3]

    def interrupted(store, job):
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "run_job", interrupted)
    found = gpin(*command)
    assert found.code == 130
    assert "gpin: interrupted: 4 of 6 trainings are done in " in found.err
    assert found.err.endswith("run the same command to continue\n")

    def broken(store, job):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(worker, "run_job", broken)
    found = gpin(*command, "--report", tmp_path / "page.html")
    assert found.code == 1
    assert "gpin: 2 of 6 trainings are not done: run the same command to try them again" in found.err
    assert "gpin: gp d=1, seed 2 failed: No space left on device" in found.err
    assert "2 trainings of each model" in found.out  # what is done is shown
    assert (tmp_path / "page.html").is_file()


def test_columns_can_be_left_out_and_have_another_kind(gpin, files, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "REPEATS", 2)
    command = ["compare", files / "mixed.csv", *TINY, "--seeds", 1, "--out", tmp_path, "--json"]
    found = gpin(*command)
    assert found.one_line
    assert found.err.endswith("leave it out with --exclude name\n")
    found = gpin(*command, "--exclude", "name", "--kinds", "b=lognormal")
    assert found.code == 0, found.err
    run = open_run(json.loads(found.out)["models"][0]["best_run"])
    assert run.columns == ("a", "b", "c")
    assert [column.kind for column in run.scaling.columns] == ["gaussian", "lognormal", "gaussian"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--columns", "a,b", "--methods", "vae"], "give several --methods, or several --latent-dim"),
        (["--columns", "a,b", "--methods", "vae,"], "unknown method ''"),
        (["--columns", "a,b", "--methods", "vae,gq"], "unknown method 'gq'"),
        (["--columns", "a,b", "--latent-dim", "2;5"], "--latent-dim must be positive whole numbers such as 10,50"),
        (["--columns", "a,b", "--seeds", "0"], "seeds must be a whole number of at least 1, got 0"),
        (["--columns", "a,b", "--seeds", "x"], "seeds"),
        (["--columns", "a,b", "--set", "steps=2"], "write natural.steps"),
        (["--columns", "a,b", "--set", "epochs=1", "--epochs", "2"], "'epochs' is given twice"),
        (["--columns", "a,b", "--baseline", "sa"], "--baseline must be one of the methods vae, gp, natural, got 'sa'"),
        (["--columns", "a,b", "--report", "page.txt"], "its name must end in .html"),
        (["--columns", "a,b", "--slurm", "a=1"], "--slurm contains options for Slurm: it requires --executor slurm"),
        (["--columns", "a,b", "--executor", "serial", "--workers", "3"], "--workers must be 1, got 3"),
        (["--columns", "a,b", "--size", "3"], "--size is an option of folders of pictures"),
        (["--exclude", "nam"], "has no column 'nam': did you mean 'name'?"),
        (["--exclude", "name", "--kinds", "a=gausian"], "a=gausian"),
        (["another.csv"], "takes no further arguments"),
    ],
)
def test_wrong_use_is_one_sentence_and_leaves_nothing(gpin, files, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    found = gpin("compare", files / "mixed.csv", *options)
    assert found.code == 2
    assert found.one_line, found.err
    assert words in found.err
    assert list(tmp_path.iterdir()) == []
