"""What inference costs, as ratios to the plain VAE in one and the same run. See README.md beside this file.

A method more to compare is a line more in METHODS.
"""

import argparse
import copy
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Threads that wait sleep instead of spinning: spinning on a busy machine distorts everything. Read by torch at import.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributions import Distribution

import gpin
from gpin.distributions import diagonal_normal

BATCH, LATENT_DIM = 128, 50
SHAPE = (1, 28, 28)
LARGE_SHAPE = (3, 32, 32)  # where the paper's features are 512 wide

STATUS = Path("/proc/self/status")  # Linux only

PAPER = {"covariance": "full", "shared_trunk": False, "log_square": "exact"}

Encode = Callable[[Tensor], Distribution]


@dataclass(frozen=True)
class Method:
    """A row of the tables.

    Arguments:
        label: Its name there.
        options: For gpin.build.
        encode: Makes x → q(z|x) from the model, where that is not the library's own.
        at_most: The ratio to the VAE's inference time that we hold ourselves to.
        train: Whether its training step is timed as well.
    """

    label: str
    options: dict[str, Any] = field(default_factory=dict)
    encode: Callable[[gpin.VAE], Encode] | None = None
    at_most: float | None = None
    train: bool = True


def loop_over_dimensions(vae: gpin.VAE) -> Encode:
    """The paper's way: the full covariances of `vae`, one latent dimension at a time."""
    encoder = vae.inference
    covariances = [copy.deepcopy(process).double().covariance().detach() for process in encoder.processes]
    roots = [list(torch.linalg.cholesky(covariance).float()) for covariance in covariances]
    means = [process.mean.detach().clone() for process in encoder.processes]

    def encode(x: Tensor) -> Distribution:
        x = vae.check(x)
        mean, std, _ = encoder.base.moments(encoder.base.trunk(x))
        moments = []
        for tower, mu, factors in zip(encoder.towers, means, roots, strict=True):
            psi = tower(x)
            variances = [(psi @ factor).square().sum(-1) for factor in factors]
            moments.append((psi @ mu.T, torch.stack(variances, dim=-1)))
        (f, f_variance), (h, h_variance) = moments
        return diagonal_normal(mean + f, ((std + h).square() + h_variance + f_variance).sqrt())

    return encode


METHODS = [
    Method("VAE", {"method": "vae"}),
    Method("GP full, loop over dimensions", PAPER, encode=loop_over_dimensions, train=False),
    Method("GP full, separate towers", PAPER, at_most=7.5),
    Method("GP diagonal, separate towers", {"covariance": "diagonal", "shared_trunk": False}),
    Method("GP shared basis, shared trunk (default)", at_most=1.25),
]
MEMORY_AT_MOST = 1e9


def make(method: Method) -> gpin.VAE:
    """The method's model, with covariances that are not multiples of the identity."""
    vae = gpin.build(SHAPE, latent_dim=LATENT_DIM, seed=0, **method.options)
    vae.prepare(instances(SHAPE, seed=1))
    noise = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in getattr(vae.inference, "processes", torch.nn.ModuleList()).parameters():
            parameter += 1e-3 * torch.randn(parameter.shape, generator=noise)
    return vae


def instances(shape: Sequence[int], seed: int) -> Tensor:
    """A batch of noise in [0, 1]: speed does not depend on what is in it."""
    return torch.rand(BATCH, *shape, generator=torch.Generator().manual_seed(seed))


def inference_tasks() -> dict[str, Callable[[], object]]:
    """For every method, a call that encodes a batch and reads mean and standard deviation."""
    x = instances(SHAPE, seed=3)

    def task(method: Method) -> Callable[[], object]:
        vae = make(method).eval()
        encode = method.encode(vae) if method.encode else vae.encode

        @torch.no_grad()
        def run() -> tuple[Tensor, Tensor]:
            q = encode(x)
            return q.mean, q.stddev

        if method.encode:
            with torch.no_grad():
                q = vae.encode(x)
            for ours, theirs in zip(run(), (q.mean, q.stddev), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        return run

    return {method.label: task(method) for method in METHODS}


def training_step(vae: gpin.VAE, x: Tensor) -> Callable[[], object]:
    """A call that takes one step: forward, backward, Adam."""
    vae.train()
    optimiser = torch.optim.Adam(vae.parameter_groups(5e-4))

    def step() -> None:
        optimiser.zero_grad()
        vae.loss(x).backward()
        optimiser.step()

    return step


def training_tasks() -> dict[str, Callable[[], object]]:
    """For every method that is trained, its step."""
    x = instances(SHAPE, seed=3)
    return {method.label: training_step(make(method), x) for method in METHODS if method.train}


def compare(tasks: dict[str, Callable[[], object]], repeats: int, batches: int) -> list[dict[str, Any]]:
    """Time tasks against the first of them.

    In every repeat each task runs once untimed, to have its weights at hand, and then `batches` times;
    which task begins moves on by one. The ratios are taken within a repeat: what else the machine does
    meets all tasks alike.
    """
    names = list(tasks)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for task in tasks.values():
        task()
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            task = tasks[name]
            task()
            start = time.perf_counter()
            for _ in range(batches):
                task()
            seconds[name].append((time.perf_counter() - start) / batches)
    rows = []
    for name in names:
        ratios = [own / base for own, base in zip(seconds[name], seconds[names[0]], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        row = {"label": name, "ratio": middle, "quartiles": [low, high]}
        rows.append(row | {"seconds_per_batch": statistics.median(seconds[name])})
    return rows


def peak_memory(threads: int) -> int:
    """Bytes that training the full covariance at p = 512 adds to a process that has imported everything.

    Three steps, because from the second on Adam's moments are there during the backward pass.
    """
    torch.set_num_threads(threads)
    x = instances(LARGE_SHAPE, seed=1)
    before = _memory("VmRSS")
    vae = gpin.build(LARGE_SHAPE, latent_dim=LATENT_DIM, seed=0, **PAPER)
    vae.prepare(x)
    step = training_step(vae, x)
    for _ in range(3):
        step()
    return _memory("VmHWM") - before


def _memory(name: str) -> int:
    """A figure of this process; VmHWM is getrusage's ru_maxrss, but without what the parent left in that."""
    lines = STATUS.read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def in_fresh_process(function: Callable[[int], int], argument: int) -> int:
    """The function's result from a new interpreter."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, argument).result()


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Rows of `compare` for print."""
    shown = Table(title=title, title_justify="left", title_style="bold")
    shown.add_column("encoder")
    bounded = any(row.get("at_most") for row in rows)
    for column in ("× VAE", "quartiles", "expected")[: 3 if bounded else 2]:
        shown.add_column(column, justify="right")
    for row in rows:
        low, high = row["quartiles"]
        cells = [row["label"], f"{row['ratio']:.2f}", "" if low == high else f"{low:.2f} – {high:.2f}"]
        if bounded:
            cells.append(f"≤ {row['at_most']:.2f}" if row["at_most"] else "")
        shown.add_row(*cells)
    return shown


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s, all")
    parser.add_argument("--repeats", type=int, default=40, help="interleaved rounds; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON, with seconds, instead of tables")
    arguments = parser.parse_args()
    if arguments.threads < 1 or arguments.repeats < 2:
        parser.error("--threads must be at least 1 and --repeats at least 2")
    torch.set_num_threads(arguments.threads)

    memory = in_fresh_process(peak_memory, arguments.threads) if STATUS.exists() else None
    inference = compare(inference_tasks(), arguments.repeats, batches=5)
    bounds = {method.label: method.at_most for method in METHODS}
    inference = [row | {"at_most": bounds[row["label"]]} for row in inference]
    training = compare(training_tasks(), arguments.repeats, batches=2)
    setting = {
        "batch": BATCH,
        "latent_dim": LATENT_DIM,
        "shape": SHAPE,
        "threads": arguments.threads,
        "repeats": arguments.repeats,
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
    }
    if arguments.json:
        results = {"inference": inference, "training_step": training, "training_peak_bytes": memory}
        print(json.dumps({"setting": setting, **results}, indent=2))
        return
    console = Console()
    size = "×".join(map(str, SHAPE))
    console.print(
        f"Batch {BATCH}, d = {LATENT_DIM}, images {size}; torch {torch.__version__}, {arguments.threads} thread(s) on "
        f"{setting['cores']} cores, load average {setting['load_average']}; medians of {arguments.repeats} repeats.\n"
    )
    console.print(table("Inference: one batch, mean and standard deviation of q(z|x)", inference), "")
    console.print(table("Training: one step, forward, backward and Adam", training), "")
    measured = "not measured, it needs Linux" if memory is None else f"{memory / 1e6:.0f} MB"
    console.print(
        f"Peak memory of training with full covariance, p = 512, d = {LATENT_DIM}, batch {BATCH}, images "
        f"{'×'.join(map(str, LARGE_SHAPE))}: {measured} (expected: ≤ {MEMORY_AT_MOST / 1e6:.0f} MB)"
    )


if __name__ == "__main__":
    main()
