"""Measure how well instances that a model was not trained on are found. See README.md beside this file.

    GPIN_DATA=… python benchmarks/anomalies.py [--seeds 3] [--tasks tables,images] [--save]

Every detector is fitted to ordinary instances alone and scores held-out ordinary instances and anomalies. The area
under the ROC curve is the probability that an anomaly gets the higher score: 1 is perfect, 0.5 is chance. gpin is
compared with scikit-learn's IsolationForest and, if it is installed, pyod's VAE, both with their defaults. With --save,
results are written after every fit, and fits that are saved are not repeated.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import tables
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score

import gpin
from gpin._core.extras import installed_version
from gpin._core.seeding import seeded
from gpin.data import load_benchmark
from gpin.evaluation.anomalies import compressed_nats, reconstruction_error

Scores = dict[str, np.ndarray]

MOST = 200
"""The maximum number of anomalies in a task."""


@dataclass(frozen=True)
class Task:
    """Ordinary instances to train on, and what is to be told apart; all are float32 arrays `(n, *shape)`.

    Attributes:
        name: The name of the fit.
        train: Ordinary instances to fit a detector to.
        ordinary: Further ordinary instances.
        anomalies: Sets of anomalies by name, each scored against the ordinary instances.
        latent_dim: The number of latent dimensions of gpin's model.
        epochs: How often it sees the training instances, at most.
    """

    name: str
    train: np.ndarray
    ordinary: np.ndarray
    anomalies: dict[str, np.ndarray]
    latent_dim: int
    epochs: int


# The tasks -------------------------------------------------------------------------------------------


def of_table(name: str, ordinary: np.ndarray, anomalies: np.ndarray, seed: int) -> Task:
    """A task with standardised columns, of which seven tenths of the ordinary rows are for training."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(ordinary))
    anomalies = anomalies[rng.permutation(len(anomalies))[:MOST]]
    count = round(0.7 * len(order))
    train, held = ordinary[order[:count]], ordinary[order[count:]]
    mean, deviation = train.mean(0), train.std(0)
    varies = deviation > 0
    scaled = [((x[:, varies] - mean[varies]) / deviation[varies]).astype(np.float32) for x in (train, held, anomalies)]
    return Task(name, scaled[0], scaled[1], {"": scaled[2]}, min(5, int(varies.sum())), 100)


def of_tables(seed: int) -> Iterator[Task]:
    """Tables that come with scikit-learn."""
    cancer = load_breast_cancer()
    yield of_table("breast cancer: malignant", cancer.data[cancer.target == 1], cancer.data[cancer.target == 0], seed)
    wine = load_wine()
    for kind in range(3):
        yield of_table(f"wine: cultivar {kind}", wine.data[wine.target != kind], wine.data[wine.target == kind], seed)
    digits = load_digits()
    for digit in range(seed, 10, 3):
        own = digits.target == digit
        yield of_table(f"digits: all but {digit}", digits.data[own], digits.data[~own], seed)


def of_images(seed: int, train: int = 2000, test: int = MOST) -> Iterator[Task]:
    """MNIST with one digit held out, and MNIST against other pictures."""
    rng = np.random.default_rng(seed)
    mnist, omniglot = load_benchmark("mnist"), load_benchmark("omniglot")

    def some(images: np.ndarray, count: int) -> np.ndarray:
        return (images[rng.choice(len(images), count, replace=False)] / 255).astype(np.float32)

    shape = mnist.test.shape[1:]
    others = {
        "OMNIGLOT": some(omniglot.test, test),
        "black": np.zeros((50, *shape), np.float32),
        "noise": (rng.integers(0, 256, (50, *shape)) / 255).astype(np.float32),
    }
    yield Task("MNIST", some(mnist.train, train), some(mnist.test, test), others, 10, 15)
    for digit in (1, 4, 7):
        rest, known = mnist.train[mnist.train_labels != digit], mnist.test[mnist.test_labels != digit]
        held = some(mnist.test[mnist.test_labels == digit], test)
        yield Task(f"MNIST without {digit}", some(rest, train), some(known, test), {f"digit {digit}": held}, 10, 15)


# The detectors ---------------------------------------------------------------------------------------


def gpin_scores(task: Task, seed: int) -> Callable[[np.ndarray], Scores]:
    """gpin's default model with all its scores; larger is more unusual."""
    vae = gpin.build(task.train.shape[1:], latent_dim=task.latent_dim, seed=seed)
    count = round(0.9 * len(task.train))
    gpin.fit(
        vae,
        task.train[:count],
        task.train[count:],
        epochs=task.epochs,
        batch_size=32,
        learning_rate=1e-3,
        patience=10,
        seed=seed,
        progress=False,
    )

    def score(x: np.ndarray) -> Scores:
        with seeded(seed), torch.no_grad():
            likelihood = vae.log_likelihood(x, 50)
            rows = vae.check(x)
            found = {
                "log-likelihood": -likelihood.values,
                "ELBO": -likelihood.elbo,
                "reconstruction": reconstruction_error(vae, rows, vae.encode(rows).mean),
                "gap, estimated": vae.gap(x).values,
                "gap, refined": vae.gap(x, how="refined").values,
            }
            scores = {f"gpin, {name}": values.double().numpy() for name, values in found.items()}
        if x.ndim == 4:
            scores["gpin, complexity"] = scores["gpin, log-likelihood"] - compressed_nats(
                np.rint(255 * x).astype(np.uint8)
            )
        return scores

    return score


def forest_scores(task: Task, seed: int) -> Callable[[np.ndarray], Scores]:
    """scikit-learn's isolation forest with its defaults."""
    forest = IsolationForest(random_state=seed).fit(_flat(task.train))
    return lambda x: {"IsolationForest": -forest.score_samples(_flat(x))}


def pyod_scores(task: Task, seed: int) -> Callable[[np.ndarray], Scores]:
    """pyod's VAE with its defaults."""
    from pyod.models.vae import VAE

    detector = VAE(random_state=seed, verbose=0).fit(_flat(task.train))
    return lambda x: {"pyod VAE": detector.decision_function(_flat(x))}


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1)


# The measurement -------------------------------------------------------------------------------------


def measure(task: Task, seed: int) -> list[dict[str, object]]:
    """The area under the ROC curve of every score on every set of anomalies."""
    detectors = [gpin_scores, forest_scores]
    if find_spec("pyod") is None:
        print("pyod is not installed: its VAE is left out")
    else:
        detectors.append(pyod_scores)
    found: list[dict[str, object]] = []
    for fit in detectors:
        score = fit(task, seed)
        ordinary = score(task.ordinary)
        for name, anomalies in task.anomalies.items():
            strange = score(anomalies)
            for detector in ordinary:
                labels = np.repeat([0, 1], [len(task.ordinary), len(anomalies)])
                area = roc_auc_score(labels, np.concatenate([ordinary[detector], strange[detector]]))
                found.append(
                    {
                        "fit": task.name,
                        "task": task.name if not name else f"{task.name}: {name}",
                        "seed": seed,
                        "detector": detector,
                        "auroc": round(float(area), 4),
                    }
                )
    return found


def versions() -> dict[str, str]:
    """The versions of what is compared, of those that are installed."""
    found = {name: installed_version(name) for name in ("torch", "scikit-learn", "pyod")}
    return {name: version.split("+")[0] for name, version in found.items() if version is not None}


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--tasks", default="tables,images", help="default: %(default)s")
    parser.add_argument("--save", action="store_true", help=f"write {tables.ANOMALIES.name} and its tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(tables.ANOMALIES.read_text())["results"] if options.save and tables.ANOMALIES.exists() else []
    for seed in range(options.seeds):
        for kind in options.tasks.split(","):
            for task in {"tables": of_tables, "images": of_images}[kind](seed):
                if any((row["fit"], row["seed"]) == (task.name, seed) for row in results):
                    continue
                results += measure(task, seed)
                if options.save:
                    record = {"versions": versions(), "results": results}
                    tables.ANOMALIES.write_text(json.dumps(record, indent=1) + "\n")
                print(f"{task.name}, seed {seed}: done", flush=True)
    if options.save:
        tables.update()
    print(tables.anomalies({"anomalies": {"versions": versions(), "results": results}}))


if __name__ == "__main__":
    main()
