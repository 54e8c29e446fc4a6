"""Small grids: the digits of scikit-learn, a hundred of them, and an epoch or two; and results that are made up."""

import numpy as np

from gpin.experiments.execution.jobs import Job, Scoring
from gpin.experiments.protocols import Experiment, Protocol
from gpin.runs import RunSettings

SCORING = Scoring(samples=25, instances=10)


def job(method="vae", split=0, epochs=1, data="digits", **training):
    """A training of about a second."""
    settings = {
        "data": {"seed": split, "limit": 100, "validation_limit": 50},
        "model": {"method": method, "latent_dim": 2, "architecture": {"width": 16}},
        "training": {"epochs": epochs, "batch_size": 50, **training},
    }
    return Job(data=data, settings=RunSettings.parse(settings, "a job"), scoring=SCORING)


def protocol(splits=2, initialisations=1, epochs=1):
    """Trainings of about a second."""
    return Protocol(
        name="small",
        epochs=epochs,
        batch_size=50,
        limit=100,
        validation_limit=50,
        splits=splits,
        initialisations=initialisations,
        scoring=SCORING,
    )


def experiment(*rows, dims=(2,), data=("digits",)):
    """A table of these rows."""
    return Experiment("small", "Small", data, {"small": rows}, {"small": dims})


def columns(seed=0, count=40, uncertain=False, **given):
    """Scores of instances, at random where they are not given."""
    rng = np.random.default_rng(seed)
    names = ["log_likelihood", "elbo", "ess", "khat", "mc_error"]
    names += ["refined_" + name for name in names]
    names += ["uncertainty", "uncertainty_f", "uncertainty_h"] if uncertain else []
    drawn = {name: rng.normal(size=count).astype(np.float32).astype(np.float64) for name in names}  # as stored
    return {"instance": np.arange(count), **drawn, **given}


def pretend(store, one, scores, validation=-1.0, parameters=1000, seconds=2.0, fingerprint="f", **more):
    """Put a result that was never computed into the store."""
    store.begin(one)
    record = {
        "model": {"options": {}},
        "fingerprint": fingerprint,
        "parameters": parameters,
        "instances": {"train": 9000, "validation": 1000, "test": len(scores["instance"])},
        "validation_elbo": validation,
        "training_seconds": seconds,
        "environment": {"machine": "none"},
        **more,
    }
    store.finish(one, record, scores)


def contents(store, jobs):
    """The result's files of every job, byte for byte, and when they were written."""
    found = {}
    for one in jobs:
        for name in ("result.json", "instances.parquet"):
            path = store.folder(one) / name
            found[path] = (path.read_bytes(), path.stat().st_mtime_ns) if path.exists() else None
    return found
