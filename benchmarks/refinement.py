"""Compare quasi-Newton refinement with Gauss–Newton alone, on trained models. See README.md beside this file.

Example:
    python benchmarks/refinement.py vae=runs/mnist-vae-50 natural=runs/mnist-natural-50 --cpu
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

# As in inference.py; torch reads this at import.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import tables
import torch
from torch import Tensor

import gpin
from gpin.data import open_source
from gpin.data.sets import DataConfig, split_and_scale
from gpin.distributions import PrecisionNormal
from gpin.refinement import GaussNewton, QuasiNewton, QuasiNewtonConfig, Refinement

COVARIANCE, STEP = "from the encoder's covariance", "after one Gauss–Newton step"

SEARCHES: dict[str, Refinement[PrecisionNormal]] = {
    tables.GAUSS_NEWTON: GaussNewton(),
    **{
        f"{gradients} gradients {start}": QuasiNewton(
            QuasiNewtonConfig(leading_steps=leading, gradients=gradients, steps=0)
        )
        for leading, start in enumerate((COVARIANCE, STEP))
        for gradients in (4, 8, 16, 32, 64)
    },
    f"complete, {COVARIANCE}": QuasiNewton(QuasiNewtonConfig(leading_steps=0)),
    f"complete, {STEP} (default)": QuasiNewton(),
}


def images(data: str, count: int) -> Tensor:
    """Test images of a benchmark data set, chosen at random with a fixed seed, `(count, *shape)`."""
    test = split_and_scale(open_source(data), DataConfig(seed=0)).test
    chosen = np.sort(np.random.default_rng(0).choice(len(test), count, replace=False))
    return torch.stack([test[int(i)] for i in chosen])


@torch.no_grad()
def compare(vae: gpin.VAE, x: Tensor, clock: Callable[[], float]) -> list[dict[str, Any]]:
    """The time of every search, and how far below the best of all searches its log p(x, z) ends."""
    q = vae.encode(x)
    start = vae.log_joint(x, q.mean)
    seconds, reached = [], []
    for refinement in SEARCHES.values():
        refinement(x[:8], vae.encode(x[:8]), vae)  # brings the weights into the cache
        before = clock()
        mode = refinement(x, q, vae).mean
        seconds.append(clock() - before)
        reached.append(vae.log_joint(x, mode))
    best = torch.stack(reached).amax(0)
    return [
        {
            "label": label,
            "seconds": time_taken,
            "faster": seconds[0] / time_taken,
            "left_mean": (best - value).mean().item(),
            "left_median": (best - value).median().item(),
            "lower_than_start": int((value < start).sum()),
        }
        for label, time_taken, value in zip(SEARCHES, seconds, reached, strict=True)
    ]


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER", help="trained models, saved by vae.save or a run")
    parser.add_argument("--data", default="mnist", help="the benchmark data set; default: %(default)s")
    parser.add_argument("--images", type=int, default=200, help="the number of test images; default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--cpu", action="store_true", help="processor time, which is steadier than wall-clock time")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--save", action="store_true", help=f"write {tables.REFINEMENT.name} and its table")
    arguments = parser.parse_args()
    if not all("=" in model for model in arguments.models):
        parser.error("give each model as NAME=FOLDER")
    torch.set_num_threads(arguments.threads)
    x = images(arguments.data, arguments.images)
    clock = time.process_time if arguments.cpu else time.perf_counter
    models = []
    for model in arguments.models:
        name, folder = model.split("=", 1)
        vae = gpin.load(folder).eval()
        models.append({"name": name, "latent_dim": vae.latent_dim, "searches": compare(vae, x, clock)})
    results = {
        "setting": {
            "data": arguments.data,
            "images": len(x),
            "threads": arguments.threads,
            "clock": clock.__name__,
            "torch": torch.__version__.split("+")[0],
        },
        "models": models,
    }
    if arguments.save:
        tables.REFINEMENT.write_text(json.dumps(results, indent=2) + "\n")
        tables.update()
    print(json.dumps(results, indent=2) if arguments.json else tables.refinement({"refinement": results}))


if __name__ == "__main__":
    main()
