"""Measure the cost of inference, as ratios to the plain VAE in the same run. See README.md beside this file.

To compare another method, add a line to METHODS.
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
from functools import cache, partial
from pathlib import Path
from typing import Any

# Waiting threads sleep, because spinning on a busy machine distorts all times. torch reads this at import.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import tables
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional

import gpin
from gpin.distributions import DiagonalNormal

BATCH, LATENT_DIM = 128, 50
SHAPE = (1, 28, 28)
LARGE_SHAPE = (3, 32, 32)  # where the paper's features are 512 wide
TRAINING_STEPS = 300  # for the models on whose posteriors steps and line searches are timed

STATUS = Path("/proc/self/status")  # Linux only

PAPER = {"covariance": "full", "shared_trunk": False, "deviations": "absolute", "log_square": "exact"}
PAPER_VAE = 3.6  # milliseconds per batch; the paper's tab:inf_time, MNIST, d = 50
PAPER_GP_DENSE = 9.8  # the GPVAE with a dense decoder; the paper's tab:time_fullcon_decoder, MNIST, d = 50

Encode = Callable[[Tensor], Distribution]


@dataclass(frozen=True)
class Method:
    """A row of the tables.

    Arguments:
        label: Its name in the tables.
        options: Options for gpin.build.
        encode: Makes x → q(z|x) from the model; by default `vae.encode`.
        group: Its name for `--only`; by default the method's name in the library.
        trained: Whether the time depends on the weights, which are then taken from a trained VAE, or from a trained
            model of the method if it takes natural-gradient steps.
        calls: The number of calls per repeat; methods with one call take long enough to need no warm-up.
        share: The fraction of the repeats in which it is timed.
        paper: The paper's milliseconds for a batch of MNIST, d = 50.
        paper_dense: The same from the paper's table for dense decoders, which has no VAE.
        at_most: The target for the ratio to the VAE's inference time.
        train: Whether its training step is timed as well.
    """

    label: str
    options: dict[str, Any] = field(default_factory=dict)
    encode: Callable[[gpin.VAE], Encode] | None = None
    group: str = ""
    trained: bool = False
    calls: int = 3
    share: float = 1.0
    paper: float | None = None
    paper_dense: float | None = None
    at_most: float | None = None
    train: bool = False

    @property
    def name(self) -> str:
        """The name for `--only`."""
        return self.group or self.options.get("method", "gp")


def loop_over_dimensions(vae: gpin.VAE) -> Encode:
    """The paper's implementation: the full covariances of `vae`, one latent dimension at a time."""
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
        return DiagonalNormal(mean + f, ((std + h).square() + h_variance + f_variance).sqrt())

    x = digits()[:BATCH]
    with torch.no_grad():
        ours, theirs = vae.encode(x), encode(x)
    for moment in ("mean", "stddev"):
        torch.testing.assert_close(getattr(theirs, moment), getattr(ours, moment), rtol=1e-4, atol=1e-5)
    return encode


LOOP, DEFAULT = "GP full, loop over dimensions", "GP shared basis, shared trunk (default)"

METHODS = [
    Method("VAE", {"method": "vae"}, paper=PAPER_VAE, train=True),
    Method(LOOP, PAPER, encode=loop_over_dimensions, paper=9.9),
    Method("GP full, separate towers", PAPER, at_most=7.5, train=True),
    Method("GP diagonal, separate towers", {**PAPER, "covariance": "diagonal"}, train=True),
    Method(DEFAULT, at_most=1.25, train=True),
    *(
        Method(
            f"SA ({steps})",
            {"method": "sa", "preset": "paper", "steps": steps},
            trained=True,
            calls=3 if steps < 4 else 1,
            paper=paper,
        )
        for steps, paper in ((1, 9.7), (2, 18.1), (4, 32.2), (8, 60.8))
    ),
    *(
        Method(
            label,
            {"method": "natural"},
            encode=lambda vae, steps=steps, check=check: partial(vae.encode, steps=steps, check=check),
            trained=True,
            at_most=at_most,
            train=steps == 1 and check,
        )
        for label, steps, check, at_most in (
            ("Natural, encoder only", 0, True, 1.2),
            ("Natural (1 step, default)", 1, True, 5.0),
            ("Natural (1 step, unchecked)", 1, False, 5.0),
            ("Natural (2 steps)", 2, True, 9.0),
            ("Natural (2 steps, unchecked)", 2, False, 9.0),
            ("Natural (4 steps)", 4, True, None),
        )
    ),
    Method("SA (2), line search", {"method": "sa", "steps": 2}, trained=True, calls=1),
    Method("SA (4), line search (default)", {"method": "sa"}, trained=True, calls=1),
    *(
        Method(f"IAF ({flows})", {"method": "iaf", "flows": flows}, paper=paper)
        for flows, paper in ((1, 4.8), (2, 5.9), (4, 6.2), (8, 7.7))
    ),
    *(Method(f"HF ({flows})", {"method": "hf", "flows": flows}) for flows in (1, 2, 8)),
    *(Method(f"ME ({components})", {"method": "me", "components": components}) for components in (2, 5)),
    *(Method(f"RME ({components})", {"method": "rme", "components": components}) for components in (2, 5)),
    *(
        Method(
            f"VLAE ({steps}), dense decoder",
            {"method": "vlae", "steps": steps, "architecture": {"decoder": "dense"}},
            calls=1,
            share=0.5,
            paper_dense=paper,
        )
        for steps, paper in ((1, 12.9), (4, 17.8))
    ),
    Method("VLAE (4), convolutional decoder (default)", {"method": "vlae"}, calls=1, share=0.2),
    Method(
        "VAE + 4 Gauss–Newton steps",
        {"method": "vae"},
        encode=lambda vae: partial(vae.refine, steps=4, gradients=0),
        group="refine",
        trained=True,
        calls=1,
        share=0.2,
    ),
]


@cache
def digits() -> Tensor:
    """The 1797 digits of scikit-learn, enlarged to SHAPE, in [0, 1]."""
    images = torch.from_numpy(load_digits().images).float().unsqueeze(1) / 16
    return functional.interpolate(images, SHAPE[1:], mode="bilinear")


@cache
def trained(method: str, latent_dim: int) -> gpin.VAE:
    """A model after some training on the digits: with an untrained one, line searches accept nearly every step."""
    vae = gpin.build(SHAPE, method, latent_dim, seed=0)
    vae.prepare(digits())
    step = training_step(vae)
    for _ in range(TRAINING_STEPS):
        step(digits()[torch.randint(len(digits()), (BATCH,))])
    return vae


def make(method: Method, latent_dim: int) -> gpin.VAE:
    """The model of a method, with all its components, and with covariances that are not multiples of the identity."""
    vae = gpin.build(SHAPE, latent_dim=latent_dim, seed=0, **method.options)
    vae.prepare(digits())
    for stage in range(len(vae.inference.stages())):
        vae.inference.begin_stage(stage)
    noise = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for process in getattr(vae.inference, "processes", ()):
            process.reset(1.0)  # large enough for a wrong covariance to show in the moments
            for parameter in process.parameters():
                parameter += 0.03 * torch.randn(parameter.shape, generator=noise)
    if method.trained and vae.inference.takes_steps:
        vae.load_state_dict(trained(vae.inference.name, latent_dim).state_dict())
    elif method.trained:
        source, encoder = trained("vae", latent_dim), getattr(vae.inference, "base", vae.inference)
        encoder.load_state_dict(source.inference.state_dict())
        vae.decoder.load_state_dict(source.decoder.state_dict())
        vae.likelihood.load_state_dict(source.likelihood.state_dict())
    return vae


@dataclass(frozen=True)
class Task:
    """A call to time, its number per repeat, the fraction of the repeats in which it is timed, and the clock."""

    call: Callable[[], object]
    calls: int = 1
    share: float = 1.0
    warm: bool = True
    clock: Callable[[], float] = time.perf_counter

    def due(self, repeat: int, repeats: int) -> bool:
        """Whether it is timed in this repeat; these repeats are evenly spread, and at least two."""
        count = max(2, round(self.share * repeats))
        return repeat * count % repeats < count

    def seconds(self) -> float:
        """The mean time of a call; an untimed call before brings the weights into the cache."""
        if self.warm:
            self.call()
        start = self.clock()
        for _ in range(self.calls):
            self.call()
        return (self.clock() - start) / self.calls


def inference_task(method: Method, latent_dim: int, clock: Callable[[], float]) -> Task:
    """Encode a batch and draw one z per instance."""
    vae = make(method, latent_dim).eval()
    encode = method.encode(vae) if method.encode else vae.encode
    x = digits()[:BATCH]

    @torch.no_grad()
    def run() -> Tensor:
        return encode(x).rsample()

    return Task(run, method.calls, method.share, method.calls > 1, clock)


def training_step(vae: gpin.VAE) -> Callable[[Tensor], object]:
    """A function that makes one training step on a batch: forward, backward, Adam."""
    vae.train()
    optimiser = torch.optim.Adam(vae.parameter_groups(5e-4))

    def step(x: Tensor) -> None:
        optimiser.zero_grad()
        vae.loss(x).backward()
        optimiser.step()

    return step


def training_task(method: Method, latent_dim: int, clock: Callable[[], float]) -> Task:
    """One training step."""
    return Task(partial(training_step(make(method, latent_dim)), digits()[:BATCH]), clock=clock)


@dataclass(frozen=True)
class Times:
    """The times of one task by repeat: seconds per call, and their ratios to the first task's."""

    seconds: dict[int, float] = field(default_factory=dict)
    ratios: dict[int, float] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """The medians of ratio and time, and the quartiles of the ratio."""
        return summary(self.ratios.values()) | {
            "repeats": len(self.ratios),
            "seconds_per_batch": statistics.median(self.seconds.values()),
        }


def summary(ratios: Sequence[float]) -> dict[str, Any]:
    """The median and the quartiles of ratios."""
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"ratio": middle, "quartiles": [low, high]}


def compare(tasks: dict[str, Task], repeats: int) -> dict[str, Times]:
    """Time tasks relative to the first of them.

    In every repeat the tasks take turns, each time beginning with the next one. The first task is timed again between
    any two others, and a ratio is relative to the mean of its times just before and just after, so that other load on
    the machine affects both alike. Its own row compares it with itself and shows the noise.
    """
    names = list(tasks)
    times = {name: Times() for name in names}
    for task in tasks.values():
        task.call()
    before = tasks[names[0]].seconds()
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            if tasks[name].due(repeat, repeats):
                own = tasks[name].seconds()
                after = tasks[names[0]].seconds()
                times[name].seconds[repeat], times[name].ratios[repeat] = own, 2 * own / (before + after)
                before = after
    return times


def against(times: dict[str, Times], label: str, other: str) -> dict[str, Any]:
    """The ratio of two tasks, from their ratios to the first task in the repeats that have both."""
    own, base = times[label].ratios, times[other].ratios
    return summary([own[repeat] / base[repeat] for repeat in own if repeat in base])


def peak_memory(threads: int) -> int:
    """The bytes that training the full covariance with p = 512 adds to a process that has imported everything.

    It takes three steps, because Adam's moments exist during the backward pass only from the second step on.
    """
    torch.set_num_threads(threads)
    x = torch.rand(BATCH, *LARGE_SHAPE)
    before = _memory("VmRSS")
    vae = gpin.build(LARGE_SHAPE, latent_dim=LATENT_DIM, seed=0, **PAPER)
    vae.prepare(x)
    step = training_step(vae)
    for _ in range(3):
        step(x)
    return _memory("VmHWM") - before


def _memory(name: str) -> int:
    """A memory size of this process in bytes; VmHWM is getrusage's ru_maxrss without the contribution of the parent."""
    lines = STATUS.read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def in_fresh_process(function: Callable[[int], int], argument: int) -> int:
    """The result of a function that is called in a new interpreter."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, argument).result()


def main() -> None:
    """Measure, and print the results."""
    groups = list(dict.fromkeys(method.name for method in METHODS))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: all, %(default)s")
    parser.add_argument("--repeats", type=int, default=40, help="interleaved rounds; default: %(default)s")
    parser.add_argument("--only", default=",".join(groups), help="some of %(default)s; the VAE is always included")
    parser.add_argument("--latent-dim", type=int, default=LATENT_DIM, help="default: %(default)s")
    parser.add_argument("--cpu", action="store_true", help="processor time, which is steadier than wall-clock time")
    parser.add_argument("--json", action="store_true", help="print JSON, with seconds, instead of tables")
    parser.add_argument(
        "--save", action="store_true", help=f"write {tables.MEASURED.name} and the tables in the documents"
    )
    arguments = parser.parse_args()
    dim = arguments.latent_dim
    if arguments.threads < 1 or arguments.repeats < 2 or dim < 1:
        parser.error("--threads and --latent-dim must be at least 1, and --repeats at least 2")
    only = arguments.only.split(",")
    if arguments.save and (arguments.only != parser.get_default("only") or dim != LATENT_DIM):
        parser.error("--save needs all methods and the default latent dimension: leave out --only and --latent-dim")
    if unknown := [name for name in only if name not in groups]:
        parser.error(f"--only: unknown {', '.join(map(repr, unknown))}; choose from {', '.join(groups)}")
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    clock = time.process_time if arguments.cpu else time.perf_counter
    methods = [method for method in METHODS if method.name in ("vae", *only)]

    memory = in_fresh_process(peak_memory, arguments.threads) if STATUS.exists() and "gp" in only else None
    times = compare({method.label: inference_task(method, dim, clock) for method in methods}, arguments.repeats)
    inference = [
        {
            "label": method.label,
            **times[method.label].row(),
            "paper": method.paper and method.paper / PAPER_VAE,
            "at_most": method.at_most,
        }
        for method in methods
    ]
    vlae = [
        {
            "label": method.label,
            "loop": against(times, method.label, LOOP),
            "default": against(times, method.label, DEFAULT),
            "paper": method.paper_dense / PAPER_GP_DENSE,
        }
        for method in methods
        if method.paper_dense and LOOP in times
    ]
    trained = [method for method in methods if method.train]
    steps = (
        compare({method.label: training_task(method, dim, clock) for method in trained}, arguments.repeats)
        if trained[1:]
        else {}
    )
    training = [{"label": label, **steps[label].row()} for label in steps]
    setting = {
        "batch": BATCH,
        "latent_dim": dim,
        "shape": SHAPE,
        "threads": arguments.threads,
        "repeats": arguments.repeats,
        "clock": clock.__name__,
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "torch": torch.__version__.split("+")[0],
    }
    results = {
        "setting": setting,
        "inference": inference,
        "vlae_against_gp": vlae,
        "training_step": training,
        "training_peak_bytes": memory,
    }
    if arguments.save:
        tables.MEASURED.write_text(json.dumps(results, indent=2) + "\n")
        tables.update()
    print(json.dumps(results, indent=2) if arguments.json else tables.everything(results))


if __name__ == "__main__":
    main()
