"""Workers: what they do and leave, and that a job killed anywhere ends in the same numbers."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from experiments.grids import columns, job, pretend
from pyarrow import parquet

import gpin
import gpin.experiments.execution.store as storing
import gpin.experiments.execution.worker as working
from gpin._core.errors import InputError
from gpin.experiments.execution.leases import NAME, lease
from gpin.experiments.execution.store import Store
from gpin.experiments.execution.worker import ATTEMPTS, LOST, read_plan, run_jobs, run_plan, worker_name, write_plan

SCORES = "instances.parquet"


def scores(store, one):
    return parquet.read_table(store.scores(one)).to_pydict()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A store with a VAE and a GP-VAE on one split."""
    store = Store(tmp_path_factory.mktemp("done"))
    run_jobs(store, [job(), job("gp")])
    return store


def test_a_job_leaves_its_numbers_and_its_model(done):
    one = job("gp")
    record = done.result(one)
    assert record["instances"] == {"train": 100, "validation": 50, "test": 10}
    assert record["epochs"] == record["best_epoch"] == 1
    assert record["model"]["method"] == "gp"
    assert record["training_seconds"] > 0
    assert record["scoring_seconds"] > 0
    assert "torch" in str(record["environment"])
    (run,) = (done.folder(one) / "run").iterdir()
    vae = gpin.load(run / "model")
    assert sum(p.numel() for p in vae.parameters()) == record["parameters"]
    assert not (run / "checkpoints").exists()
    assert not (done.folder(one) / "lease.json").exists()
    assert len(scores(done, one)["uncertainty"]) == 10
    assert scores(done, one)["instance"] == scores(done, job())["instance"]


def test_what_is_done_failed_or_in_other_hands_is_left_alone(tmp_path, monkeypatch):
    store, did = Store(tmp_path), []
    jobs = {name: job(split=i) for i, name in enumerate(("done", "failed", "held", "free", "damaged"))}
    pretend(store, jobs["done"], columns())
    pretend(store, jobs["damaged"], columns())
    (store.folder(jobs["damaged"]) / SCORES).write_bytes(b"")
    store.begin(jobs["failed"])
    store.fail(jobs["failed"], "before")

    def run_job(store, one):
        did.append(one)
        pretend(store, one, columns())

    monkeypatch.setattr(working, "run_job", run_job)
    monkeypatch.setattr(working, "BEAT", 0.05)
    worker = threading.Thread(target=run_jobs, args=(Store(tmp_path), list(jobs.values())), daemon=True)
    with store.lease(jobs["held"], lambda: None):
        worker.start()
        worker.join(1.5)
        assert did == [jobs["free"], jobs["damaged"]]
        assert not store.running(jobs["free"])
        assert worker.is_alive()  # for who holds the rest may die
    worker.join(30)
    assert not worker.is_alive()
    assert did[2:] == [jobs["held"]]


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_what_another_did_while_one_asked_for_the_lease_is_not_done_again(outcome, tmp_path, monkeypatch):
    store, one, lease = Store(tmp_path), job(), Store.lease

    def late(self, *arguments):
        if outcome == "done":
            pretend(Store(tmp_path), one, columns())
        else:
            self.begin(one)
            self.fail(one, "just now")
        return lease(self, *arguments)

    monkeypatch.setattr(Store, "lease", late)
    monkeypatch.setattr(working, "run_job", lambda *_: pytest.fail("done again"))
    run_jobs(store, [one])
    assert store.state(one) == outcome


def test_what_is_damaged_is_done_again_to_the_same_numbers(done, tmp_path):
    store, one = Store(tmp_path), job()
    run_jobs(store, [one])
    for name in (SCORES, "result.json"):
        content = (store.folder(one) / name).read_bytes()
        (store.folder(one) / name).write_bytes(content[:-1])
        run_jobs(Store(tmp_path), [one])
        assert Store(tmp_path).state(one) == "done"
        assert scores(store, one) == scores(done, one)


# Failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InputError("not like this"), "not like this"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file"), "No space left on device: a file"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device: {store}"),
        (ZeroDivisionError("by nothing"), "unexpected ZeroDivisionError: by nothing"),
        (MemoryError("too much"), "unexpected MemoryError: too much"),
    ],
)
def test_a_failure_is_a_sentence_and_the_next_job_is_done(error, said, tmp_path, monkeypatch):
    store, did = Store(tmp_path), []

    def run_job(store, one):
        store.begin(one)
        if one == job():
            raise error
        did.append(one)

    monkeypatch.setattr(working, "run_job", run_job)
    run_jobs(store, [job(), job(split=1)])
    assert store.failure(job()) == said.format(store=tmp_path)
    assert store.state(job()) == "failed"
    assert did == [job(split=1)]


def test_data_that_is_not_there_is_a_failure_that_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("GPIN_DATA", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    store, one = Store(tmp_path / "store"), job(data="celeba")
    run_jobs(store, [one])
    reason = store.failure(one)
    assert "celeba" in reason.lower()
    assert "unexpected" not in reason
    assert "\n" not in reason
    assert not store.running(one)


def test_a_training_that_diverges_is_a_failure_that_says_so(tmp_path):
    store, one = Store(tmp_path), job(epochs=3, learning_rate=1e12)
    run_jobs(store, [one])
    assert "epoch" in store.failure(one)
    assert "unexpected" not in store.failure(one)


def test_an_interruption_is_no_failure(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    store = Store(tmp_path)
    monkeypatch.setattr(working, "run_job", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(store, [job()])
    assert store.state(job()) == "waiting"
    assert store.attempts(job()) == []


def test_a_job_of_which_many_workers_died_has_failed_until_that_is_forgotten(tmp_path, monkeypatch):
    store, jobs, did = Store(tmp_path), [job(split=split) for split in range(3)], []

    def run_job(store, one):
        did.append(one)
        assert store.attempts(one)[-1] == worker_name(os.getpid())
        if one == jobs[2]:
            raise InputError("not like this")
        pretend(store, one, columns())

    monkeypatch.setattr(working, "run_job", run_job)
    for one, deaths in zip(jobs, (ATTEMPTS, ATTEMPTS - 1, ATTEMPTS - 1), strict=True):
        store.begin(one)
        store._note_attempts(one, [f"elsewhere {i}" for i in range(deaths)])
    run_jobs(store, jobs, "the log")
    assert did == jobs[1:]
    assert store.failure(jobs[0]) == "its worker died 3 times: see the log"
    assert store.failure(jobs[2]) == "not like this"
    assert [store.attempts(one) for one in jobs] == [[], [], []]
    store.forget_failure(jobs[0])
    run_jobs(store, jobs[:1])
    assert store.state(jobs[0]) == "done"


def test_what_one_who_was_taken_for_dead_still_trains_is_tried_later(done, tmp_path, monkeypatch):
    store, one, tries, train = Store(tmp_path), job(), [], working.train
    (run,) = (done.folder(one) / "run").iterdir()
    folder = store.folder(one) / "run" / run.name
    folder.mkdir(parents=True)
    store._note_attempts(one, ["the other"])

    def counted(*arguments, **options):
        tries.append((store.state(one), store.attempts(one)[:-1]))
        if len(tries) == 3:
            lock.close()
        return train(*arguments, **options)

    monkeypatch.setattr(working, "train", counted)
    monkeypatch.setattr(working, "BEAT", 0.05)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run_jobs(store, [one])
    assert tries == [("running", ["the other"])] * 3
    assert store.state(one) == "done"
    assert scores(store, one) == scores(done, one)


# Plans -----------------------------------------------------------------------------------------------


def test_a_plan_is_read_as_it_was_written(tmp_path):
    store, jobs = Store(tmp_path / "store"), [job("gp", 3), job()]
    path = write_plan(store, jobs)
    assert read_plan(path) == jobs
    assert [one.identity for one in read_plan(path)] == [one.identity for one in jobs]
    assert write_plan(store, jobs) == path
    assert write_plan(store, jobs[:1]) != path
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="damaged"):
        run_plan(str(store.root), str(path))


# Processes -------------------------------------------------------------------------------------------


SLOW = """
import sys, time
import gpin.experiments.execution.worker as working
from gpin.training.trainer import Trainer

def slow(*arguments):
    time.sleep(0.05)
    return step(*arguments)

working.CHECKPOINT_SECONDS = 0.0  # in place of twenty: it is killed before
step, Trainer._step = Trainer._step, slow
working.run_plan(*sys.argv[1:])
"""


def test_killed_in_the_middle_of_a_training_it_is_resumed_to_the_same_numbers(tmp_path, monkeypatch):
    epochs = 12
    whole, store, one = Store(tmp_path / "whole"), Store(tmp_path / "killed"), job("gp", epochs=epochs)
    run_jobs(whole, [one])

    def epochs_done():
        return sum(path.read_text().count("\n") for path in store.folder(one).rglob("metrics.jsonl"))

    command = [sys.executable, "-c", SLOW, store.root, write_plan(store, [one])]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while epochs_done() < 3:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert store.state(one) == "running"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert store.state(one) == "waiting"
    assert store.attempts(one) == [worker_name(process.pid)]
    assert epochs_done() < epochs
    train, trained = working.train, []

    def counted(*arguments, **options):
        return train(*arguments, **options, on_epoch=lambda number, _: trained.append(number))

    monkeypatch.setattr(working, "train", counted)
    run_jobs(store, [one])
    assert store.state(one) == "done"
    assert store.attempts(one) == []
    assert 0 < len(trained) < epochs
    assert (store.folder(one) / SCORES).read_bytes() == (whole.folder(one) / SCORES).read_bytes()
    assert store.result(one)["validation_elbo"] == whole.result(one)["validation_elbo"]


SLEEPER = """
import time
import gpin.experiments.execution.worker as working

def run_job(store, job):
    print("begun", flush=True)
    time.sleep(600)

working.run_job = run_job
working.main()
"""


@pytest.mark.parametrize(("end", "deaths"), [(signal.SIGTERM, 0), (signal.SIGKILL, 1)])
def test_a_worker_that_is_terminated_lets_its_job_go_and_one_that_is_killed_has_died_of_it(end, deaths, tmp_path):
    store, one = Store(tmp_path), job()
    command = [sys.executable, "-c", SLEEPER, store.root, write_plan(store, [one]), "1", str(os.getpid())]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **options) as process:
        assert process.stdout.readline() == "begun\n", process.stderr.read()
        assert store.attempts(one) == [worker_name(process.pid)]
        process.send_signal(end)
        process.communicate(timeout=60)
    assert process.returncode != 0
    assert store.attempts(one) == [worker_name(process.pid)] * deaths
    assert (store.folder(one) / NAME).exists() == bool(deaths)
    assert store.state(one) == "waiting"


def test_a_worker_that_was_taken_for_dead_says_so_and_ends(tmp_path, monkeypatch, capsys):
    store, ended = Store(tmp_path), threading.Event()
    codes = []

    def leave(code):
        codes.append(code)
        ended.set()

    def run_job(store, one):
        (store.folder(one) / NAME).write_text('{"holder": "another"}')
        assert ended.wait(60)

    monkeypatch.setattr(storing, "lease", partial(lease, beat=0.01))
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(working, "run_job", run_job)
    run_jobs(store, [job()])
    assert codes == [LOST]
    said = capsys.readouterr().err
    assert said == "gpin: this worker showed no heartbeat for too long, so another worker took its job\n"
    assert store.state(job()) == "running"  # by the other one


def test_a_damaged_plan_is_written_anew(tmp_path):
    store, jobs = Store(tmp_path), [job()]
    path = write_plan(store, jobs)
    path.write_text("damaged")
    assert write_plan(store, jobs) == path
    assert read_plan(path) == jobs
