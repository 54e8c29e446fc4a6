"""Measure how much of an encoder's variance comes from the Gaussian process, and how much of its
amortization gap is overfitting.

    GPIN_DATA=… python results/why.py results/desk mnist 10

For the first split of an experiment whose models are in the store, it prints the amortization gap on 300 training and
300 test images, and for GP encoders the medians over images of V[f] / V[z] and V[h] / V[z].
"""

import sys

import torch

from gpin.evaluation.gaps import amortization_gap
from gpin.experiments.execution.jobs import Scoring, score_instances
from gpin.experiments.execution.store import Store
from gpin.experiments.protocols import EXPERIMENTS, PROTOCOLS
from gpin.runs.folder import open_run
from gpin.runs.rows import random_rows

ROWS = ["vae", "gp", "vae-2x", "towers", "gp-diagonal", "gp-shared", "gp-exact"]


@torch.no_grad()
def main(root: str, experiment: str, latent_dim: str) -> None:
    """Print one line for each row and each part of the data."""
    store = Store(root)
    entries = EXPERIMENTS[experiment].entries(PROTOCOLS["desk"], [int(latent_dim)], ROWS)
    models = {
        entry.row: next((store.folder(entry.job) / "run").glob("*/model"), None) for entry in entries if not entry.split
    }
    if not any(models.values()):
        sys.exit(f"{root} has no models, only results: gpin experiment run {experiment} in another store trains them")
    print(f"{'':12} {'':5}  log p refined  amort. gap   V[f]/V[z]   V[h]/V[z]")
    for row, folder in models.items():
        if folder is None:
            continue
        run = open_run(folder.parent)
        vae, data = run.load(print), run.data()
        for part in ("train", "test"):
            rows = random_rows(getattr(data, part), 300)
            scores = score_instances(vae, rows, Scoring())
            gap = amortization_gap(scores["refined_elbo"], scores["elbo"]).mean()
            line = f"{row:12} {part:5}  {scores['refined_log_likelihood'].mean():13.1f}  {gap:10.1f}"
            if "uncertainty" in scores:
                functions = vae.inference.functions(rows.__getitems__(range(len(rows))))
                for variance in (functions.mean_variance, functions.std_variance):
                    line += f"  {(variance / functions.variance).mean(1).median():10.5f}"
            print(line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
