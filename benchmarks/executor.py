"""Measure the speed-up of the local executor with several workers on desk runs. See README.md beside this file."""

import argparse
import statistics
import tempfile
import time

from gpin.experiments.execution.executors import run_local
from gpin.experiments.execution.store import Store
from gpin.experiments.protocols import EXPERIMENTS, PROTOCOLS


def seconds(jobs, workers):
    """The time to do all jobs in a new store."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        began = time.perf_counter()
        run_local(store, jobs, workers)
        taken = time.perf_counter() - began
        if store.missing(jobs):
            raise SystemExit(f"not all runs are done: {[store.failure(job) for job in store.missing(jobs)]}")
    return taken


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", default="digits", help="default: %(default)s")
    parser.add_argument("--rows", default="vae,gp-shared", help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved rounds; default: %(default)s")
    arguments = parser.parse_args()
    entries = EXPERIMENTS[arguments.experiment].entries(PROTOCOLS["desk"], [10], arguments.rows.split(","))
    jobs = [entry.job for entry in entries]
    ratios = []
    for _ in range(arguments.repeats):
        alone, together = seconds(jobs, 1), seconds(jobs, arguments.workers)
        ratios.append(alone / together)
        print(f"{len(jobs)} runs: {alone:.0f} s with one worker, {together:.0f} s with {arguments.workers}", flush=True)
    print(f"speed-up {statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f}, {len(ratios)} repeats)")


if __name__ == "__main__":
    main()
