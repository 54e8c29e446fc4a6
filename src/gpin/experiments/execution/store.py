"""The store of experiments: one folder per job, named by the hash of the job.

| file | content |
|---|---|
| `job.json` | the job |
| `result.json` | the numbers of the run, machine and versions, and the checksum of the scores; written last |
| `instances.parquet` | the scores of every test instance |
| `planes.npz` | for a comparison with true posteriors: some of them, see `gpin.experiments.execution.planes` |
| `failure.json` | instead of a result: why the job failed |
| `lease.json` | the worker that has the job at present |
| `attempts.json` | the workers that started the job and did not finish it: those that died, and the present one |
| `run/` | the run, as `gpin train` makes it, to resume it or to use the model |

The tables and figures need only the first four, which are small. Runs on data of your own are in the folder `runs` of
the store.
"""

import hashlib
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gpin._core.errors import InputError, VersionError
from gpin._core.files import as_path, read_record, remove_unfinished, write_record, written_whole
from gpin.experiments.execution.jobs import Job
from gpin.experiments.execution.leases import lease, leased
from gpin.runs.outputs import write_table

__all__ = ["State", "Store"]

State = Literal["done", "running", "failed", "waiting"]

JOB, RESULT, FAILURE, ATTEMPTS = "gpin-job", "gpin-result", "gpin-failure", "gpin-attempts"
VERSION = 1
PLANES = "planes.npz"


class Store:
    """A folder of jobs and their results.

    Arguments:
        root: The folder; it is created when something is written.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = as_path(root, "the store")
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"{self.root} is a file, but the store must be a folder")
        self._known: dict[str, dict[str, Any]] = {}  # results that were verified once

    def folder(self, job: Job) -> Path:
        """The folder of a job."""
        return self.root / job.identity

    def scores(self, job: Job) -> Path:
        """The file with the scores of every instance."""
        return self.folder(job) / "instances.parquet"

    def planes(self, job: Job) -> dict[str, np.ndarray] | None:
        """The arrays of the figure of true posteriors; None if the store does not have them."""
        try:
            with np.load(self.folder(job) / PLANES) as found:
                return dict(found)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile):
            return None

    @property
    def runs(self) -> Path:
        """The folder of the runs on data of your own."""
        return self.root / "runs"

    def lease(self, job: Job, lost: Callable[[], None]) -> AbstractContextManager[bool]:
        """A context that yields whether this process holds the job, see `gpin.experiments.execution.leases`."""
        return lease(self.folder(job), lost)

    def running(self, job: Job) -> bool:
        """Whether a worker has the job."""
        return leased(self.folder(job))

    def result(self, job: Job) -> dict[str, Any] | None:
        """The result of a job; None if it is not done, or if its files are damaged so that it must be run again."""
        if job.identity in self._known:
            return self._known[job.identity]
        try:
            record = read_record(self.folder(job) / "result.json", RESULT, VERSION, "a result")
            whole = hashlib.sha256(self.scores(job).read_bytes()).hexdigest() == record["scores_sha256"]
        except VersionError:
            raise
        except (InputError, FileNotFoundError, IsADirectoryError):
            return None
        if not whole:
            return None
        self._known[job.identity] = record
        return record

    def failure(self, job: Job) -> str | None:
        """The reason why a job failed; None if it did not."""
        try:
            return str(read_record(self.folder(job) / "failure.json", FAILURE, VERSION, "a failure")["reason"])
        except (InputError, OSError):
            return None

    def forget_failure(self, job: Job) -> None:
        """Let a failed job be tried again, however many workers died in it; a running job is left alone."""
        if self.running(job):
            return
        (self.folder(job) / "failure.json").unlink(missing_ok=True)
        self._note_attempts(job, [])

    def attempts(self, job: Job) -> list[str]:
        """The names of the workers that started a job and did not finish it: those that died, and the present one."""
        try:
            record = read_record(self.folder(job) / "attempts.json", ATTEMPTS, VERSION, "a list of attempts")
        except (InputError, OSError):
            return []
        return [str(worker) for worker in record["workers"]]

    @contextmanager
    def attempt(self, job: Job, worker: str) -> Iterator[list[str]]:
        """Record an attempt of this worker at a job that it holds; yields the workers that died in the job before.

        An attempt that ends with an exception has released the job and does not count; one whose process dies does.
        """
        died = self.attempts(job)
        self._note_attempts(job, [*died, worker])
        try:
            yield died
        except BaseException:
            self._note_attempts(job, died)
            raise
        self._note_attempts(job, [])

    def _note_attempts(self, job: Job, workers: list[str]) -> None:
        path = self.folder(job) / "attempts.json"
        if workers:
            write_record(path, ATTEMPTS, VERSION, {"workers": workers})
        else:
            path.unlink(missing_ok=True)

    def state(self, job: Job) -> State:
        """The state of a job."""
        if self.result(job) is not None:
            return "done"
        if self.running(job):
            return "running"
        return "waiting" if self.failure(job) is None else "failed"

    def begin(self, job: Job) -> None:
        """Create the folder of a job and write the job to it."""
        self.folder(job).mkdir(parents=True, exist_ok=True)
        remove_unfinished(self.folder(job))
        write_record(self.folder(job) / "job.json", JOB, VERSION, job.record())

    def fail(self, job: Job, reason: str) -> None:
        """Write why a job failed."""
        write_record(self.folder(job) / "failure.json", FAILURE, VERSION, {"reason": reason})

    def finish(
        self,
        job: Job,
        record: Mapping[str, Any],
        scores: Mapping[str, Any],
        planes: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the result; once `result.json` is there, the job is done.

        Scores are compressed and stored in single precision, whose rounding error is far below their Monte-Carlo error.
        For the 10,000 test images of MNIST, each scored after four different numbers of steps, the file then takes
        about one megabyte instead of three.
        """
        columns = {name: np.asarray(column) for name, column in scores.items()}
        single = {name: c.astype(np.float32) if c.dtype == np.float64 else c for name, c in columns.items()}
        write_table(self.scores(job), [single], compact=True)
        if planes is not None:
            with written_whole(self.folder(job) / PLANES) as file:
                np.savez_compressed(file, **planes)
        digest = hashlib.sha256(self.scores(job).read_bytes()).hexdigest()
        write_record(self.folder(job) / "result.json", RESULT, VERSION, {**record, "scores_sha256": digest})

    def missing(self, jobs: Iterable[Job]) -> list[Job]:
        """The jobs that are not done."""
        return [job for job in jobs if self.result(job) is None]

    def left(self, jobs: Iterable[Job]) -> list[Job]:
        """The jobs that are neither done nor failed."""
        return [job for job in self.missing(jobs) if self.failure(job) is None]
