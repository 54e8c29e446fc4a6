"""Write all tables of the store beside this file again: `make results`."""

from pathlib import Path

from gpin.experiments import Study
from gpin.experiments.protocols import experiment_named

STORE = Path(__file__).parent / "desk"
WITHOUT_RELATIVE = [row for row in experiment_named("omniglot").rows["desk"] if row != "gp-relative"]
COLOUR = experiment_named("cifar10").rows["desk"]
TABLES = {
    "mnist-10": {"experiment": "mnist", "latent_dim": 10},
    "mnist-50": {"experiment": "mnist", "latent_dim": 50},
    "omniglot-10": {"experiment": "omniglot", "latent_dim": 10, "rows": WITHOUT_RELATIVE},
    "omniglot-50": {"experiment": "omniglot", "latent_dim": 50, "rows": WITHOUT_RELATIVE},
    "cifar10-10": {"experiment": "cifar10", "rows": [*COLOUR, "gp-shared"]},
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
