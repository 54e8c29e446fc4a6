"""Draw docs/claims.png: the GP encoder's lead over the VAE, as the paper reports it and as we measured it.

    python scripts/claims.py

Our numbers are those of the tables in results/desk, the paper's from `gpin.experiments.PAPER`. Data sets on which
some trainings collapsed are left out, because their means mix two kinds of runs.
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

from gpin.experiments import PAPER
from gpin.report import plots
from gpin.report.style import LIGHT

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "results"))
ROWS = {
    "MNIST, d = 10": ("mnist", 10),
    "OMNIGLOT, d = 10": ("omniglot", 10),
    "SVHN, d = 10": ("svhn", 10),
    "CIFAR10, d = 10": ("cifar10", 10),
    "MNIST, d = 50": ("mnist", 50),
}
SERIES = {
    "gp": ("the paper's GP encoder, here", "series-2"),
    "towers": ("its towers without the GP, here", "series-1"),
}


def leads(data, dim):
    """Each row's lead over the VAE with the encoder as proposal: the mean and the 95 % interval over trainings."""
    from make_results import study

    variants = study(f"desk/{data}-{dim}").results.variants(data, dim)
    found = {variant.row: variant.differences["vae"][0].splits for variant in variants if variant.row in SERIES}
    return {row: (lead.mean, lead.low, lead.high) for row, lead in found.items()}


def paper_lead(data, dim):
    """The lead of the paper's method, as the paper reports it."""
    scores = PAPER.log_likelihood[data][dim]
    return scores["gp"].mean - scores["vae"].mean


def picture():
    """The figure."""
    figure = Figure(figsize=(8.4, 3.3), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for y, (data, dim) in enumerate(ROWS.values()):
        measured = leads(data, dim)
        shown = [name for name in SERIES if name in measured]
        for offset, name in enumerate(shown):
            label, colour = SERIES[name]
            mean, low, high = measured[name]
            height = y + (offset - (len(shown) - 1) / 2) * 0.26
            axes.plot([low, high], [height, height], color=LIGHT[colour], linewidth=2, solid_capstyle="round")
            axes.plot(mean, height, "o", color=LIGHT[colour], markersize=6, label=label if y == 0 else None)
        claim = paper_lead(data, dim)
        axes.plot(
            claim,
            y,
            "D",
            color="white",
            markeredgecolor=LIGHT["ink"],
            markersize=7,
            label="reported in the paper" if y == 0 else None,
        )
    axes.axvline(0, color=LIGHT["ink"], linewidth=1)
    axes.set_yticks(range(len(ROWS)), list(ROWS), color=LIGHT["ink"])
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.grid(axis="x", color=LIGHT["rule"])
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(
        "lead over the plain VAE, nats of test log-likelihood (bars: 95 % over three trainings)", color=LIGHT["muted"]
    )
    axes.legend(loc="lower center", bbox_to_anchor=(0.42, 1.0), ncols=3, frameon=False, fontsize=10)
    return figure


if __name__ == "__main__":
    (ROOT / "docs" / "claims.png").write_bytes(plots.png(picture(), dpi=120))
