"""Executors: a grid whose workers and drivers are killed ends in the tables of one that was left in peace."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from experiments.grids import columns, contents, experiment, job, pretend, protocol

import gpin.experiments.execution.executors as executors
from gpin._core.errors import InputError, TrainingError
from gpin.experiments.analysis.results import Results
from gpin.experiments.analysis.tables import likelihood_tables
from gpin.experiments.execution.executors import DEATHS, run_local, run_ray, run_slurm
from gpin.experiments.execution.leases import NAME
from gpin.experiments.execution.store import Store
from gpin.experiments.execution.worker import ATTEMPTS, LOG, read_plan, run_jobs, worker_name, write_plan

ROWS = ("vae", "gp")
SLOW_ROWS = ("vae", "gp", "me-2")
DEADLINE = 600.0


def tables(store, plan):
    """What is printed of a store, but for the time it took, which no table says."""
    one, how = plan
    found = likelihood_tables(one, how, Results(Store(store.root), one.entries(how)))
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


EPOCHS = "epochs.log"

# A worker whose steps take their time and are all caught in checkpoints, and that notes the epochs it has trained.
WORKER = f"""
import os, sys, time
import gpin.experiments.execution.worker as working
from gpin.training.trainer import Trainer

step, train, notes = Trainer._step, working.train, open(sys.argv[1] + "/{EPOCHS}", "a", buffering=1)

def slow(*arguments):
    time.sleep(0.05)
    return step(*arguments)

def noted(*arguments, out, **options):
    note = lambda number, _: notes.write(f"{{out.parent.name}} {{number}} {{os.getpid()}}\\n")
    return train(*arguments, out=out, on_epoch=note, **options)

Trainer._step, working.train, working.CHECKPOINT_SECONDS = slow, noted, 0.0
working.main()
"""

# Drivers, which are forked from one process that has imported all they need.
NURSERY = """
import os, subprocess, sys
from pathlib import Path
from gpin.experiments.execution.executors import run_local
from gpin.experiments.execution.store import Store
from gpin.experiments.execution.worker import read_plan

root, plan, worker = sys.argv[1:]
popen = subprocess.Popen
subprocess.Popen = lambda asked, **options: popen([*asked[:2], "-c", worker, *asked[4:]], **options)
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
        command = [sys.executable, "-c", NURSERY, str(store.root), str(write_plan(store, jobs)), WORKER]
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


def in_training(store, jobs):
    """Numbers of the processes that are in the middle of a training."""
    found = []
    for one in jobs:
        epochs = sum(path.read_text().count("\n") for path in store.folder(one).glob("run/*/metrics.jsonl"))
        if 2 <= epochs < one.settings.training.epochs - 1 and store.running(one):
            found += [int(store.attempts(one)[-1].split()[-1])]
    return found


def harass(store, plan, driver_kills, worker_kills, seed):
    """Run a grid with two workers, killing so many drivers and workers at random moments; how many it were.

    Workers are killed in the middle of a training.
    """
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
            until(lambda: all(len(store.attempts(one)) < ATTEMPTS for one in jobs), "no job may die of this")
            time.sleep(moments.uniform(0, 0.5))
            nothing_is_done_twice()
            if what == "workers":
                until(lambda: in_training(store, jobs) or not left(), "nothing is trained")
                training = in_training(store, jobs)
                killed["workers"] += bool(training) and kill(moments.choice(training))
                continue
            workers = workers_of(driver)
            killed["drivers"] += left() > 0 and kill(driver)
            nursery.end()
            until(lambda workers=workers: not any(map(alive, workers)), "orphans")
            nothing_is_done_twice()
            driver = nursery.start()
        assert nursery.end() == 0
        assert workers_of(driver) == []
    nothing_is_done_twice()
    return killed


def assert_as_in_peace(store, folder, plan):
    """Every number is that of the same grid when nothing is killed, to the last bit."""
    peace, jobs, threads = Store(folder), jobs_of(plan), torch.get_num_threads()
    torch.set_num_threads(1)  # as the workers: on that the last bits may depend
    run_jobs(peace, jobs)
    torch.set_num_threads(threads)
    assert tables(store, plan) == tables(peace, plan)
    for one in jobs:
        assert store.scores(one).read_bytes() == peace.scores(one).read_bytes()
        assert Store(store.root).result(one)["validation_elbo"] == peace.result(one)["validation_elbo"]


def assert_resumed(store):
    """Trainings went on where they were killed: some are of several processes, and no epoch was trained twice."""
    notes = [line.split() for line in (store.root / EPOCHS).read_text().splitlines()]
    assert max(Counter((one, epoch) for one, epoch, _ in notes).values()) == 1
    assert max(Counter(one for one, _ in {(one, process) for one, _, process in notes}).values()) > 1


def test_killed_workers_and_a_killed_driver_change_no_number(tmp_path):
    plan = experiment(*ROWS), protocol(splits=3, epochs=6)
    assert len(jobs_of(plan)) == 6
    store = Store(tmp_path / "harassed")
    killed = harass(store, plan, driver_kills=1, worker_kills=1, seed=0)
    assert killed == {"drivers": 1, "workers": 1}
    assert_resumed(store)
    assert_as_in_peace(store, tmp_path / "peace", plan)
    assert "runs)" not in tables(store, plan)[0]  # all are there


@pytest.mark.slow
def test_killed_workers_and_drivers_change_no_number_of_a_larger_grid(tmp_path):
    plan = experiment(*SLOW_ROWS), protocol(splits=5, initialisations=2, epochs=6)
    assert len(jobs_of(plan)) == 30
    store = Store(tmp_path / "harassed")
    killed = harass(store, plan, driver_kills=4, worker_kills=6, seed=1)
    assert killed["drivers"] >= 3
    assert killed["workers"] >= 4
    assert_resumed(store)
    assert_as_in_peace(store, tmp_path / "peace", plan)


# One driver ------------------------------------------------------------------------------------------


class Processes:
    """Counts the workers that a driver starts, or what stands in for them; `after` is called with each."""

    def __init__(self, monkeypatch, command=None, after=lambda process: None):
        self.started = []
        popen = subprocess.Popen

        def start(asked, **options):
            process = popen([*asked[:2], "-c", command, *asked[4:]] if command else asked, **options)
            self.started.append(process)
            after(process)
            return process

        monkeypatch.setattr(executors.subprocess, "Popen", start)


SLEEP = "import time; time.sleep(600)"

# A worker that dies of the first job of its plan.
POISONED = """
import os, signal, sys
from pathlib import Path
import gpin.experiments.execution.worker as working

run_job, poison = working.run_job, working.read_plan(Path(sys.argv[2]))[0]

def die_or_do(store, job):
    if job == poison:
        os.kill(os.getpid(), signal.SIGKILL)
    run_job(store, job)

working.run_job = die_or_do
working.main()
"""


def test_a_job_that_kills_its_workers_has_failed_and_the_others_are_done(tmp_path, monkeypatch):
    store, jobs = Store(tmp_path), [job(split=split) for split in range(3)]
    workers = Processes(monkeypatch, POISONED)
    run_local(store, jobs, 2)
    assert [process.returncode for process in workers.started].count(-signal.SIGKILL) == ATTEMPTS
    assert store.failure(jobs[0]) == f"its worker died 3 times: see {tmp_path / LOG}"
    assert [store.state(one) for one in jobs] == ["failed", "done", "done"]


def test_many_workers_that_die_at_once_with_a_job_in_hand_are_replaced(tmp_path, monkeypatch):
    store, jobs = Store(tmp_path), [job(split=split) for split in range(DEATHS + 2)]

    def begin_and_die_or_do(process):
        one = jobs[(len(workers.started) - 1) % len(jobs)]
        store.begin(one)
        if len(workers.started) <= len(jobs):
            store._note_attempts(one, [worker_name(process.pid)])
        else:
            pretend(store, one, columns())
        process.kill()

    workers = Processes(monkeypatch, SLEEP, after=begin_and_die_or_do)
    run_local(store, jobs, len(jobs))
    assert [store.state(one) for one in jobs] == ["done"] * len(jobs)


def test_who_works_is_left_alone_when_others_cannot_begin(tmp_path, monkeypatch):
    store, jobs, looks = Store(tmp_path), [job(split=split) for split in range(3)], []
    monkeypatch.setattr(executors, "POLL", 0.05)
    workers = Processes(monkeypatch, SLEEP, after=lambda process: len(workers.started) > 1 and process.kill())

    def watch():
        looks.append(len(workers.started))
        if len(looks) == 20:  # in place of the worker
            assert workers.started[0].poll() is None
            for one in jobs:
                pretend(store, one, columns())
            workers.started[0].kill()

    run_local(store, jobs, 2, watch=watch)
    assert looks[-1] == looks[10] == 1 + DEATHS + 1


def test_workers_that_die_again_and_again_make_the_driver_give_up_in_a_sentence(tmp_path, monkeypatch):
    store = Store(tmp_path)
    workers = Processes(monkeypatch, SLEEP, after=subprocess.Popen.kill)
    with pytest.raises(TrainingError, match=r"workers died in a row with nothing done: see .*workers\.log"):
        run_local(store, [job(), job(split=1)], 2)
    assert DEATHS < len(workers.started) <= DEATHS + 3
    assert all(process.poll() is not None for process in workers.started)
    assert (tmp_path / "workers.log").exists()


def test_of_all_that_is_done_or_failed_nothing_is_started(tmp_path, monkeypatch):
    store, jobs = Store(tmp_path), [job(), job(split=1)]
    run_jobs(store, jobs[:1])
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
    workers = Processes(monkeypatch, SLEEP)

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
    with pytest.raises(InputError, match=rf"the package {package} is missing: pip install 'gpin\["):
        executor(Store(tmp_path), [job()], 1)


# Clusters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_slurms_array_does_all_jobs(workers, tmp_path):
    pytest.importorskip("submitit")
    store, jobs, looks = Store(tmp_path), [job(split=split) for split in range(2 * workers)], []
    options = {"timeout_min": 5, "name": "mine", "cpus_per_task": 2}
    run_slurm(store, jobs, workers, watch=lambda: looks.append(1), cluster="local", options=options)
    assert {store.state(one) for one in jobs} == {"done"}
    assert looks


@pytest.mark.slow
def test_a_worker_of_slurm_whose_time_is_over_is_queued_again(tmp_path):
    pytest.importorskip("submitit")
    store, one, told = Store(tmp_path), job(epochs=400), []

    def watch():
        if not told and list((store.folder(one) / "run").glob("*/metrics.jsonl")):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    if f"_submit\0{tmp_path}" in path.read_text():
                        told.append(int(path.parent.name))
                        os.kill(told[-1], signal.SIGUSR2)  # as Slurm does shortly before

    run_slurm(store, [one], 1, watch=watch, cluster="local", options={"timeout_min": 5})
    assert len(told) == 1
    assert store.failure(one) is None
    assert store.state(one) == "done"


class Submitit:
    """Stands in for submitit: each task of an array is what `act` makes of it, an error or None."""

    def __init__(self, monkeypatch, act, state="FAILED"):
        self.arrays, self.parameters = [], {}
        self.act, self.state = act, state
        monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(AutoExecutor=lambda **_: self))

    def update_parameters(self, **parameters):
        self.parameters = parameters

    def map_array(self, function, *columns):
        self.arrays.append(list(zip(*columns, strict=True)))
        outcomes = [self.act(number) for number in range(len(self.arrays[-1]))]
        return [
            SimpleNamespace(done=lambda: True, exception=lambda error=error: error, state=self.state)
            for error in outcomes
        ]


def test_what_the_user_says_of_slurm_goes_before_what_is_said_by_default(tmp_path, monkeypatch):
    store, one = Store(tmp_path), job()
    submitit = Submitit(monkeypatch, lambda number: pretend(store, one, columns()))
    run_slurm(store, [one], 1, 2, cluster="local", options={"name": "mine", "slurm_partition": "gpu"})
    assert submitit.parameters == {
        "name": "mine",
        "cpus_per_task": 2,
        "timeout_min": 1440,
        "slurm_partition": "gpu",
    }
    submitit = Submitit(monkeypatch, lambda number: None)
    run_slurm(store, [job(split=1)], 1, 2, cluster="local", options={"cpus_per_task": 4, "timeout_min": 1})
    assert submitit.parameters == {"name": "gpin", "cpus_per_task": 4, "timeout_min": 1}


def test_a_worker_of_slurm_that_fails_matters_only_if_something_is_left(tmp_path, monkeypatch):
    store, jobs = Store(tmp_path), [job(split=split) for split in range(3)]

    def act(number):
        if number == 0:
            return RuntimeError("no luck")
        pretend(store, jobs[number], columns())
        store.begin(jobs[0])
        return store.fail(jobs[0], "before")

    submitit = Submitit(monkeypatch, act)
    run_slurm(store, jobs, 3, cluster="local")
    assert [len(tasks) for tasks in submitit.arrays] == [3]
    store.forget_failure(jobs[0])
    submitit = Submitit(monkeypatch, act)
    with pytest.raises(TrainingError, match=r"no worker is left, and 1 of 3 runs are not done: see .*slurm"):
        run_slurm(store, jobs, 3, cluster="local")
    assert [len(tasks) for tasks in submitit.arrays] == [1]  # a second one would get no further


@pytest.mark.parametrize("state", ["OUT_OF_MEMORY", "CANCELLED by 1000"])
def test_another_array_does_what_workers_that_died_have_left_unless_somebody_cancelled_it(state, tmp_path, monkeypatch):
    store, jobs = Store(tmp_path), [job(split=split) for split in range(2)]
    monkeypatch.setattr("gpin.experiments.execution.worker.run_job", lambda store, one: pretend(store, one, columns()))

    def act(number):
        if len(died := store.attempts(jobs[0])) < ATTEMPTS:
            store.begin(jobs[0])
            store._note_attempts(jobs[0], [*died, "dead"])
            return RuntimeError("no memory")
        return run_jobs(store, jobs)

    submitit = Submitit(monkeypatch, act, state)
    if state == "OUT_OF_MEMORY":
        run_slurm(store, jobs, 1, cluster="local")
        assert [store.state(one) for one in jobs] == ["failed", "done"]
        assert len(submitit.arrays) == ATTEMPTS + 1
    else:
        with pytest.raises(TrainingError, match="2 of 2 runs are not done"):
            run_slurm(store, jobs, 1, cluster="local")
        assert len(submitit.arrays) == 1


class Ray:
    """Stands in for ray: the first task fails at once, and the second ends two looks later, when `act` is called."""

    class Error(Exception):
        pass

    def __init__(self, monkeypatch, act, gpus=0):
        self.act, self.looks, self.running = act, 0, False
        self.resources, self.options = {"CPU": 4.0, **({"GPU": float(gpus)} if gpus else {})}, {}
        self.exceptions = SimpleNamespace(RayError=self.Error)
        monkeypatch.setitem(sys.modules, "ray", self)

    def init(self, **_):
        self.running = True

    def shutdown(self):
        self.running = False

    def remote(self, function):
        tasks = iter(("fails", *["works"] * 9))

        def options(**given):
            self.options = given
            return SimpleNamespace(remote=lambda *_: next(tasks))

        return SimpleNamespace(options=options)

    def cluster_resources(self):
        return self.resources

    def wait(self, tasks, **_):
        self.looks += 1
        ended = [task for task in tasks if task == "fails" or self.looks == 3]
        return ended, [task for task in tasks if task not in ended]

    def get(self, task):
        assert self.running
        if task == "fails":
            raise self.Error("a trace\nValueError: no luck")
        self.act()


@pytest.mark.parametrize(("gpus", "each"), [(0, 0), (3, 0.4285), (7, 1.0), (40, 1.0)])
def test_the_workers_of_ray_share_the_gpus(gpus, each, tmp_path, monkeypatch):
    store, one = Store(tmp_path), job()
    ray = Ray(monkeypatch, lambda: pretend(store, one, columns()), gpus)
    run_ray(store, [one], 7, 2)
    assert (ray.options["num_gpus"], ray.options["num_cpus"]) == (each, 2)


def test_a_task_of_ray_that_fails_matters_only_if_something_is_left(tmp_path, monkeypatch):
    store, jobs = Store(tmp_path), [job(), job(split=1)]
    ray = Ray(monkeypatch, lambda: pretend(store, jobs[0], columns()))
    with pytest.raises(TrainingError, match="no worker is left, and 1 of 2 runs are not done: ValueError: no luck"):
        run_ray(store, jobs, 2)
    assert (ray.looks, ray.running) == (3, False)
    ray = Ray(monkeypatch, lambda: pretend(store, jobs[1], columns()))
    run_ray(store, jobs, 2)
    assert (ray.looks, ray.running) == (3, False)


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


@pytest.mark.parametrize("options", [{"mem_gb": "much"}, {"timeout_min": "10h"}, {"no_such_option": 1}])
def test_options_that_slurm_does_not_have_are_refused(options, tmp_path):
    pytest.importorskip("submitit")
    with pytest.raises(InputError, match="submitit rejects these options for Slurm"):
        run_slurm(Store(tmp_path), [job()], 1, cluster="local", options=options)


def test_workers_that_slurm_does_not_take_are_one_sentence(tmp_path, monkeypatch):
    class RejectedError(RuntimeError):
        """As submitit raises it when sbatch fails."""

    def reject(number):
        raise RejectedError("sbatch: error: invalid partition\nspecified: x")

    Submitit(monkeypatch, reject)
    sys.modules["submitit"].core = SimpleNamespace(utils=SimpleNamespace(FailedJobError=RejectedError))
    with pytest.raises(TrainingError, match="Slurm rejects the workers: sbatch: error: invalid partition specified"):
        run_slurm(Store(tmp_path), [job()], 1, cluster="local")
