"""Draw docs/accuracy-cost.png: the accuracy of every method against the cost of its inference, MNIST, d = 50.

    python scripts/accuracy_cost.py

log p(x) is that of the desk table in results/desk, with proposals of the method's own encoder. The cost is that of
benchmarks/inference.json, which `python benchmarks/inference.py --threads 1 --save` measures. The script also prints
the numbers of the figure.
"""

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

from gpin.report import plots
from gpin.report.style import LIGHT

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "results"))
OTHERS = {
    "vae": "VAE",
    "vae-2x": "VAE",
    "iaf-2": "IAF (2)",
    "hf-2": "HF (2)",
    "me-2": "ME (2)",
    "rme-2": "RME (2)",
    "gp": "GP full, separate towers",
    "gp-relative": "GP shared basis, shared trunk (default)",
    "sa-2-search": "SA (2), line search",
}
"""The rows of the table, each with its label in the benchmark."""
NAMES = {"vae-2x": "VAE, twice the epochs", "gp": "GPVAE", "gp-relative": "gp (default)", "sa-2-search": "SA (2)"}
BESIDE = {
    "vae": (-26, 6),
    "hf-2": (-8, -30),
    "gp-relative": (8, 10),
    "iaf-2": (8, -10),
    "me-2": (8, 6),
}
"""Where a label is put, in points from its mark, if not on the right."""
STEPS = {"natural-0": "encoder only", "natural": "1 step", "natural-2": "2 steps", "natural-4": "4 steps"}


def points():
    """The cost as a multiple of the VAE's, log p(x) and its standard deviation over trainings, by row."""
    from excerpts import COSTS, NATURAL
    from make_results import study

    labels = NATURAL | OTHERS
    measured = json.loads(COSTS.read_text())["inference"]
    ratios = {entry["label"]: entry["ratio"] for entry in measured}
    variants = {
        variant.row: variant.scores["log_likelihood"]
        for variant in study("desk/mnist-50").results.variants("mnist", 50)
    }
    return {row: (ratios[label], variants[row].mean, variants[row].std) for row, label in labels.items()}


def figure(found):
    """A point for each method, and the curve of natural over its numbers of steps."""
    drawn = Figure(figsize=(9, 4.6), layout="constrained")
    axes = drawn.subplots()
    style = {"capsize": 2.5, "elinewidth": 1, "markersize": 6}
    curve = [found[row] for row in STEPS]
    axes.errorbar(
        *zip(*((x, y) for x, y, _ in curve), strict=True),
        [std for *_, std in curve],
        fmt="o-",
        color=LIGHT["series-2"],
        **style,
    )
    for row, text in STEPS.items():
        x, y, _ = found[row]
        axes.annotate(text, (x, y), (8, -12), textcoords="offset points", color=LIGHT["series-2"], fontsize=10)
    x, y, _ = found["natural"]
    axes.annotate(
        "natural",
        (x, y),
        (-10, 14),
        textcoords="offset points",
        color=LIGHT["series-2"],
        fontsize=13,
        weight="bold",
        ha="right",
    )
    for row in OTHERS:
        x, y, std = found[row]
        axes.errorbar(x, y, std, fmt="o", color=LIGHT["series-1"], **style)
        axes.annotate(
            NAMES.get(row, row.partition("-")[0].upper()),
            (x, y),
            BESIDE.get(row, (8, -4)),
            textcoords="offset points",
            fontsize=10,
            color=LIGHT["ink"],
        )
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20, 50], ["1×", "2×", "5×", "10×", "20×", "50×"])
    axes.minorticks_off()
    axes.set(
        xlabel="time of inference, as a multiple of the VAE's", ylabel="log p(x) in nats, own proposals", xlim=(0.8, 60)
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=LIGHT["rule"], lw=0.6)
    return drawn


if __name__ == "__main__":
    measured = points()
    for row, (ratio, mean, std) in measured.items():
        print(f"{row:12} {ratio:5.2f} × {mean:8.1f} ± {std:.1f}")
    (ROOT / "docs" / "accuracy-cost.png").write_bytes(plots.png(figure(measured)))
