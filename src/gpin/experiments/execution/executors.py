"""Executors: where jobs run, in this process, in processes on this machine, on Slurm or on a Ray cluster.

All of them keep everything in the store, so that one can finish what another has started.
"""

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpin._core.errors import InputError, TrainingError
from gpin._core.extras import extra
from gpin._core.threads import threads as use_threads
from gpin.data import data_folder
from gpin.data.io import one_line
from gpin.experiments.execution.jobs import Job
from gpin.experiments.execution.store import Store
from gpin.experiments.execution.worker import LOG, run_jobs, run_plan, worker_name, write_plan

__all__ = ["EXECUTORS", "run_local", "run_ray", "run_serial", "run_slurm"]

DEATHS = 3
"""The number of workers that may die in a row without having started a job before the executor gives up."""
RETRIES = 100
"""How often Ray restarts a worker that died, and Slurm one that reached its time limit."""
PATIENCE = 20.0
"""Seconds within which a terminated worker must end."""
POLL = 0.5
"""Seconds between two checks of the workers."""

Watch = Callable[[], None]


def run_serial(
    store: Store, jobs: Sequence[Job], workers: int, threads: int = 1, watch: Watch = lambda: None, **_: Any
) -> None:
    """Run jobs one after the other in this process, where methods registered by the user are available too.

    Arguments:
        store: The store of the results.
        jobs: The jobs.
        workers: Ignored: jobs run one at a time.
        threads: The number of threads.
        watch: Called before and after every job.
    """
    _check(workers, threads)
    with use_threads(threads):
        run_jobs(store, jobs, watch=watch)


def run_local(
    store: Store, jobs: Sequence[Job], workers: int, threads: int = 1, watch: Watch = lambda: None, **_: Any
) -> None:
    """Run jobs in processes on this machine; a worker that dies is replaced, and a job fails if many workers die in it.

    Arguments:
        store: The store of the results.
        jobs: The jobs.
        workers: The number of processes.
        threads: The number of threads per worker.
        watch: Called repeatedly while they run.
    """
    _check(workers, threads)
    plan = write_plan(store, jobs)
    # -P: files in the current folder must not be imported as modules.
    command = [sys.executable, "-P", "-m", run_plan.__module__, str(store.root), str(plan)]
    command += [str(threads), str(os.getpid())]
    waiting = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(threads)}
    log = store.root / LOG
    alive: list[subprocess.Popen[bytes]] = []
    left, deaths = store.left(jobs), 0
    try:
        with open(log, "ab") as output:
            while True:
                ended = [process for process in alive if process.poll() is not None]
                alive = [process for process in alive if process.returncode is None]
                before, left = left, store.left(jobs)
                died = {worker_name(process.pid) for process in ended if process.returncode != 0}
                began = any(died.intersection(store.attempts(job)) for job in left) if died else False
                deaths = 0 if began or len(left) < len(before) else deaths + len(died)
                if not alive and not left:
                    return
                if not alive and deaths > DEATHS:
                    raise TrainingError(f"{deaths} workers died in a row with nothing done: see {log}")
                free = [job for job in left if not store.running(job)]
                while free and deaths <= DEATHS and len(alive) < min(workers, len(left)):
                    alive.append(
                        subprocess.Popen(
                            command,
                            env=os.environ | waiting,
                            stdout=output,
                            stderr=output,
                            stdin=subprocess.DEVNULL,
                            start_new_session=True,  # Ctrl-C reaches only this process, which then ends them
                        )
                    )
                watch()
                time.sleep(POLL)
    finally:
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:  # everything up to the last checkpoint is kept
                process.kill()
                process.wait()


class _SlurmWorker:
    """`run_plan` as a task that submitit queues again at its time limit, to resume where it stopped."""

    def __call__(self, *arguments: Any) -> None:
        run_plan(*arguments)

    def checkpoint(self, *arguments: Any) -> Any:
        """The task to submit in place of this one."""
        return _submitit().helpers.DelayedSubmission(self, *arguments)


def run_slurm(
    store: Store,
    jobs: Sequence[Job],
    workers: int,
    threads: int = 1,
    watch: Watch = lambda: None,
    *,
    cluster: str | None = None,
    options: dict[str, Any] | None = None,
    **_: Any,
) -> None:
    """Submit an array of workers to Slurm and wait for it; if this process is stopped, the workers continue.

    When all workers have died after making progress, another array is submitted for what is left.

    Arguments:
        store: The store of the results, which every node must share.
        jobs: The jobs.
        workers: The number of tasks of the array.
        threads: The number of CPUs per task.
        watch: Called repeatedly while they run.
        cluster: "local" runs the tasks on this machine, for tests; by default Slurm.
        options: More options for submitit, such as {"timeout_min": 600, "slurm_partition": "gpu"}.
    """
    _check(workers, threads)
    submitit = _submitit()
    if cluster is None and shutil.which("srun") is None:
        raise InputError("Slurm is not available: srun was not found; use `executor=local` to run on this machine")
    folder = str((store.root / "slurm").resolve())
    executor = submitit.AutoExecutor(folder=folder, cluster=cluster or "slurm", slurm_max_num_timeout=RETRIES)
    defaults = {"name": "gpin", "cpus_per_task": threads, "timeout_min": 24 * 60}
    try:
        executor.update_parameters(**{**defaults, **(options or {})})
    except (AssertionError, NameError, TypeError, ValueError) as error:
        raise InputError(f"submitit rejects these options for Slurm: {one_line(error)}") from None
    arguments = str(store.root.resolve()), str(write_plan(store, jobs).resolve()), threads, folder
    while left := store.left(jobs):
        before = _progress(store, jobs)
        count = min(workers, len(left))
        try:
            tasks = executor.map_array(_SlurmWorker(), *([argument] * count for argument in arguments))
        except submitit.core.utils.FailedJobError as error:
            raise TrainingError(f"Slurm rejects the workers: {one_line(error)}") from None
        while not all(task.done() for task in tasks):
            watch()
            time.sleep(POLL)
        if all(task.exception() is None for task in tasks):
            return
        cancelled = any("CANCELLED" in task.state for task in tasks)
        if cancelled or _progress(store, jobs) == before:
            _check_done(store, jobs, f"see {folder}")
            return


def run_ray(
    store: Store,
    jobs: Sequence[Job],
    workers: int,
    threads: int = 1,
    watch: Watch = lambda: None,
    *,
    address: str | None = None,
    **_: Any,
) -> None:
    """Run jobs on a Ray cluster; a worker that dies is restarted elsewhere, and the workers share the GPUs.

    Arguments:
        store: The store of the results, which every node must share.
        jobs: The jobs.
        workers: The number of tasks.
        threads: The number of CPUs per task.
        watch: Called repeatedly while they run.
        address: The address of the cluster, such as "auto"; by default Ray is started on this machine.
    """
    _check(workers, threads)
    with extra("ray"):
        import ray
    plan = str(write_plan(store, jobs).resolve())
    ray.init(
        address=address or "local",  # None would join any cluster that already runs on this machine
        num_cpus=None if address else workers * threads,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"GPIN_DATA": str(data_folder().resolve()), "OMP_NUM_THREADS": str(threads)}},
    )
    try:
        # A task that requests no GPU sees none.
        gpus = min(1.0, ray.cluster_resources().get("GPU", 0) / workers)
        task = ray.remote(run_plan).options(
            num_cpus=threads, num_gpus=math.floor(1e4 * gpus) / 1e4, max_retries=RETRIES
        )
        waiting = [task.remote(str(store.root.resolve()), plan, threads, "Ray's log") for _ in range(workers)]
        reason = None
        while waiting:
            ended, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=POLL)
            watch()
            for one in ended:
                try:
                    ray.get(one)
                except ray.exceptions.RayError as error:  # the other workers may still do its jobs
                    reason = str(error).strip().rpartition("\n")[2] or type(error).__name__
    finally:
        ray.shutdown()
    if reason is not None:
        _check_done(store, jobs, reason)


def _progress(store: Store, jobs: Sequence[Job]) -> tuple[int, int]:
    """The number of jobs that are left and of workers that died in them, which change with any progress."""
    left = store.left(jobs)
    return len(left), sum(len(store.attempts(job)) for job in left)


def _check_done(store: Store, jobs: Sequence[Job], reason: str) -> None:
    """Raise TrainingError if jobs are neither done nor failed although no worker is left."""
    if left := store.left(jobs):
        raise TrainingError(f"no worker is left, and {len(left)} of {len(jobs)} runs are not done: {reason}")


def _check(workers: int, threads: int) -> None:
    for name, value in (("workers", workers), ("threads", threads)):
        if value < 1:
            raise InputError(f"the number of {name} must be at least 1, got {value}")


def _submitit() -> Any:
    with extra("slurm"):
        import submitit
    return submitit


EXECUTORS = {"serial": run_serial, "local": run_local, "slurm": run_slurm, "ray": run_ray}
"""The executors by name."""
