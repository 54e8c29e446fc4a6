"""`gpin experiment`: run, status, table, and what they refuse."""

import json
from html.parser import HTMLParser

import pytest

from gpin.cli.experiment import slurm_options
from gpin.experiments.execution.executors import EXECUTORS
from gpin.experiments.execution.jobs import Scoring
from gpin.experiments.execution.store import Store
from gpin.experiments.execution.worker import run_jobs
from gpin.experiments.protocols import EXPERIMENTS, PROTOCOLS, Protocol

SMALL = Protocol(
    name="desk",
    epochs=1,
    batch_size=50,
    limit=100,
    validation_limit=50,
    splits=2,
    initialisations=1,
    scoring=Scoring(samples=25, instances=10),
)
ROWS = ["--rows", "vae,gp", "--latent-dim", "2"]


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path):
    monkeypatch.setitem(PROTOCOLS, "desk", SMALL)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def here(monkeypatch):
    """Jobs are done in this process, without the seconds that a worker takes to start; returns what was asked for."""
    asked = []

    def run(store, jobs, workers, threads=1, watch=lambda: None, **options):
        asked.append({"workers": workers, "threads": threads, **options})
        watch()
        run_jobs(store, jobs)

    for name in EXECUTORS:
        monkeypatch.setitem(EXECUTORS, name, run)
    return asked


def jobs(rows=("vae", "gp")):
    return [entry.job for entry in EXPERIMENTS["digits"].entries(SMALL, [2], rows)]


def test_run_then_status_then_table(gpin, tmp_path):
    """With a worker of its own, as a user has it; and a file in the folder one is in is nobody's module."""
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    options = ["--rows", "vae", "--latent-dim", "2", "--store", "my store"]
    before = gpin("experiment", "status", "digits", *options)
    assert (before.code, before.err) == (0, "")
    assert before.out == "digits, desk protocol, in my store: 0 done, 0 running, 0 failed, 2 waiting\n"
    first = gpin("experiment", "run", "digits", *options, "--workers", "1")
    assert (first.code, first.err) == (0, "")
    table = "gpin experiment table digits --store 'my store' --latent-dim 2 --rows vae"
    assert first.out == f"2 of 2 runs done in my store; next: {table}\n"
    paths = [path for path in (tmp_path / "my store").rglob("*") if path.is_file() and "plans" not in path.parts]
    written = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}
    again = gpin("experiment", "run", "digits", *options, "--json")
    assert (again.code, again.err) == (0, "")
    assert json.loads(again.out) == {"runs": 2, "done": 2, "failed": {}, "store": "my store"}
    assert written == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}
    status = gpin("experiment", "status", "digits", *options, "--json")
    states = {f"digits d=2 vae, split {split}, start 0": "done" for split in range(2)}
    assert json.loads(status.out) == {"store": "my store", "runs": states}
    table = gpin("experiment", "table", "digits", *options)
    assert (table.code, table.err) == (0, "")
    assert "scikit-learn's digits, d = 2" in table.out
    assert "VAE" in table.out


def test_a_table_in_every_format(gpin, here, tmp_path):
    done = gpin("experiment", "run", "digits", *ROWS)
    assert (done.code, done.err) == (0, "")
    assert (
        done.out == "4 of 4 runs done in experiments; next: gpin experiment table digits --latent-dim 2 --rows vae,gp\n"
    )
    assert here[0]["threads"] == 1
    assert here[0]["workers"] >= 1
    to_file = gpin("experiment", "table", "digits", *ROWS, "--format", "markdown", "-o", "new/digits.md")
    created = "gpin: the folder new did not exist and was created\n"
    assert to_file == (0, "wrote new/digits.md\n", created)
    markdown = (tmp_path / "new" / "digits.md").read_text()
    assert markdown.startswith("### scikit-learn's digits, d = 2\n")
    assert "| GPVAE |" in markdown
    printed = gpin("experiment", "table", "digits", *ROWS, "--format", "markdown")
    assert printed.out == markdown + "\n"
    assert r"\begin{tabular}" in gpin("experiment", "table", "digits", *ROWS, "--format", "latex").out
    page = HTMLParser()
    page.feed(gpin("experiment", "table", "digits", *ROWS, "--format", "html").out)
    assert gpin("experiment", "table", "digits", *ROWS, "-o", "plain.md").code == 0
    assert (tmp_path / "plain.md").read_text() == markdown
    assert gpin("experiment", "table", "digits", *ROWS, "-o", "plain.tex").code == 0
    assert r"\begin{tabular}" in (tmp_path / "plain.tex").read_text()
    for wrong in (["-o", "plain.txt"], ["-o", "plain.tex", "--format", "html"]):
        said = gpin("experiment", "table", "digits", *ROWS, *wrong)
        assert (said.code, said.one_line) == (2, True)


def test_a_table_as_numbers_for_a_script(gpin):
    store = Store("experiments")
    run_jobs(store, jobs())
    record = json.loads(gpin("experiment", "table", "digits", *ROWS, "--json").out)
    assert (record["experiment"], record["protocol"], record["runs"], record["done"]) == ("digits", "desk", 4, 4)
    (column,) = record["columns"]
    vae, gp = column["rows"]
    assert (column["data"], column["latent_dim"], vae["row"], gp["row"]) == ("digits", 2, "vae", "gp")
    assert vae["differences"] == {}
    ahead = gp["differences"]["refined"]["instances"]["mean"]
    assert ahead == pytest.approx(gp["refined"]["mean"] - vae["refined"]["mean"])
    assert vae["by_uncertainty"] is None
    assert record["times"] is None
    said = gpin("experiment", "table", "digits", *ROWS, "--json", "-o", "digits.md")
    assert (said.code, said.one_line) == (2, True)


def test_the_status_of_what_is_only_timed(gpin):
    said = gpin("experiment", "status", "inference-time")
    assert said.out == "inference-time, desk protocol, in experiments: not yet measured\n"
    assert json.loads(gpin("experiment", "status", "inference-time", "--json").out)["measured"] is False


def test_results_of_other_images_are_not_taken_for_these(gpin, here, monkeypatch):
    run_jobs(Store("experiments"), jobs())
    assert gpin("experiment", "run", "digits", *ROWS).code == 0
    monkeypatch.setattr("gpin.data.sources.Source.fingerprint", lambda self: "another")
    said = gpin("experiment", "run", "digits", *ROWS)
    assert (said.code, said.one_line) == (2, True)
    assert "results for other images under the name digits" in said.err


def test_what_is_only_timed_is_measured_here_with_the_threads_asked_for(gpin, monkeypatch):
    import gpin.experiments.execution.timing as timing
    import gpin.experiments.study as study

    asked = []

    def measure(experiment, protocol, rows, count, tell):
        asked.append((rows, count))
        column = {"data": "mnist", "latent_dim": 50, "rows": {row: {} for row in rows}}
        return {"what": timing._what(experiment, rows), "columns": [column], "threads": count}

    monkeypatch.setattr(study, "measure_times", measure)
    for count in ("1", "1", "2"):
        assert gpin("experiment", "run", "inference-time", "--threads", count).code == 0
    rows = EXPERIMENTS["inference-time"].rows["desk"]
    assert asked == [(rows, 1), (rows, 2)]  # what was measured is measured again only with other threads
    for some in ("vae,gp", "vlae", "vlae"):
        assert gpin("experiment", "run", "inference-time", "--rows", some, "--threads", "2").code == 0
    assert asked[2:] == [(("vlae",), 2)]  # the first two are among those that were measured
    for flag, value in (("--executor", "ray"), ("--workers", "4"), ("--splits", "1"), ("--threads", "0")):
        said = gpin("experiment", "run", "inference-time", flag, value)
        assert (said.code, said.one_line) == (2, True)
        assert flag[2:] in said.err
    for command in ("table", "status"):
        said = gpin("experiment", command, "inference-time", "--latent-dim", "10")
        assert (said.code, said.one_line) == (2, True)
        assert "it takes no --latent-dim" in said.err


def test_a_table_in_a_pipe_is_as_wide_as_it_is(gpin):
    run_jobs(Store("experiments"), jobs())
    said = gpin("experiment", "table", "digits", *ROWS)
    (head,) = [line for line in said.out.splitlines() if line.split()[:3] == ["amortization", "gap", "ELBO"]]
    assert (head.split()[-1], len(head) > 80) == ("size", True)


def test_a_table_of_some_runs_says_that_it_is_one(gpin):
    store = Store("experiments")
    run_jobs(store, jobs()[:3])
    said = gpin("experiment", "table", "digits", *ROWS, "--format", "markdown")
    assert said.code == 0
    assert said.err == "gpin: 3 of 4 runs are done; the rest is missing from the table\n"
    assert "| GPVAE (1 of 2 runs) |" in said.out


def test_splits_and_initialisations_may_be_others_than_the_protocols(gpin, here):
    some = ["digits", "--rows", "vae", "--latent-dim", "2"]
    assert gpin("experiment", "run", *some).code == 0
    more = [*some, "--splits", "3", "--initialisations", "2"]
    states = json.loads(gpin("experiment", "status", *more, "--json").out)["runs"]
    done = {f"digits d=2 vae, split {split}, start 0" for split in (0, 1)}
    assert states == {
        name: "done" if name in done else "waiting"
        for name in (f"digits d=2 vae, split {split}, start {start}" for split in range(3) for start in range(2))
    }
    said = gpin("experiment", "run", *more)
    assert said.out.endswith("digits --latent-dim 2 --rows vae --splits 3 --initialisations 2\n")
    table = json.loads(gpin("experiment", "table", *more, "--json").out)
    assert gpin("experiment", "table", *more).out.count("best on validation data of 2 initialisations") == 1
    assert table["columns"][0]["rows"][0]["log_likelihood"]["runs"] == 3


def test_a_table_of_nothing_says_what_to_do(gpin):
    said = gpin("experiment", "table", "digits", "--protocol", "paper", "--store", "none")
    assert (said.code, said.out) == (2, "")
    assert said.one_line
    assert "none has no results of digits yet: run gpin experiment run digits --protocol paper --store none" in said.err


def test_failures_are_told_and_tried_again(gpin, here, monkeypatch):
    import gpin.experiments.execution.worker as working
    from gpin._core.errors import InputError

    run_job = working.run_job

    def fail(store, job):
        if job == jobs()[0]:
            store.begin(job)
            raise InputError("it does not work")
        run_job(store, job)

    monkeypatch.setattr(working, "run_job", fail)
    said = gpin("experiment", "run", "digits", *ROWS, "--json")
    assert said.code == 1
    record = json.loads(said.out)
    assert (record["runs"], record["done"]) == (4, 3)
    assert record["failed"] == {"digits d=2 vae, split 0, start 0": "it does not work"}
    assert said.err.splitlines() == [
        "gpin: digits d=2 vae, split 0, start 0: it does not work",
        "gpin: 1 of 4 runs are not done: run the same command to try them again",
    ]
    status = gpin("experiment", "status", "digits", *ROWS)
    assert status.out.splitlines() == [
        "digits, desk protocol, in experiments: 3 done, 0 running, 1 failed, 0 waiting",
        "  failed: digits d=2 vae, split 0, start 0: it does not work",
    ]
    monkeypatch.setattr(working, "run_job", run_job)
    assert gpin("experiment", "run", "digits", *ROWS).code == 0
    assert "4 done" in gpin("experiment", "status", "digits", *ROWS).out


def test_a_dry_run_says_what_it_would_take_and_does_nothing(gpin, tmp_path):
    said = gpin("experiment", "run", "digits", *ROWS, "--dry-run", "--json", "--workers", "2")
    assert (said.code, said.err) == (0, "")
    record = json.loads(said.out)
    assert (record["runs"], record["workers"]) == (4, 2)
    assert record["seconds"] > 0
    assert record["memory_bytes"] > 2**26
    assert [(kind["row"], kind["runs"]) for kind in record["kinds"]] == [("vae", 2), ("gp", 2)]
    shown = gpin("experiment", "run", "digits", "--rows", "vae", "--latent-dim", "2", "--dry-run")
    assert "2 runs, " in shown.out
    assert list(tmp_path.iterdir()) == []


def test_executors_are_given_their_options(gpin, here):
    command = ["experiment", "run", "digits", "--rows", "vae", "--latent-dim", "2"]
    more = ["--slurm", "slurm_partition=gpu", "--slurm", "timeout_min=600", "--workers", "3", "--threads", "2"]
    assert gpin(*command, "--executor", "slurm", *more).code == 0
    assert here[-1]["options"] == {"slurm_partition": "gpu", "timeout_min": 600}
    assert (here[-1]["workers"], here[-1]["threads"]) == (2, 2)  # no more workers than jobs
    asked = len(here)
    assert gpin(*command, "--executor", "ray", "--address", "auto").code == 0
    assert len(here) == asked  # with nothing left to do nobody is asked
    command[4] = "hf-1"
    assert gpin(*command, "--executor", "ray", "--address", "auto").code == 0
    assert here[-1]["address"] == "auto"


@pytest.mark.parametrize("command", ["run", "status", "table"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mnits"], "there is no experiment 'mnits'"),
        (["digits", "--rows", "vae,gpp"], "there is no row 'gpp'"),
        (["digits", "--rows", ""], "there is no row ''"),
        (["digits", "--latent-dim", "ten"], "--latent-dim must be positive whole numbers such as 10,50, got 'ten'"),
        (["digits", "--latent-dim", "2,0"], "--latent-dim must be positive whole numbers"),
        (["digits", "--latent-dim", "2,"], "--latent-dim must be positive whole numbers"),
        (["digits", "--splits", "0"], "splits must be a whole number of at least 1, got 0"),
        (["digits", "--initialisations", "-1"], "initialisations must be a whole number of at least 1, got -1"),
        (["inference-time", "--splits", "2"], "it takes no --splits"),
        (["digits", "--protocol", "none"], "none"),
        (["digits", "--store", "file"], "file is a file, but the store must be a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_one_sentence(command, arguments, said, gpin, tmp_path):
    (tmp_path / "file").write_text("")
    found = gpin("experiment", command, *arguments)
    assert (found.code, found.out) == (2, "")
    assert found.one_line
    assert said in found.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workers", "-1"], "workers must be a whole number of at least 1, got -1"),
        (["--threads", "0"], "threads must be a whole number of at least 1, got 0"),
        (["--executor", "slurm", "--slurm", "partition"], "--slurm takes key=value"),
        (["--executor", "slurm", "--slurm", "=x"], "--slurm takes key=value"),
    ],
)
def test_run_refuses_what_it_cannot_do(arguments, said, gpin):
    found = gpin("experiment", "run", "digits", *ROWS, *arguments)
    assert (found.code, found.out) == (2, "")
    assert found.one_line
    assert said in found.err


@pytest.mark.parametrize(
    ("pairs", "options"),
    [
        (["mem_gb=1.5", "slurm_partition=gpu"], {"mem_gb": 1.5, "slurm_partition": "gpu"}),
        (['slurm_additional_parameters={"gres": "gpu:1"}'], {"slurm_additional_parameters": {"gres": "gpu:1"}}),
        (["slurm_time=10:00"], {"slurm_time": "10:00"}),
    ],
)
def test_what_slurm_is_told_is_json_where_it_can_be(pairs, options):
    assert slurm_options(pairs) == options


def test_an_experiment_without_a_figure_says_so(gpin, tmp_path):
    for name in ("mnist", "inference-time"):
        found = gpin("experiment", "figure", name, "-o", tmp_path / "f.png")
        assert (found.code, found.out) == (2, "")
        assert f"no trainings of {name} whose history is known, so there is no figure" in found.err
    found = gpin("experiment", "figure", "mnist", "--row", "gp", "-o", tmp_path / "f.png")
    assert "--row applies to uncertainty: choose the curves of mnist with --rows" in found.err
