"""Executors: a grid whose workers and drivers are killed ends in the tables of one that was left in peace."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from experiments.grids import columns, contents, experiment, job, pretend, protocol

import gpin.experiments.executors as executors
from gpin.errors import InputError, TrainingError
from gpin.experiments.executors import DEATHS, run_local, run_ray, run_slurm
from gpin.experiments.gathering import Gathered
from gpin.experiments.leases import NAME
from gpin.experiments.store import Store
from gpin.experiments.tables import likelihood_tables
from gpin.experiments.work import read_plan, work, write_plan

ROWS = ("vae", "gp")
SLOW_ROWS = ("vae", "gp", "me-2")
DEADLINE = 600.0


def tables(store, plan):
    """What is printed of a store, but for the time it took, which no table says."""
    one, how = plan
    found = likelihood_tables(one, how, Gathered(Store(store.root), one.entries(how)))
    return [table.markdown() for table in found]


def jobs_of(plan):
    one, how = plan
    return [entry.job for entry in one.entries(how)]


def workers_of(driver):
    """Numbers of the processes that this one has started and that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has just ended
            continue
        if int(parent) == driver and state not in "ZX":
            found.append(int(path.parent.name))
    return found


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(condition, what):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def kill(process):
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


# Drivers, which are forked from one process that has imported all they need.
NURSERY = """
import os, signal, sys
from pathlib import Path
from gpin.experiments.executors import run_local
from gpin.experiments.store import Store
from gpin.experiments.work import read_plan

root, plan = sys.argv[1:]
for _ in sys.stdin:
    driver = os.fork()
    if driver == 0:
        try:
            run_local(Store(root), read_plan(Path(plan)), 2)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    print(driver, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(driver, 0)[1]), flush=True)
"""


class Nursery:
    """Starts drivers, one after the other."""

    def __init__(self, store, jobs):
        command = [sys.executable, "-c", NURSERY, str(store.root), str(write_plan(store, jobs))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self):
        """The number of a new driver."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self):
        """The exit code of the driver, once it is gone."""
        return int(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def harass(store, plan, driver_kills, worker_kills, seed):
    """Run a grid with two workers, killing so many drivers and workers at random moments; how many it were."""
    moments, jobs = random.Random(seed), jobs_of(plan)
    killed = {"drivers": 0, "workers": 0}
    kept = {}

    def left():
        return len(Store(store.root).missing(jobs))

    def nothing_is_done_twice():
        for path, found in contents(store, jobs).items():
            if Store(store.root).result(next(one for one in jobs if store.folder(one) == path.parent)) is not None:
                assert kept.setdefault(path, found) == found

    # What is killed when so many jobs are done: both are spread over the grid.
    events = [("drivers", i) for i in range(driver_kills)] + [("workers", i) for i in range(worker_kills)]
    moments.shuffle(events)
    with Nursery(store, jobs) as nursery:
        driver = nursery.start()
        for number, (what, _) in enumerate(events):
            goal = len(jobs) - (number + 1) * len(jobs) // (len(events) + 1)
            until(lambda driver=driver: workers_of(driver) or not left(), "no workers")
            until(lambda goal=goal: left() <= goal, "nothing is done")
            time.sleep(moments.uniform(0, 0.5))
            nothing_is_done_twice()
            workers = workers_of(driver)
            if what == "workers":
                killed["workers"] += bool(workers) and kill(moments.choice(workers))
                continue
            killed["drivers"] += left() > 0 and kill(driver)
            nursery.end()
            until(lambda workers=workers: not any(map(alive, workers)), "orphans")
            nothing_is_done_twice()
            driver = nursery.start()
        assert nursery.end() == 0
        assert workers_of(driver) == []
    nothing_is_done_twice()
    return killed


def undisturbed(folder, plan):
    store = Store(folder)
    work(store, jobs_of(plan))
    return tables(store, plan)


def test_killed_workers_and_a_killed_driver_change_no_number(tmp_path):
    plan = experiment(*ROWS), protocol(splits=4, epochs=2)
    assert len(jobs_of(plan)) == 8
    store = Store(tmp_path / "harassed")
    killed = harass(store, plan, driver_kills=1, worker_kills=1, seed=0)
    assert killed == {"drivers": 1, "workers": 1}
    found = tables(store, plan)
    assert found == undisturbed(tmp_path / "peace", plan)
    assert "runs)" not in found[0]  # all are there


@pytest.mark.slow
def test_killed_workers_and_drivers_change_no_number_of_a_larger_grid(tmp_path):
    plan = experiment(*SLOW_ROWS), protocol(splits=5, initialisations=2, epochs=3)
    assert len(jobs_of(plan)) == 30
    store = Store(tmp_path / "harassed")
    killed = harass(store, plan, driver_kills=4, worker_kills=6, seed=1)
    assert killed["drivers"] >= 3
    assert killed["workers"] >= 4
    assert tables(store, plan) == undisturbed(tmp_path / "peace", plan)


# One driver ------------------------------------------------------------------------------------------


class Processes:
    """Counts the workers that a driver starts, or what stands in for them."""

    def __init__(self, monkeypatch, command=None, end=False):
        self.started = []
        popen = subprocess.Popen

        def start(asked, **options):
            process = popen([sys.executable, "-c", command] if command else asked, **options)
            self.started.append(process)
            if end:
                process.kill()
            return process

        monkeypatch.setattr(executors.subprocess, "Popen", start)


def test_workers_that_die_again_and_again_make_the_driver_give_up_in_a_sentence(tmp_path, monkeypatch):
    store = Store(tmp_path)
    workers = Processes(monkeypatch, end=True)
    with pytest.raises(TrainingError, match=r"workers died in a row with nothing done: .*workers\.log may say why"):
        run_local(store, [job(), job(split=1)], 2)
    assert DEATHS < len(workers.started) <= DEATHS + 3
    assert all(process.poll() is not None for process in workers.started)
    assert (tmp_path / "workers.log").exists()


def test_of_all_that_is_done_or_failed_nothing_is_started(tmp_path, monkeypatch):
    store, jobs = Store(tmp_path), [job(), job(split=1)]
    work(store, jobs[:1])
    store.begin(jobs[1])
    store.fail(jobs[1], "before")
    before = contents(store, jobs)
    workers = Processes(monkeypatch)
    run_local(store, jobs, 2)
    assert workers.started == []
    assert contents(store, jobs) == before


def test_there_are_no_more_workers_than_jobs(tmp_path, monkeypatch):
    """A worker takes seconds to begin; meanwhile its job waits, and is no reason to start another."""
    store, one, looks = Store(tmp_path), job(), []
    workers = Processes(monkeypatch, command="import time; time.sleep(600)")

    def watch():
        looks.append(store.state(one))
        if len(looks) == 3:  # in place of the worker
            pretend(store, one, columns())
            for process in workers.started:
                process.kill()

    run_local(store, [one], 3, watch=watch)
    assert looks[:3] == ["waiting"] * 3
    assert store.state(one) == "done"
    assert len(workers.started) == 1


def test_what_another_holds_is_waited_for(tmp_path, monkeypatch):
    store, one = Store(tmp_path), job()
    workers = Processes(monkeypatch)
    with store.lease(one, lambda: None):
        thread = threading.Thread(target=run_local, args=(Store(tmp_path), [one], 1))
        thread.start()
        time.sleep(1.2)
        assert thread.is_alive()
        assert workers.started == []
        store.begin(one)
        store.fail(one, "of the other one")
    thread.join(60)
    assert not thread.is_alive()
    assert workers.started == []


@pytest.mark.parametrize("executor", executors.EXECUTORS.values(), ids=list(executors.EXECUTORS))
@pytest.mark.parametrize("wrong", [{"workers": 0}, {"workers": -1}, {"workers": 1, "threads": 0}], ids=str)
def test_no_workers_or_threads_are_refused(executor, wrong, tmp_path):
    with pytest.raises(InputError, match=r"must be at least 1, got (0|-1)"):
        executor(Store(tmp_path), [job()], **wrong)


@pytest.mark.parametrize(("executor", "package"), [(run_slurm, "submitit"), (run_ray, "ray")])
def test_a_package_that_is_missing_is_named(executor, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"needs the package {package}: pip install 'gpin\["):
        executor(Store(tmp_path), [job()], 1)


# Clusters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_slurms_array_does_all_jobs(workers, tmp_path):
    pytest.importorskip("submitit")
    store, jobs, looks = Store(tmp_path), [job(split=split) for split in range(2 * workers)], []
    run_slurm(store, jobs, workers, watch=lambda: looks.append(1), cluster="local", options={"timeout_min": 5})
    assert {store.state(one) for one in jobs} == {"done"}
    assert looks


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ray's own
def test_rays_tasks_do_all_jobs_though_one_is_killed(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    store, jobs, killed = Store(tmp_path), [job(split=i, epochs=20) for i in range(6)], []

    def kill_one():
        for one in jobs:
            path = store.folder(one) / NAME
            if not killed and path.exists() and store.running(one):
                process = json.loads(path.read_text())["process"]
                assert process != os.getpid()
                killed.append(kill(process))

    run_ray(store, jobs, 2, watch=kill_one)
    assert killed == [True]
    assert [store.state(one) for one in jobs] == ["done"] * 6
    assert read_plan(next((tmp_path / "plans").iterdir())) == jobs
