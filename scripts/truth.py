"""Measure what docs/truth.md says: the sandwich of log p(x) and the split of the inference gap on MNIST.

    GPIN_DATA=… python scripts/truth.py sandwich FOLDER natural 10    # several minutes
    GPIN_DATA=… python scripts/truth.py gaps FOLDER 10 vae gp …       # several minutes per method
    GPIN_DATA=… python scripts/truth.py figure FOLDER                 # docs/gaps.png and the table of the page

The models are trained by the desk protocol on MNIST (10,000 images, 12 epochs, split and seed 0), unless the folder
holds them already. Results are written to the folder as JSON.
"""

import json
import sys
import time
from pathlib import Path

import torch

import gpin
from gpin._core.seeding import seeded
from gpin.data import DataConfig, open_source, split_and_scale
from gpin.evaluation.gaps import GAPS
from gpin.report import plots
from gpin.report.numbers import plus_minus
from gpin.runs.truth import split_gaps

DOCS = Path(__file__).parents[1] / "docs"
INSTANCES = 10
TEMPERATURES = {10: 400, 50: 3200}
"""Of the sandwich, by latent dimensions: as many as make it narrower than half a nat."""
GAP_OPTIONS = {"limit": 50, "temperatures": 100, "chains": 4}
OTHERS = {
    "encoder, K = 100": {"samples": 100, "steps": 0},
    "one step, K = 100": {"samples": 100, "steps": 1},
    "refined, K = 100": {"samples": 100, "proposal": "refined"},
    "refined, K = 1,000": {"samples": 1000, "proposal": "refined"},
}


def mnist():
    """MNIST as the desk protocol has it, first split."""
    return split_and_scale(open_source("mnist"), DataConfig(seed=0, limit=10_000, validation_limit=1000))


def trained(folder, data, method, latent_dim):
    """The model of the folder, trained and saved there if need be."""
    saved = folder / f"{method}-{latent_dim}"
    if not saved.exists():
        vae = gpin.build(data.shape, method=method, latent_dim=latent_dim, seed=0)
        protocol = {"epochs": 12, "batch_size": 32, "learning_rate": 1e-3, "schedule": "cosine"}
        gpin.fit(vae, data.train, data.validation, **protocol, seed=0, progress=False)
        vae.save(saved)
    return gpin.load(saved).eval()


def sandwich(folder, method, latent_dim):
    """Print the sandwich of a model and the bias of other estimates."""
    vae = trained(folder, mnist(), method, latent_dim)
    with seeded(0):
        began, processor = time.perf_counter(), time.process_time()
        found = vae.sandwich(INSTANCES, steps=(), samples=25, temperatures=TEMPERATURES[latent_dim])
        took = {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - processor}
        biases = {name: found.bias(vae.log_likelihood(found.x, **how)) for name, how in OTHERS.items()}
    widest = (found.upper - found.lower).abs().max().item()
    record = {**found.record(), **took, "widest": widest, "biases": {name: str(bias) for name, bias in biases.items()}}
    text = json.dumps(record, indent=2, ensure_ascii=False)
    (folder / f"sandwich-{method}-{latent_dim}.json").write_text(text)
    print(text, flush=True)


def gaps(folder, latent_dim, methods):
    """Split the gap of every method, on test and on training images."""
    data = mnist()
    for method in methods:
        path = folder / f"gaps-{method}-{latent_dim}.json"
        if path.exists():
            continue
        vae = trained(folder, data, method, latent_dim)
        began = time.process_time()
        found = split_gaps(vae, data, **GAP_OPTIONS)
        path.write_text(json.dumps({**found.record(), "processor_seconds": time.process_time() - began}))
        print(method, latent_dim, found.parts["test"], flush=True)


def figure(folder):
    """Draw the stacked bars and print the table of the page, for all models whose gaps the folder holds."""
    found = {}
    for latent_dim in TEMPERATURES:
        for method in gpin.inference.METHODS:
            path = folder / f"gaps-{method}-{latent_dim}.json"
            if path.exists():
                found[method, latent_dim] = json.loads(path.read_text())
    groups = {
        f"{method}, d = {dim}": {
            part: {f"{gap} gap": one[part][gap]["mean"] for gap in GAPS[1:]} for part in ("test", "train")
        }
        for (method, dim), one in found.items()
    }
    (DOCS / "gaps.png").write_bytes(plots.png(plots.stacked_bars(groups, "nats")))
    print("| method | d | log p(x) | inference gap | amortization | approximation | generalisation |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for (method, dim), one in found.items():
        test = [plus_minus(*one["test"][gap].values(), 1) for gap in ("log_likelihood", *GAPS)]
        other = plus_minus(*one["generalisation"]["inference"].values(), 1)
        print(f"| `{method}` | {dim} | {' | '.join(test)} | {other} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["sandwich", folder, method, dim]:
            sandwich(Path(folder), method, int(dim))
        case ["gaps", folder, dim, *methods]:
            gaps(Path(folder), int(dim), methods)
        case ["figure", folder]:
            figure(Path(folder))
        case _:
            sys.exit(__doc__)
