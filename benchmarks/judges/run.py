"""Judges from outside: sbibm's reference posteriors, and sbi's checks of calibration, on posteriors of gpin.

    python benchmarks/judges/run.py [--tasks slcp] [--methods natural] [--observations 1,2] [--only resampled]

Every result is written to results.json as it comes, and a run continues where the last one stopped: remove an entry, or
the file, to measure again. At the end the tables in README.md are made from results.json. sbibm and sbi get an
environment of their own in benchmarks/judges/.venv, created on first use, which shares all other packages with the
present one. Trained encoders are kept in benchmarks/judges/.models.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from c2st import c2st
from summary import write
from tasks import TASKS, Task, installed
from torch import Tensor
from torch.distributions import Distribution

import gpin

HERE = Path(__file__).parent
ENVIRONMENT, MODELS, RESULTS = HERE / ".venv", HERE / ".models", HERE / "results.json"
PACKAGES = ["sbibm==1.1.0", "sbi==0.27.0", "nflows==0.14", "skorch", "tabulate"]
"""What is installed, without dependencies; sbi needs the last three."""

DRAWS = 10_000
PROPOSALS, CHUNK = 400_000, 20_000
"""The number of proposals from which draws are resampled, and how many are decoded at a time."""

SIMULATIONS = 50_000
TRAINING: dict[str, Any] = {"epochs": 12, "batch_size": 256, "learning_rate": 1e-3, "schedule": "cosine"}

IMPROVEMENT: dict[str, Any] = {"epochs": 24, "batch_size": 256, "learning_rate": 1e-3}

METHODS: dict[str, dict[str, Any]] = {"vae": {}, "gp": {}, "iaf": {"flows": 4}, "natural": {}}
STEPS = (0, 1, 2, 4)
MODES = partial(gpin.VAE.modes, starts=32, rounds=6)

TRUTHS, RANKED = 300, 199
"""The number of simulated pairs (θ, x) for SBC and TARP, and of draws for each."""


class Results:
    """The measurements, in a file that is written whole after each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def has(self, *keys: str) -> bool:
        """Whether there is a measurement of that name."""
        found: Any = self.values
        for key in keys:
            if key not in found:
                return False
            found = found[key]
        return True

    def put(self, *keys: str, value: object) -> None:
        """Write a measurement."""
        place = self.values
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = value
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.values, indent=1, sort_keys=True) + "\n")
        part.replace(self.path)
        print("  ".join(keys), value, flush=True)


# Posteriors --------------------------------------------------------------------------------------------


def trained(task: Task, method: str) -> gpin.VAE:
    """The model of a task with an encoder trained on data drawn from the model; kept in a file."""
    vae, folder = task.vae(method, **METHODS[method]), MODELS / task.name / method
    if (folder / "model.safetensors").exists():
        return gpin.load(folder, into=vae)
    started = time.process_time()
    _, x = task.simulate(SIMULATIONS + 1000, seed=1)
    history = gpin.fit(vae, x[1000:], x[:1000], **TRAINING, calibrate=False, progress=False)
    print(f"{task.name} {method}: {history.scores[-1]:.3f} nats, {time.process_time() - started:.0f} s", flush=True)
    vae.save(folder)
    return vae


def improved(task: Task) -> gpin.VAE:
    """The model with the encoder of natural, trained further on pairs (x, z) drawn from the model; kept in a file."""
    vae, folder = trained(task, "natural"), MODELS / task.name / "improved"
    if (folder / "model.safetensors").exists():
        return gpin.load(folder, into=vae)
    _, x = task.simulate(SIMULATIONS + 1000, seed=1)
    gpin.improve(vae, x[1000:], x[:1000], samples=1.0, **IMPROVEMENT, calibrate=False, progress=False)
    vae.save(folder)
    return vae


Sampler = Callable[[Tensor, int], Tensor]
"""x `(batch, *shape)`, count → draws of z, `(count, batch, d)`."""


def from_posterior(infer: Callable[[Tensor], Distribution]) -> Sampler:
    """Draws of the posterior that a function infers from x."""

    @torch.no_grad()
    def draw(x: Tensor, count: int) -> Tensor:
        return infer(x).sample((count,))

    return draw


class Resampled:
    """Draws resampled by importance weights from a number of proposals; `ess` is that of the newest draws."""

    def __init__(self, vae: gpin.VAE, stage: str, proposals: int) -> None:
        self.vae, self.stage, self.proposals = vae, stage, proposals
        self.ess: Tensor | None = None

    def __call__(self, x: Tensor, count: int) -> Tensor:
        weighted = self.vae.posterior(x, self.proposals, stages=self.stage, chunk_size=CHUNK)
        self.ess = weighted.ess
        return weighted.resample(count)


def resampled(task: Task, stage: str, proposals: int) -> Resampled:
    """Resampled draws of the model with the encoder of natural."""
    return Resampled(trained(task, "natural"), stage, proposals)


def posteriors(task: Task, methods: list[str]) -> Iterator[tuple[str, Callable[[], Sampler]]]:
    """The posteriors of a task, by their names in the table, from the cheapest to the best; each is a function that
    trains the encoder if necessary."""

    def of(method: str, infer: Callable[[gpin.VAE, Tensor], Distribution]) -> Callable[[], Sampler]:
        return lambda: from_posterior(partial(infer, trained(task, method)))

    for method in methods:
        if method != "natural":
            yield method, of(method, gpin.VAE.encode)
            continue
        for steps in STEPS:
            yield f"natural, {steps} steps", of(method, partial(gpin.VAE.encode, steps=steps))
        if task.name != "slcp":  # where one Gaussian would have to cover four modes
            yield "natural, improved", lambda: from_posterior(improved(task).encode)
        yield "refined", of(method, gpin.VAE.refine)
        yield "refined, resampled", partial(resampled, task, "refined", PROPOSALS)
        yield "modes", of(method, MODES)
        yield "modes, resampled", partial(resampled, task, "modes", PROPOSALS)


# Judges ------------------------------------------------------------------------------------------------


def judge_by_reference(
    task: Task, candidates: Iterable[tuple[str, Callable[[], Sampler]]], observations: list[int], results: Results
) -> None:
    """C2ST of posteriors against sbibm's reference draws."""
    for label, make in candidates:
        for number in observations:
            keys = ("c2st", task.name, label, str(number))
            if results.has(*keys):
                continue
            sampler = make()
            torch.manual_seed(number)
            draws = task.to_parameters(sampler(task.observation(number), DRAWS)[:, 0])
            if (ess := getattr(sampler, "ess", None)) is not None:
                results.put("ess", task.name, label, str(number), value=round(ess.item(), 1))
            results.put(*keys, value=round(c2st(task.reference(number), draws), 5))


class SbiPosterior:
    """Draws in the form in which sbi's diagnostics ask for them.

    Arguments:
        sampler: Draws z for a batch of x.
        to_parameters: z → the parameters that are judged.
    """

    def __init__(self, sampler: Sampler, to_parameters: Callable[[Tensor], Tensor]) -> None:
        self.sampler, self.to_parameters = sampler, to_parameters
        self.draws: Tensor | None = None

    def sample_batched(self, sample_shape: torch.Size, x: Tensor, **_: object) -> Tensor:
        """Draws `(count, batch, d)`, the same for every check."""
        if self.draws is None:
            parts = [self.sampler(part, sample_shape[0]) for part in x.split(20)]
            self.draws = self.to_parameters(torch.cat(parts, dim=1)).float()
        return self.draws


def judge_by_sbi(
    name: str,
    pairs: tuple[Tensor, Tensor],
    to_parameters: Callable[[Tensor], Tensor],
    candidates: Iterable[tuple[str, Callable[[], Sampler]]],
    results: Results,
) -> None:
    """SBC and TARP of posteriors, by sbi, on pairs (z, x) drawn from the model."""
    from sbi.diagnostics import check_tarp, run_sbc, run_tarp
    from sbi.diagnostics.sbc import check_uniformity_frequentist

    z, x = pairs
    truths = to_parameters(z).float()
    for label, make in candidates:
        if results.has("sbi", name, label):
            continue
        torch.manual_seed(0)
        posterior = SbiPosterior(make(), to_parameters)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ranks, _ = run_sbc(truths, x, posterior, num_posterior_samples=RANKED, show_progress_bar=False)
            pvalues = check_uniformity_frequentist(ranks, RANKED)
            ecp, alpha = run_tarp(truths, x, posterior, num_posterior_samples=RANKED, show_progress_bar=False)
            area, pvalue = check_tarp(ecp, alpha)
        # Of the 200 values that a rank can have, 160 lie inside.
        inside = ((ranks >= 0.1 * RANKED) & (ranks < 0.9 * RANKED)).float().mean().item()
        value = {
            "ks_pvalues": [round(float(p), 5) for p in pvalues],
            "coverage_80": round(inside, 4),
            "tarp_area": round(float(area), 4),
            "tarp_pvalue": round(float(pvalue), 5),
        }
        results.put("sbi", name, label, value=value)


def digits() -> tuple[gpin.VAE, tuple[Tensor, Tensor]]:
    """A model trained on scikit-learn's digits, d = 4, and pairs (z, x) drawn from it."""
    from sklearn.datasets import load_digits

    x = torch.from_numpy(load_digits().data / 16).reshape(-1, 1, 8, 8)
    vae, folder = gpin.build((1, 8, 8), "natural", 4, seed=0, dtype="float64"), MODELS / "digits"
    if (folder / "model.safetensors").exists():
        vae = gpin.load(folder)
    else:
        gpin.fit(
            vae, x, epochs=60, batch_size=64, learning_rate=1e-3, schedule="cosine", calibrate=False, progress=False
        )
        vae.save(folder)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        drawn, z = vae.sample(TRUTHS, noise=True, return_latents=True)
    return vae, (z, drawn)


def judge_all_by_sbi(names: list[str], methods: list[str], results: Results) -> None:
    """SBC and TARP of a model trained on digits, and of the posteriors of all tasks."""
    if not installed("sbi"):
        print("SBC and TARP are left out: sbi is not installed", file=sys.stderr)
        return
    vae, pairs = digits()
    own: list[tuple[str, Callable[[], Sampler]]] = [
        *((f"natural, {k} steps", partial(from_posterior, partial(vae.encode, steps=k))) for k in STEPS),
        ("refined", partial(from_posterior, vae.refine)),
        ("refined, resampled", partial(Resampled, vae, "refined", 10 * RANKED)),
    ]
    judge_by_sbi("digits", pairs, lambda z: z, own, results)
    for name in names:
        task = TASKS[name]()
        best = "modes" if name == "slcp" else "refined"
        candidates = [entry for entry in posteriors(task, methods) if entry[0] == "refined" or "," in entry[0]]
        candidates = [entry for entry in candidates if "resampled" not in entry[0]]
        count = CHUNK if best == "modes" else 10 * RANKED
        candidates.append((f"{best}, resampled", partial(resampled, task, best, count)))
        judge_by_sbi(name, task.simulate(TRUTHS, seed=2), task.to_parameters, candidates, results)


# The environment and the command -----------------------------------------------------------------------


def make_environment() -> Path:
    """The interpreter of an environment that has sbibm and sbi, and all packages of the present one."""
    python, ready = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".ready"
    if not ready.exists():
        print(f"Installing {', '.join(PACKAGES)} into {ENVIRONMENT.relative_to(HERE.parent.parent)} …", file=sys.stderr)
        present = sysconfig.get_paths()["purelib"]
        commands = [
            [sys.executable, "-m", "venv", str(ENVIRONMENT)],
            [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES],
        ]
        for command in commands:
            if subprocess.run(command, stdout=sys.stderr).returncode:
                raise SystemExit(
                    f"the judges need {' and '.join(PACKAGES[:2])}, which could not be installed (see above): give pip "
                    f"access to a package index, or install them into {ENVIRONMENT.relative_to(HERE.parent.parent)}"
                )
        own = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"])
        (Path(own.decode().strip()) / "present.pth").write_text(f"import site; site.addsitedir({present!r})\n")
        ready.touch()
    return python


def chosen(text: str, known: list[str], what: str) -> list[str]:
    """The names in a list separated by commas."""
    names = text.split(",")
    for name in names:
        if name not in known:
            raise SystemExit(f"unknown {what} {name!r}: choose from {', '.join(known)}")
    return names


def main() -> None:
    """Measure what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="the tasks of sbibm, separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="the methods whose encoders are trained")
    parser.add_argument("--observations", default=",".join(map(str, range(1, 11))), help="numbers from 1 to 10")
    parser.add_argument("--only", default="", help="only posteriors whose name in the table contains this")
    parser.add_argument("--skip", default="", choices=["", "sbibm", "sbi"], help="leave out one of the judges")
    options = parser.parse_args()
    if not installed("sbibm"):
        raise SystemExit(subprocess.run([make_environment(), *sys.argv], env=os.environ).returncode)
    names, methods = chosen(options.tasks, list(TASKS), "task"), chosen(options.methods, list(METHODS), "method")
    numbers = [str(number) for number in range(1, Task.OBSERVATIONS + 1)]
    observations = [int(number) for number in chosen(options.observations, numbers, "observation")]
    results = Results(RESULTS)
    if options.skip != "sbibm":
        for name in names:
            task = TASKS[name]()
            candidates = (entry for entry in posteriors(task, methods) if options.only in entry[0])
            judge_by_reference(task, candidates, observations, results)
    if options.skip != "sbi":
        judge_all_by_sbi(names, methods, results)
    write(results.values)


if __name__ == "__main__":
    main()
