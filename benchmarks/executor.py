"""Measure the speed-up of the local executor with several workers on desk runs. See README.md beside this file."""

import argparse
import multiprocessing
import statistics
import tempfile
import time

import torch

from gpin.experiments.execution.executors import run_local
from gpin.experiments.execution.store import Store
from gpin.experiments.protocols import EXPERIMENTS, PROTOCOLS

PRODUCTS = 4000
"""The number of matrix products that are timed, which take a few seconds."""


def seconds(jobs, workers):
    """The time to do all jobs in a new store, and the sum of what the jobs themselves took."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        began = time.perf_counter()
        run_local(store, jobs, workers)
        taken = time.perf_counter() - began
        if store.missing(jobs):
            raise SystemExit(f"not all runs are done: {[store.failure(job) for job in store.missing(jobs)]}")
        records = [store.result(job) for job in jobs]
    return taken, sum(record["training_seconds"] + record["scoring_seconds"] for record in records)


def product_seconds(worker):
    """The time of many products of matrices that fit into the cache of one core, on one thread."""
    torch.set_num_threads(1)
    matrix = torch.ones(256, 256)
    began = time.perf_counter()
    for _ in range(PRODUCTS):
        matrix @ matrix
    return time.perf_counter() - began


def machine_speedup(workers):
    """How much work several processes do in the time that one process takes for its own, with nothing to share."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(product_seconds, range(workers), chunksize=1)  # imports and the first call are not timed
        alone = pool.apply(product_seconds, (0,))
        together = statistics.mean(pool.map(product_seconds, range(workers), chunksize=1))
    return workers * alone / together


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", default="digits", help="default: %(default)s")
    parser.add_argument("--rows", default="vae,gp-shared", help="default: %(default)s")
    parser.add_argument("--runs", type=int, help="how many of the runs to do; default: all")
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved rounds; default: %(default)s")
    arguments = parser.parse_args()
    workers = arguments.workers
    entries = EXPERIMENTS[arguments.experiment].entries(PROTOCOLS["desk"], [10], arguments.rows.split(","))
    jobs = [entry.job for entry in entries][: arguments.runs]
    ratios, slower, machine = [], [], []
    for _ in range(arguments.repeats):
        machine.append(machine_speedup(workers))
        (alone, alone_in_runs), (together, together_in_runs) = seconds(jobs, 1), seconds(jobs, workers)
        ratios.append(alone / together)
        slower.append(together_in_runs / alone_in_runs)
        print(
            f"{len(jobs)} runs: {alone:.0f} s with one worker, {together:.0f} s with {workers}; "
            f"within the runs {alone_in_runs:.0f} and {together_in_runs:.0f} s",
            flush=True,
        )
    print(f"speed-up {statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f}, {len(ratios)} repeats)")
    print(f"a run takes {statistics.median(slower):.2f} times as long beside the others as alone")
    print(f"{workers} processes that only multiply small matrices: speed-up {statistics.median(machine):.2f}")


if __name__ == "__main__":
    main()
