"""Workers: each does the jobs that nobody else does, from wherever they were left. All executors run these."""

import os
import platform
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from gpin._core.errors import BusyError, InputError, TrainingError
from gpin._core.files import checksum, read_record, write_record
from gpin.data import DataSet
from gpin.experiments.execution.jobs import Job, score_instances
from gpin.experiments.execution.leases import BEAT
from gpin.experiments.execution.store import JOB, Store
from gpin.runs import train
from gpin.runs.folder import environment
from gpin.runs.rows import random_rows

__all__ = ["LOG", "do", "main", "read_plan", "work", "work_off", "worker_name", "write_plan"]

PLAN_VERSION = 1
CHECKPOINT_SECONDS = 20.0
LOST = 75
"""Exit code of a worker that was taken for dead."""
ATTEMPTS = 3
"""Workers that may die of a job before it is given up."""
LOG = "workers.log"
"""In the store, what the workers of this machine print."""


def do(store: Store, job: Job) -> None:
    """Train and score a job, and write its result; what was trained before is not trained again."""
    store.begin(job)
    data: list[DataSet] = []
    run, vae, history = train(
        job.data,
        job.settings,
        out=store.folder(job) / "run",
        checkpoint_seconds=CHECKPOINT_SECONDS,
        progress=False,
        on_start=lambda run, parts, vae: data.append(parts),
        tell=lambda sentence: None,
    )
    began = time.perf_counter()
    rows = random_rows(data[0].test, job.scoring.instances, job.scoring.seed)
    scores = score_instances(vae, rows, job.scoring)
    record = {
        "model": run.model.model_dump(mode="json"),
        "fingerprint": run.fingerprint,
        "parameters": sum(p.numel() for p in vae.parameters()),
        "instances": {"train": len(data[0].train), "validation": len(data[0].validation), "test": len(rows)},
        "epochs": len(history.epochs),
        "best_epoch": history.best,
        "validation_elbo": history.validation[history.best - 1],
        "training_seconds": history.seconds,
        "scoring_seconds": time.perf_counter() - began,
        "environment": environment(),
    }
    store.finish(job, record, scores)
    shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)  # they have done their service; the model stays


def work(store: Store, jobs: Sequence[Job], log: str = "its log") -> None:
    """Do all jobs that are not done and have not failed, and stay until those in other hands are done too.

    Somebody who holds a job may die, on another machine, when all else is done.

    Arguments:
        store: Where the results go.
        jobs: What to do.
        log: Where a worker that dies may have left a word.
    """
    tried: set[str] = set()
    while left := [job for job in store.left(jobs) if job.identity not in tried]:
        found = _sweep(store, left, log)
        tried |= found
        if not found:
            time.sleep(BEAT)


def worker_name(process: int) -> str:
    """What a worker on this machine is called in the store."""
    return f"{platform.node()} {process}"


def _sweep(store: Store, jobs: Sequence[Job], log: str) -> set[str]:
    """Do those of the jobs that are in nobody else's hands; which these were."""
    tried = set()
    for job in jobs:
        with store.lease(job, _taken_for_dead) as ours:
            if not ours or not store.left([job]):
                continue
            with suppress(BusyError):  # who held it and was taken for dead is alive, and will notice
                _attempt(store, job, log)
                tried.add(job.identity)
    return tried


def _attempt(store: Store, job: Job, log: str) -> None:
    """Do a job, or note why it cannot be done."""
    with store.attempt(job, worker_name(os.getpid())) as died:
        try:
            if len(died) >= ATTEMPTS:
                raise TrainingError(f"its worker died {len(died)} times: {log} may say why")
            do(store, job)
        except BusyError:
            raise
        except (InputError, TrainingError) as error:
            store.fail(job, str(error))
        except OSError as error:
            store.fail(job, f"{error.strerror or error}: {error.filename or store.root}")
        except Exception as error:
            store.fail(job, f"unexpected {type(error).__name__}: {error}")


def _taken_for_dead() -> None:
    # Somebody else has the job now, and the two must not write to one folder.
    print("gpin: this worker was not heard of for too long, and another took its job", file=sys.stderr, flush=True)
    os._exit(LOST)


def write_plan(store: Store, jobs: Sequence[Job]) -> Path:
    """The jobs as a file in the store, for workers to read."""
    content: dict[str, Any] = {"jobs": [job.model_dump(mode="json") for job in jobs]}
    path = store.root / "plans" / f"{checksum(content)[:16]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, JOB, PLAN_VERSION, content)
    return path


def read_plan(path: Path) -> list[Job]:
    """What `write_plan` wrote."""
    return [Job.parse(job, str(path)) for job in read_record(path, JOB, PLAN_VERSION, "a plan")["jobs"]]


def work_off(root: str, plan: str, threads: int = 1, log: str = "its log") -> None:
    """A worker in a process of its own, on any machine that sees the store."""
    torch.set_num_threads(threads)
    work(Store(root), read_plan(Path(plan)), log)


def _end_with(parent: int) -> None:
    """End this process when the one that started it is gone: nobody would stop it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(LOST)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """A worker that ends with the process that started it, or when that terminates it."""
    root, plan, threads, parent = sys.argv[1:]
    _end_with(int(parent))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the job is let go
    work_off(root, plan, int(threads), str(Path(root) / LOG))


if __name__ == "__main__":
    main()
