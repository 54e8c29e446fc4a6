"""Tables of the pages here and in the folders above that come from the stores beside this file.

In a page, a table is between `<!-- table: NAME -->` and `<!-- /table -->`. Every table is a function of that name.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from gpin.evaluation.paired import PairedDifference
from gpin.experiments import PAPER, Study
from gpin.experiments.analysis.progress import REFERENCES, Progress, paper_scores, progress_of
from gpin.experiments.analysis.results import VariantResult
from gpin.experiments.protocols import experiment_named

BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)
TITLES = {"mnist": "MNIST", "omniglot": "OMNIGLOT"}
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
PUBLISHED = {
    "sa-2-search": "SA",
    "iaf-2": "IAF",
    "hf-2": "HF",
    "me-2": "ME",
    "rme-2": "RME",
    "gp": "GPVAE",
}
"""The methods of the literature other than the VAE in the desk tables."""
BETTER = {("mnist", 50, "gp"): "gp-again"}
"""The trainings that are shown among the findings in place of a first one that is worse on validation data."""

LONG = {(data, dim): f"{title}, d = {dim}" for data, title in TITLES.items() for dim in (10, 20, 50)}
"""The columns of all images: data set and latent dimension, with their names."""
COLOUR = {"cifar10": "CIFAR10", "svhn": "SVHN", "celeba": "CelebA"}
DESK = {(data, dim): f"{title}, d = {dim}" for data, title in TITLES.items() for dim in (10, 50)} | {
    (data, 10): f"{title}, d = 10" for data, title in COLOUR.items()
}
"""The same at desk scale."""
BEST_OF_THREE = ("omniglot", 50)
"""The column at desk scale in which the VAE was trained three times per split, because some trainings collapsed."""
COSTS = Path(__file__).parents[1] / "benchmarks" / "inference.json"
NATURAL = {
    "natural-0": "Natural, encoder only",
    "natural": "Natural (1 step, default)",
    "natural-2": "Natural (2 steps)",
    "natural-4": "Natural (4 steps)",
}
"""The rows of natural, each with its label in the benchmark of inference."""

Load = Callable[..., Study]


@cache
def variants(load: Load, data: str, dim: int, protocol: str = "long") -> dict[str, VariantResult]:
    """What was measured in one column, by row."""
    return {found.row: found for found in load(f"{protocol}/{data}-{dim}").results.variants(data, dim)}


@cache
def from_the_best(load: Load, data: str, dim: int) -> dict[str, VariantResult]:
    """The rows of one column at desk scale, compared with the VAE's best of three trainings where it has them."""
    if (data, dim) != BEST_OF_THREE:
        return variants(load, data, dim, "desk")
    rows = ["vae", "gp", "towers", *NATURAL]
    study = load(f"desk/{data}-{dim}", rows=rows, initialisations=3)
    return {found.row: found for found in study.results.variants(data, dim)}


@cache
def progress(load: Load, data: str, dim: int) -> dict[str, Progress]:
    """The validation scores of every training of one column on all images, by row."""
    return progress_of(load(f"long/{data}-{dim}").results, data, dim)


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
    columns = {column: variants(load, *column) for column in LONG}
    paper = {column: PAPER.log_likelihood[column[0]][column[1]] for column in LONG}
    rows = [
        [f"{name}, in the paper", "2,000", *(f"{paper[column][row].mean:.1f}" for column in LONG)]
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
    heads = [f"{TITLES[data]}: d = {dim}" if dim == 10 else f"d = {dim}" for data, dim in LONG]
    return markdown(["log p(x), nats", "epochs", *heads], rows)


def claim(load: Load) -> str:
    """The difference of every method from the VAE with as many epochs, on all images."""
    return markdown(
        ["minus the VAE with 40 epochs, nats", "epochs", "time", "own proposals", "95 %", "refined", "95 %", "gap"],
        [cells for data in TITLES for dim in (10, 50) for cells in _claim_rows(load, data, dim)],
    )


def _claim_rows(load: Load, data: str, dim: int) -> Iterator[list[str]]:
    """The rows of one column: the scores of the VAE, then the differences of the others."""
    found, trained = variants(load, data, dim), progress(load, data, dim)
    for row, name in NAMES.items():
        if row not in found or row not in trained:  # other numbers of steps share a training
            continue
        one, epochs = found[row], trained[row]
        about = [str(len(epochs.scores)), _minutes(epochs.seconds[-1])]
        gap = f"{one.scores['amortization_gap'].mean:.0f}"
        if row == "vae":
            scores = [f"*{one.scores[score].mean:.1f}*" for score in ("log_likelihood", "refined_log_likelihood")]
            yield [f"**{TITLES[data]}, d = {dim}**: VAE (scores)", *about, scores[0], "", scores[1], "", gap]
        else:
            differences = [_difference(one.differences["vae"][score].instances) for score in (0, 1)]
            yield [name, *about, *differences[0], *differences[1], gap]


def equal_time(load: Load) -> str:
    """The VAE and natural after about equal training time: refined scores and gaps on all images."""
    rows = []
    for column, title in LONG.items():
        found, trained = variants(load, *column), progress(load, *column)
        vae, natural = found["vae-2x"], found["natural"]
        gaps = [found[row].scores["amortization_gap"].mean for row in ("vae-2x", "natural-0", "natural", "natural-4")]
        rows.append(
            [
                title,
                *(_minutes(trained[row].seconds[-1]) for row in ("vae-2x", "natural")),
                *(f"{one.scores['refined_log_likelihood'].mean:.1f}" for one in (vae, natural)),
                *_difference(natural.differences["vae-2x"][1].instances),
                *(f"{gap:.0f}" for gap in gaps),
            ]
        )
    head = ["time: VAE", "`natural`", "refined: VAE", "`natural`", "difference", "over instances"]
    return markdown(["", *head, "gap: VAE", "0 steps", "1 step", "4 steps"], rows)


def ranks(load: Load) -> str:
    """Rank correlations with the amortization gap on all images."""
    rows = [
        [title, *(cell for row in ("vae-2x", "natural") for cell in _ranks(variants(load, *column)[row]))]
        for column, title in LONG.items()
    ]
    head = ["VAE: estimated", "predicted", "−ELBO", "`natural`: estimated", "predicted", "−ELBO"]
    return markdown(["", *head], rows)


def desk_ranks(load: Load) -> str:
    """Rank correlations with the amortization gap after one step of natural at desk scale."""
    rows = [[title, *_ranks(variants(load, *column, "desk")["natural"])] for column, title in DESK.items()]
    return markdown(["rank correlation with the gap after one step", "estimated gap", "predicted gap", "−ELBO"], rows)


def _ranks(one: VariantResult) -> list[str]:
    """The rank correlations of the estimated gap, the predicted gap and −ELBO with the amortization gap."""
    return [f"{found.rho:.2f}" for found in (*one.by_gap, one.by_elbo)]


def reached(load: Load) -> str:
    """The epochs and the time until the validation score of natural reaches the paper's test scores."""
    rows = []
    for column, title in LONG.items():
        training = progress(load, *column)["natural"]
        cells = [title, f"{max(training.scores):.1f}"]
        for target in paper_scores(experiment_named(column[0]), *column).values():
            epoch = training.first(target)
            until = "not reached" if epoch is None else f"epoch {epoch}, {_minutes(training.seconds[epoch - 1])}"
            cells += [f"{target:.1f}", until]
        rows.append(cells)
    heads = [cell for name in REFERENCES.values() for cell in (name, "reached")]
    return markdown(["`natural`, 1 step", "best validation score", *heads], rows)


def accuracy(load: Load) -> str:
    """log p(x) on all images of MNIST against the time of inference."""
    measured = {one["label"]: one["ratio"] for one in json.loads(COSTS.read_text())["inference"]}
    columns = [variants(load, *column) for column in LONG if column[0] == "mnist"]
    shown = [("`vae`", "1", "vae-2x", "log_likelihood")]
    for row, name in zip(NATURAL, ("`steps=0`", "one step", "`steps=2`", "`steps=4`"), strict=True):
        shown.append((f"`natural`, {name}", f"{measured[NATURAL[row]]:.2g}", row, "log_likelihood"))
    shown.append(("`vae`, refined", "hundreds", "vae-2x", "refined_log_likelihood"))
    shown.append(("`natural`, refined", "hundreds", "natural", "refined_log_likelihood"))
    rows = [
        [name, cost, *(f"{found[row].scores[score].mean:.1f}" for found in columns)] for name, cost, row, score in shown
    ]
    return markdown(["inference", "time, × `vae`", *(f"d = {dim}" for data, dim in LONG if data == "mnist")], rows)


def desk_natural(load: Load) -> str:
    """Scores and gaps of the VAE, the best other method and natural on MNIST at desk scale."""
    columns = [variants(load, "mnist", dim, "desk") for dim in (10, 50)]
    scores = ("log_likelihood", "refined_log_likelihood")
    rows = [[_name(row), *(cell for found in columns for cell in _scored(found[row]))] for row in ("vae", "vae-2x")]
    best = ["best of the other published methods"]
    for found in columns:
        others = [one for row, one in found.items() if row in PUBLISHED]
        for score in scores:
            one = max(others, key=lambda one: one.scores[score].mean)
            best.append(f"{one.scores[score].mean:.1f} ({PUBLISHED[one.row]})")
        best.append("")
    rows.append(best)
    rows += [[NAMES[row], *(cell for found in columns for cell in _scored(found[row]))] for row in NATURAL]
    return markdown(["", "d = 10: encoder", "refined", "gap", "d = 50: encoder", "refined", "gap"], rows)


def _name(row: str) -> str:
    return NAMES[row] + (", twice the epochs" if row == "vae-2x" else "")


def _scored(one: VariantResult) -> list[str]:
    """Scores with own and with refined proposals, and the amortization gap."""
    own, refined, gap = (
        one.scores[score].mean for score in ("log_likelihood", "refined_log_likelihood", "amortization_gap")
    )
    return [f"{own:.1f}", f"{refined:.1f}", f"{gap:.0f}"]


def desk_differences(load: Load) -> str:
    """The differences of natural from the VAE on all data sets at desk scale, and the amortization gaps."""
    rows = []
    for column, title in DESK.items():
        found = from_the_best(load, *column)
        step, alone = (found[row].differences["vae"] for row in ("natural", "natural-0"))
        means = [one.instances.mean for one in (*step, alone[0])]
        gaps = [found[row].scores["amortization_gap"].mean for row in ("vae", "natural", "natural-4")]
        rows.append([title + _best(column), *map(_signed, means), *(f"{gap:.0f}" for gap in gaps)])
    head = ["natural, 1 step: encoder", "refined", "natural, encoder only", "gap: VAE", "1 step", "4 steps"]
    return markdown(["", *head], rows)


def desk_equal_time(load: Load) -> str:
    """The differences of natural with one step from the VAE with twice the epochs at desk scale, over trainings."""
    rows = []
    for column, title in DESK.items():
        found = variants(load, *column, "desk")
        collapsed = len(found["vae-2x"].collapsed)
        cells = [f"{title}, {collapsed} VAE collapsed" if collapsed else title]
        for one in found["natural"].differences["vae-2x"]:
            cells += [*_difference(one.splits), f"{one.ahead} of {one.splits.instances}"]
        rows.append(cells)
    head = ["own proposals", "over three trainings", "ahead", "refined", "over three trainings", "ahead"]
    return markdown(["`natural`, 1 step, minus the VAE with twice the epochs", *head], rows)


def desk_claim(load: Load) -> str:
    """The differences of GPVAE and of deterministic towers from the VAE at desk scale, and the paper's."""
    rows = []
    for column, title in DESK.items():
        found, paper = from_the_best(load, *column), PAPER.log_likelihood[column[0]].get(column[1], {})
        if column[0] == "celeba":  # where some trainings failed
            continue
        own, refined = found["gp"].differences["vae"]
        towers = found["towers"].differences["vae"][0].instances.mean if "towers" in found else None
        rows.append(
            [
                title + _best(column),
                _signed(own.instances.mean),
                _difference(own.splits)[1],
                _signed(refined.instances.mean),
                _signed(paper["gp"].mean - paper["vae"].mean),
                "" if towers is None else _signed(towers),
            ]
        )
    head = [
        "own proposals",
        "over three trainings",
        "refined",
        "paper",
        "deterministic towers minus VAE, own proposals",
    ]
    return markdown(["GPVAE minus VAE, nats", *head], rows)


def _best(column: tuple[str, int]) -> str:
    return ", from the VAE's best of three trainings" if column == BEST_OF_THREE else ""


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"


def _difference(found: PairedDifference) -> list[str]:
    """A difference and its interval."""
    return [_signed(found.mean), f"{_signed(found.low)} to {_signed(found.high)}"]


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


TABLES = {
    entry.__name__: entry
    for entry in (
        findings,
        summary,
        claim,
        equal_time,
        ranks,
        reached,
        accuracy,
        desk_natural,
        desk_differences,
        desk_equal_time,
        desk_ranks,
        desk_claim,
    )
}


def rendered(text: str, load: Load) -> str:
    """A page with up-to-date tables."""
    return BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]](load)}\n{match[3]}", text)
