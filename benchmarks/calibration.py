"""Measure how often the intervals of trained models' posteriors contain the true codes, before and after calibration.

    GPIN_DATA=… python benchmarks/calibration.py digits=runs/digits-vae-1a2b3c4d mnist=runs/mnist-natural-5e6f7a8b

The tables in docs/calibration.md are the output. Each run is calibrated on its validation data, then on simulations.
Coverage is measured on other simulations, and on test instances, for which resampled draws stand for the true codes.
"""

import argparse
from typing import Any

import torch

from gpin._core.seeding import seeded
from gpin.evaluation.calibration import Coverage
from gpin.runs.folder import open_run
from gpin.runs.rows import random_rows
from gpin.vae import VAE

LEVELS = (0.5, 0.8, 0.95)
ENCODER, ONE_STEP, REFINED = {"steps": 0}, {"steps": 1}, {"posterior": "refined"}
LABELS = {"encoder": ENCODER, "one step": ONE_STEP, "refined": REFINED}


def row(label: str, temperature: str, found: Coverage) -> str:
    """A row of the table."""
    shares = " | ".join(f"{100 * found.mean(level):.1f}" for level in LEVELS)
    return f"| {label} | {temperature} | {shares} | {100 * found.stderr(0.8):.1f} |"


def table(vae: VAE, data: Any, rows: dict[str, dict[str, Any]], keys: dict[str, Any], seed: int) -> None:
    """Print the coverage of the posteriors, with and without their temperatures if they have one."""
    print(f"| posterior | τ | {' | '.join(f'{level:.0%}'.replace('%', ' %') for level in LEVELS)} | ± |")
    print("| --- " + "| ---: " * (len(LEVELS) + 2) + "|")
    for label, arguments in rows.items():
        print(row(label, "", vae.coverage(data, **arguments, seed=seed)), flush=True)
        if (temperature := vae.temperatures.get(keys.get(label, "unknown"))) is not None:
            found = vae.coverage(data, **arguments, calibrated=True, seed=seed)
            print(row(f"{label}, calibrated", f"{temperature:.2f}", found), flush=True)


def main() -> None:
    """Print the tables of each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--count", type=int, default=1000, help="the number of simulations and of test instances")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, folder in (given.split("=", 1) for given in options.runs):
        run = open_run(folder)
        vae, data = run.load(print), run.data()
        own = vae.inference.options.steps if vae.inference.takes_steps else None
        keys = {"encoder": 0, "one step": None if own == 1 else 1, "refined": "refined"}
        validation = random_rows(data.validation, 1000)[:]
        x = random_rows(data.test, options.count)[:]
        with seeded(0):
            draws = vae.posterior(x, stages="refined")
            z = draws.resample(1)[0]
        print(f"\n{name}, {len(x):,} test instances; {draws}\n")
        for steps in (0, 1):
            vae.calibrate(validation, steps=steps)
        table(vae, (x, z), LABELS, keys, seed=7)
        for steps in (0, 1):
            vae.calibrate(validation, steps=steps, simulations=options.count)
        print(f"\n{name}, {options.count:,} simulations\n")
        table(vae, options.count, {**LABELS, "resampled": {"posterior": "resampled"}}, keys, seed=7)


if __name__ == "__main__":
    main()
