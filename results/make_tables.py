"""Write all tables of the store beside this file again: `make results`."""

from pathlib import Path

from gpin.experiments import Study

STORE = Path(__file__).parent / "desk"
TABLES = {
    "mnist-10": {"experiment": "mnist", "latent_dim": 10},
    "mnist-50": {"experiment": "mnist", "latent_dim": 50},
    "omniglot-10": {"experiment": "omniglot", "latent_dim": 10},
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
