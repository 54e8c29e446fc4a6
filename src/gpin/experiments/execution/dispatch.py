"""Where and with how many workers jobs run: the choice of an executor, checked once, and its use."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpin._core.errors import InputError
from gpin._core.inputs import whole_number
from gpin.experiments.execution.executors import EXECUTORS
from gpin.experiments.execution.jobs import Job
from gpin.experiments.execution.store import Store
from gpin.inference import METHODS

__all__ = ["Execution"]


@dataclass(frozen=True)
class Execution:
    """Where jobs run.

    Attributes:
        executor: The name of an executor, one of `EXECUTORS`.
        workers: The number of jobs that run at the same time.
        threads: The number of threads per worker.
        options: Further options of the executor.
    """

    executor: str = "local"
    workers: int = 1
    threads: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def checked(
        cls,
        executor: str = "local",
        workers: int | None = None,
        threads: int = 1,
        *,
        address: str | None = None,
        slurm: Mapping[str, Any] | None = None,
    ) -> "Execution":
        """Check what a user chose.

        Arguments:
            executor: The name of an executor.
            workers: The number of workers; by default the number of cores, and 1 for "serial".
            threads: The number of threads per worker.
            address: The address of a Ray cluster.
            slurm: More options for Slurm.
        """
        if executor not in EXECUTORS:
            raise InputError(f"there is no executor {executor!r}: choose one of {', '.join(EXECUTORS)}")
        count = _workers(workers, executor)
        threads = whole_number(threads, "threads")
        if address is not None and executor != "ray":
            raise InputError("`address` is the address of a Ray cluster: it requires `executor=ray`")
        if slurm and executor != "slurm":
            raise InputError("`slurm` contains options for Slurm: it requires `executor=slurm`")
        return cls(executor, count, threads, {"address": address, "options": dict(slurm or {})})

    def check_methods(self, methods: Iterable[str]) -> None:
        """Raise InputError if other processes would need a method that is registered only in this one."""
        for method in methods if self.executor != "serial" else ():
            if METHODS[method].__module__.partition(".")[0] != "gpin":
                raise InputError(
                    f"the method {method!r} is registered only in this process, so workers do not have it: "
                    "use `executor=serial`"
                )

    def run(self, store: Store, jobs: Sequence[Job], watch: Callable[[], None] = lambda: None) -> None:
        """Run all jobs that are not done; those that failed before are tried again.

        Arguments:
            store: The store of the results.
            jobs: The jobs.
            watch: Called repeatedly while they run.
        """
        missing = store.missing(jobs)
        for job in missing:
            store.forget_failure(job)
        if missing:
            workers = min(self.workers, len(missing))
            EXECUTORS[self.executor](store, jobs, workers, self.threads, watch, **self.options)


def _workers(workers: int | None, executor: str) -> int:
    if executor == "serial":
        if workers not in (None, 1):
            raise InputError(f"`executor=serial` runs one job at a time: `workers` must be 1, got {workers}")
        return 1
    return whole_number(os.cpu_count() or 1 if workers is None else workers, "workers")
