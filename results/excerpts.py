"""Tables of both README.md, here and in the folder above, that come from the store of all images.

In the page, a table is between `<!-- table: NAME -->` and `<!-- /table -->`.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache

from gpin.evaluation.paired import PairedDifference
from gpin.experiments import PAPER, Study
from gpin.experiments.analysis.progress import progress_of
from gpin.experiments.analysis.results import VariantResult

BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)
TITLES = {"mnist": "MNIST", "omniglot": "OMNIGLOT"}
COLUMNS = [(data, dim) for data in TITLES for dim in (10, 20, 50)]
NAMES = {
    "vae": "VAE",
    "vae-2x": "VAE",
    "iaf-2": "IAF, 2 flows",
    "rme-2": "RME, 2 components",
    "gp": "GPVAE",
    "gp-again": "GPVAE, second training",
    "gp-loose": "GPVAE, loose weights",
    "towers": "deterministic towers",
    "gp-relative": "default GP",
    "natural-0": "`natural`, encoder only",
    "natural": "`natural`, 1 step",
    "natural-2": "`natural`, 2 steps",
    "natural-4": "`natural`, 4 steps",
}
"""The rows in the order of the page, with their names there."""
BETTER = {("mnist", 50, "gp"): "gp-again"}
"""The trainings that are shown among the findings in place of a first one that is worse on validation data."""

Load = Callable[[str], Study]


@cache
def variants(load: Load, data: str, dim: int) -> dict[str, VariantResult]:
    """What was measured in one column, by row."""
    return {found.row: found for found in load(f"long/{data}-{dim}").results.variants(data, dim)}


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown; all columns but the first hold numbers."""
    lines = ["| " + " | ".join(cells) + " |" for cells in [columns, *rows]]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(columns) - 1), *lines[1:]])


def findings(load: Load) -> str:
    """The scores of every method."""
    # Second trainings and loose weights are compared in `claim`.
    return _scores(load, [row for row in NAMES if row not in ("gp-again", "gp-loose")])


def summary(load: Load) -> str:
    """The scores of the methods that a reader compares first."""
    return _scores(load, ["vae-2x", "gp", "natural", "natural-2", "natural-4"])


def _scores(load: Load, shown: list[str]) -> str:
    """log p(x) by own proposals in every column, beside the paper's; bold is above all of the paper's."""
    columns = {column: variants(load, *column) for column in COLUMNS}
    paper = {column: PAPER.log_likelihood[column[0]][column[1]] for column in COLUMNS}
    rows = [
        [f"{name}, in the paper", "2,000", *(f"{paper[column][row].mean:.1f}" for column in COLUMNS)]
        for row, name in (("vae", "VAE"), ("gp", "GPVAE"))
    ]
    for row in shown:
        cells = []
        for column, found in columns.items():
            one = found.get(BETTER.get((*column, row), row))
            score = "" if one is None else f"{one.scores['log_likelihood'].mean:.1f}"
            above = score and float(score) > max(other.mean for other in paper[column].values())
            cells.append(f"**{score}**" if above else score)
        rows.append([NAMES[row], "80" if row == "vae-2x" else "40", *cells])
    heads = [f"{TITLES[data]}: d = {dim}" if dim == 10 else f"d = {dim}" for data, dim in COLUMNS]
    return markdown(["log p(x), nats", "epochs", *heads], rows)


def claim(load: Load) -> str:
    """The difference of every method from the VAE with as many epochs, on all images."""
    return markdown(
        ["minus the VAE with 40 epochs, nats", "epochs", "time", "own proposals", "95 %", "refined", "95 %", "gap"],
        [cells for data in TITLES for dim in (10, 50) for cells in _claim_rows(load, data, dim)],
    )


def _claim_rows(load: Load, data: str, dim: int) -> Iterator[list[str]]:
    """The rows of one column: the scores of the VAE, then the differences of the others."""
    found, progress = variants(load, data, dim), progress_of(load(f"long/{data}-{dim}").results, data, dim)
    for row, name in NAMES.items():
        if row not in found or row not in progress:  # other numbers of steps share a training
            continue
        one, epochs = found[row], progress[row]
        about = [str(len(epochs.scores)), f"{epochs.seconds[-1] / 60:.0f} min"]
        gap = f"{one.scores['amortization_gap'].mean:.0f}"
        if row == "vae":
            scores = [f"*{one.scores[score].mean:.1f}*" for score in ("log_likelihood", "refined_log_likelihood")]
            yield [f"**{TITLES[data]}, d = {dim}**: VAE (scores)", *about, scores[0], "", scores[1], "", gap]
        else:
            differences = [_difference(one.differences["vae"][score].instances) for score in (0, 1)]
            yield [name, *about, *differences[0], *differences[1], gap]


def _difference(found: PairedDifference) -> list[str]:
    """A difference and its interval."""
    return [_signed(found.mean), f"{_signed(found.low)} to {_signed(found.high)}"]


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


TABLES = {entry.__name__: entry for entry in (findings, summary, claim)}


def rendered(text: str, load: Load) -> str:
    """A page with up-to-date tables."""
    return BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]](load)}\n{match[3]}", text)
