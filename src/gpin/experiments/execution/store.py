"""The store of an experiment: a folder a job, named by the hash of the job.

| file | holds |
|---|---|
| `job.json` | the job |
| `result.json` | the run in numbers, with machine and versions, and the checksum of the scores: written last |
| `instances.parquet` | the scores of every test instance |
| `failure.json` | in place of a result, why there is none |
| `lease.json` | while somebody works on it, who |
| `attempts.json` | the workers that began it and came to no end: who works on it, and before that one those that died |
| `run/` | the run, as `gpin train` makes it: to resume it, or to use the model |

The tables need no more than the first three, which are small.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

from gpin._core.errors import InputError, VersionError
from gpin._core.files import as_path, read_record, remove_unfinished, write_record
from gpin.experiments.execution.jobs import Job
from gpin.experiments.execution.leases import lease, leased
from gpin.runs.outputs import write_table

__all__ = ["Store"]

JOB, RESULT, FAILURE, ATTEMPTS = "gpin-job", "gpin-result", "gpin-failure", "gpin-attempts"
VERSION = 1


class Store:
    """Where jobs and their results are.

    Arguments:
        root: The folder; it is made when something is written.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = as_path(root, "the store")
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"{self.root} is a file, and the store must be a folder")
        self._known: dict[str, dict[str, Any]] = {}  # results, once they were seen whole

    def folder(self, job: Job) -> Path:
        """The job's."""
        return self.root / job.identity

    def scores(self, job: Job) -> Path:
        """The file with the scores of every instance."""
        return self.folder(job) / "instances.parquet"

    def lease(self, job: Job, lost: Callable[[], None]) -> AbstractContextManager[bool]:
        """Whether the job is ours to do, see `gpin.experiments.execution.leases`."""
        return lease(self.folder(job), lost)

    def running(self, job: Job) -> bool:
        """Whether somebody works on it."""
        return leased(self.folder(job))

    def result(self, job: Job) -> dict[str, Any] | None:
        """What came of a job; None where it is not done, or where its files are damaged and it must be done again."""
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
        """Why a job has no result."""
        try:
            return str(read_record(self.folder(job) / "failure.json", FAILURE, VERSION, "a failure")["reason"])
        except (InputError, OSError):
            return None

    def forget_failure(self, job: Job) -> None:
        """Have it tried again, however many workers died of it; what somebody is at is left alone."""
        if self.running(job):
            return
        (self.folder(job) / "failure.json").unlink(missing_ok=True)
        self._note_attempts(job, [])

    def attempts(self, job: Job) -> list[str]:
        """The workers that began a job and came to no end, by name: who works on it, and those that died."""
        try:
            record = read_record(self.folder(job) / "attempts.json", ATTEMPTS, VERSION, "a list of attempts")
        except (InputError, OSError):
            return []
        return [str(worker) for worker in record["workers"]]

    @contextmanager
    def attempt(self, job: Job, worker: str) -> Iterator[list[str]]:
        """An attempt of this worker at a job that is leased to it; yields those that died of the job before.

        One that ends with an exception has let the job go, and was none. One whose process dies stays noted.
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

    def state(self, job: Job) -> Literal["done", "running", "failed", "waiting"]:
        """Where a job stands."""
        if self.result(job) is not None:
            return "done"
        if self.running(job):
            return "running"
        return "waiting" if self.failure(job) is None else "failed"

    def begin(self, job: Job) -> None:
        """Note what the folder is for."""
        self.folder(job).mkdir(parents=True, exist_ok=True)
        remove_unfinished(self.folder(job))
        write_record(self.folder(job) / "job.json", JOB, VERSION, job.model_dump(mode="json"))

    def fail(self, job: Job, reason: str) -> None:
        """Note why there is no result."""
        write_record(self.folder(job) / "failure.json", FAILURE, VERSION, {"reason": reason})

    def finish(self, job: Job, record: Mapping[str, Any], scores: Mapping[str, Any]) -> None:
        """Write the result; once `result.json` is there, the job is done."""
        write_table(self.scores(job), [scores])
        digest = hashlib.sha256(self.scores(job).read_bytes()).hexdigest()
        write_record(self.folder(job) / "result.json", RESULT, VERSION, {**record, "scores_sha256": digest})

    def missing(self, jobs: Iterable[Job]) -> list[Job]:
        """Those that are not done."""
        return [job for job in jobs if self.result(job) is None]

    def left(self, jobs: Iterable[Job]) -> list[Job]:
        """Those that are neither done nor failed."""
        return [job for job in self.missing(jobs) if self.failure(job) is None]
