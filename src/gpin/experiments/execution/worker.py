"""Workers: processes that run the jobs that no other worker has, from the last checkpoint; all executors use them."""

import os
import platform
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from gpin._core.errors import BusyError, InputError, TrainingError
from gpin._core.files import checksum, read_record, write_record
from gpin.data import DataSet
from gpin.experiments.execution.jobs import Job, score_instances
from gpin.experiments.execution.leases import BEAT
from gpin.experiments.execution.planes import plane_arrays
from gpin.experiments.execution.store import JOB, Store
from gpin.runs import Run, train
from gpin.runs.folder import environment
from gpin.runs.rows import random_rows
from gpin.vae import VAE

__all__ = ["LOG", "main", "read_plan", "run_job", "run_jobs", "run_plan", "worker_name", "write_plan"]

PLAN_VERSION = 1
CHECKPOINT_SECONDS = 20.0
LOST = 75
"""The exit code of a worker that was considered dead."""
ATTEMPTS = 3
"""The number of workers that may die in a job before it counts as failed."""
LOG = "workers.log"
"""The file in the store with the output of the workers on this machine."""


def run_job(store: Store, job: Job) -> None:
    """Train and score a job and write its result; training resumes from the last checkpoint.

    A run on a benchmark set is in the folder of its job, and its checkpoints are removed when it is done. One on data
    of your own is like those of `gpin train`, in the folder `runs` of the store; jobs that differ in their scoring
    share it.
    """
    store.begin(job)
    data: list[DataSet] = []

    def begin(run: Run, parts: DataSet, vae: VAE) -> None:
        if job.fingerprint not in (None, run.fingerprint):
            raise InputError(f"{run.location} has changed since the comparison began: run the same command again")
        data.append(parts)

    run, vae, history = train(
        job.data if job.location is None else job.location,
        job.settings,
        out=store.folder(job) / "run" if job.location is None else store.runs,
        checkpoint_seconds=CHECKPOINT_SECONDS,
        progress=False,
        on_start=begin,
        tell=lambda sentence: None,
    )
    began = time.perf_counter()
    rows = random_rows(data[0].test, job.scoring.instances, job.scoring.seed)
    volume = None if job.location is None else run.log_volume  # the columns of benchmark sets stay as they are
    scores = score_instances(vae, rows, job.scoring, volume)
    record = {
        "model": run.model.model_dump(mode="json"),
        "fingerprint": run.fingerprint,
        "parameters": sum(p.numel() for p in vae.parameters()),
        "instances": {"train": len(data[0].train), "validation": len(data[0].validation), "test": len(rows)},
        "epochs": len(history.epochs),
        "best_epoch": history.best,
        "validation_elbo": history.validation[history.best - 1],
        "training_seconds": history.seconds,
        "history": history.record()["epochs"],
        "scoring_seconds": time.perf_counter() - began,
        "gap_learns_from_training": any(one.network is not None for one in vae.calibrations.values()),
        "environment": environment(),
    }
    if job.location is not None:
        record["run"] = run.folder.name
    planes = plane_arrays(vae, rows, scores) if job.scoring.grid and "uncertainty" in scores else None
    store.finish(job, record, scores, planes)
    if job.location is None:
        shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)  # only the model is still needed


def run_jobs(store: Store, jobs: Sequence[Job], log: str = "its log", watch: Callable[[], None] = lambda: None) -> None:
    """Run all jobs that are neither done nor failed, and wait until those of other workers are done too.

    A worker on another machine may still die, and then its job has to be taken over.

    Arguments:
        store: The store of the results.
        jobs: The jobs.
        log: The place where a worker that dies may have left a message.
        watch: Called before and after every job.
    """
    tried: set[str] = set()
    while left := [job for job in store.left(jobs) if job.identity not in tried]:
        found = _sweep(store, left, log, watch)
        tried |= found
        if not found:
            time.sleep(BEAT)


def worker_name(process: int) -> str:
    """The name of a worker on this machine in the store."""
    return f"{platform.node()} {process}"


def _sweep(store: Store, jobs: Sequence[Job], log: str, watch: Callable[[], None]) -> set[str]:
    """Run the jobs that no other worker has; returns their identities."""
    tried = set()
    for job in jobs:
        watch()
        with store.lease(job, _taken_for_dead) as ours:
            if not ours or not store.left([job]):
                continue
            with suppress(BusyError):  # the holder that was considered dead is alive, and will notice
                _attempt(store, job, log)
                tried.add(job.identity)
    watch()
    return tried


def _attempt(store: Store, job: Job, log: str) -> None:
    """Run a job, or record why it failed."""
    with store.attempt(job, worker_name(os.getpid())) as died:
        try:
            if len(died) >= ATTEMPTS:
                raise TrainingError(f"its worker died {len(died)} times: see {log}")
            run_job(store, job)
        except BusyError:
            raise
        except (InputError, TrainingError) as error:
            store.fail(job, str(error))
        except OSError as error:
            store.fail(job, f"{error.strerror or error}: {error.filename or store.root}")
        except Exception as error:
            store.fail(job, f"unexpected {type(error).__name__}: {error}")


def _taken_for_dead() -> None:
    # Another worker has taken the job, and the two must not write to the same folder.
    print(
        "gpin: this worker showed no heartbeat for too long, so another worker took its job",
        file=sys.stderr,
        flush=True,
    )
    os._exit(LOST)


def write_plan(store: Store, jobs: Sequence[Job]) -> Path:
    """Write jobs to a file in the store, from which workers read them."""
    content: dict[str, Any] = {"jobs": [job.record() for job in jobs]}
    path = store.root / "plans" / f"{checksum(content)[:16]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, JOB, PLAN_VERSION, content)
    return path


def read_plan(path: Path) -> list[Job]:
    """The jobs that `write_plan` wrote."""
    return [Job.parse(job, str(path)) for job in read_record(path, JOB, PLAN_VERSION, "a plan")["jobs"]]


def run_plan(root: str, plan: str, threads: int = 1, log: str = "its log") -> None:
    """Run the jobs of a plan as a worker in a separate process, on any machine that shares the store."""
    torch.set_num_threads(threads)
    run_jobs(Store(root), read_plan(Path(plan)), log)


def _end_with(parent: int) -> None:
    """End this process when the one that started it has ended, because nothing else would stop it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(LOST)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Run a worker that ends with the process that started it, or when that process terminates it."""
    root, plan, threads, parent = sys.argv[1:]
    _end_with(int(parent))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the job is released
    run_plan(root, plan, int(threads), str(Path(root) / LOG))


if __name__ == "__main__":
    main()
