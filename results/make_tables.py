"""Write all tables of the store beside this file again: `make results`."""

from pathlib import Path

from gpin.experiments import Study
from gpin.experiments.protocols import experiment_named

STORE = Path(__file__).parent / "desk"
WITHOUT_NATURAL = [row for row in experiment_named("omniglot").rows["desk"] if not row.startswith("natural")]
TABLES = {
    "mnist-10": {"experiment": "mnist", "latent_dim": 10},
    "mnist-50": {"experiment": "mnist", "latent_dim": 50},
    "omniglot-10": {"experiment": "omniglot", "latent_dim": 10, "rows": WITHOUT_NATURAL},
    "omniglot-50": {"experiment": "omniglot", "latent_dim": 50},
    "cifar10-10": {"experiment": "cifar10", "rows": ["vae", "iaf-2", "rme-2", "gp", "gp-shared"]},
    "svhn-10": {"experiment": "svhn"},
    "celeba-10": {"experiment": "celeba"},
    "fc-decoder-10": {"experiment": "fc-decoder", "latent_dim": 10},
    "fc-decoder-50": {"experiment": "fc-decoder", "latent_dim": 50},
    "inference-time": {"experiment": "inference-time"},
    "uncertainty": {"experiment": "uncertainty"},
}
"""The arguments of the study behind every table."""


def study(name: str) -> Study:
    """The study behind a table."""
    return Study(store=STORE, **TABLES[name])


if __name__ == "__main__":
    for name in TABLES:
        print(f"wrote {study(name).write_tables(STORE / f'{name}.md')}")
