"""Write all tables, figures and pages of the stores beside this file again: `make results`."""

from pathlib import Path
from typing import Any

from excerpts import rendered

from gpin.experiments import Study, write_report
from gpin.experiments.protocols import experiment_named

RESULTS = Path(__file__).parent
COLOUR = experiment_named("cifar10").rows["desk"]
NATURAL = ["natural-0", "natural", "natural-2", "natural-4"]
EQUAL_TIME = ["vae-2x", *NATURAL]
CLAIM = ["vae", "vae-2x", "gp", "towers", *NATURAL]
OTHERS = ["iaf-2", "rme-2", "gp", "gp-loose", "towers", "gp-relative"]
TABLES = {
    "desk/mnist-10": {"experiment": "mnist", "latent_dim": 10},
    "desk/mnist-50": {"experiment": "mnist", "latent_dim": 50},
    "desk/omniglot-10": {"experiment": "omniglot", "latent_dim": 10},
    "desk/omniglot-50": {"experiment": "omniglot", "latent_dim": 50},
    "desk/cifar10-10": {"experiment": "cifar10", "rows": [*COLOUR, "gp-shared"]},
    "desk/svhn-10": {"experiment": "svhn"},
    "desk/celeba-10": {"experiment": "celeba"},
    "desk/fc-decoder-10": {"experiment": "fc-decoder", "latent_dim": 10},
    "desk/fc-decoder-50": {"experiment": "fc-decoder", "latent_dim": 50},
    "desk/inference-time": {"experiment": "inference-time"},
    "desk/uncertainty": {"experiment": "uncertainty"},
    "long/mnist-10": {
        "experiment": "mnist",
        "latent_dim": 10,
        "rows": ["vae", "vae-2x", *OTHERS, *NATURAL],
    },
    "long/mnist-20": {"experiment": "mnist", "latent_dim": 20, "rows": EQUAL_TIME},
    "long/mnist-50": {
        "experiment": "mnist",
        "latent_dim": 50,
        "rows": ["vae", "vae-2x", *OTHERS, "gp-again", *NATURAL],
    },
    "long/omniglot-10": {"experiment": "omniglot", "latent_dim": 10, "rows": [*CLAIM, "gp-again"]},
    "long/omniglot-20": {"experiment": "omniglot", "latent_dim": 20, "rows": ["vae", *EQUAL_TIME]},
    "long/omniglot-50": {"experiment": "omniglot", "latent_dim": 50, "rows": CLAIM},
}
"""The arguments of the study behind every table; the folder is the store, and the name of the protocol."""

PAGES = [RESULTS / "README.md", RESULTS.parent / "README.md", RESULTS.parent / "docs" / "methods.md"]
"""The pages that have tables of `excerpts`."""

FIGURES = {
    "desk/uncertainty-gp": ("desk/uncertainty", "gp"),
    "desk/uncertainty-gp-shared": ("desk/uncertainty", "gp-shared"),
    "long/mnist-10-progress": ("long/mnist-10", None),
    "long/mnist-20-progress": ("long/mnist-20", None),
    "long/mnist-50-progress": ("long/mnist-50", None),
    "long/omniglot-10-progress": ("long/omniglot-10", None),
    "long/omniglot-20-progress": ("long/omniglot-20", None),
    "long/omniglot-50-progress": ("long/omniglot-50", None),
}
"""The table and the row of every figure; None for the curves of all rows."""


def study(name: str, **changes: Any) -> Study:
    """The study behind a table, or one with other arguments."""
    protocol = name.partition("/")[0]
    return Study(protocol=protocol, store=RESULTS / protocol, **(TABLES[name] | changes))


if __name__ == "__main__":
    for name in TABLES:
        print(f"wrote {study(name).write_tables(RESULTS / f'{name}.md')}")
    for page in PAGES:
        page.write_text(rendered(page.read_text(), study))
        print(f"wrote the tables of {page}")
    for name, (table, row) in FIGURES.items():
        print(f"wrote {study(table).write_figure(RESULTS / f'{name}.png', row)}")
    for protocol in dict.fromkeys(name.partition("/")[0] for name in TABLES):
        print(f"wrote {write_report(RESULTS / protocol / 'report.html', protocol, RESULTS / protocol)}")
