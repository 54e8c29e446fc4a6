"""Draw the figures of docs/natural.md: natural-gradient steps on true posteriors in the plane, and the anytime curves.

    GPIN_DATA=… python scripts/natural.py folder    # trains the models that the folder does not hold; then some minutes

The models are trained by the desk protocol on MNIST: 10,000 images, 12 epochs, split and seed 0. The script writes
docs/natural-steps.png and docs/natural-anytime.png and prints the numbers of the page.
"""

import sys
from itertools import pairwise
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.patheffects import withStroke

import gpin
from gpin.data import DataConfig, open_source, split_and_scale
from gpin.evaluation.gaps import decrement
from gpin.evaluation.grid import kl_to_posterior, posteriors
from gpin.report import plots
from gpin.report.style import LIGHT
from gpin.runs.rows import random_rows

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = 300
STEPS = (0, 1, 2, 4, 8)
MASSES = (0.99, 0.9, 0.5)
FILLS = ("#e6eaef", "#c3cdd8", "#93a4b7")
PERCENTILES = (25, 50, 75)
HALO = withStroke(linewidth=3, foreground="white")
COLOURS = {"vae": LIGHT["series-1"], "natural": LIGHT["series-2"]}


def trained(folder, data, method, latent_dim):
    """The model of the folder, trained and saved there if need be."""
    saved = Path(folder) / f"{method}-{latent_dim}"
    if not saved.exists():
        vae = gpin.build(data.shape, method=method, latent_dim=latent_dim, seed=0)
        protocol = {"epochs": 12, "batch_size": 32, "learning_rate": 1e-3, "schedule": "cosine"}
        gpin.fit(vae, data.train, data.validation, **protocol, seed=0)
        vae.save(saved)
    return gpin.load(saved).eval()


def rounded(values):
    """The values to one decimal, for printing."""
    return ", ".join(f"{float(value):.1f}" for value in values)


# Steps on posteriors in the plane --------------------------------------------------------------------


def levels(posterior):
    """The densities, in ascending order, whose contours enclose MASSES."""
    density = posterior.log_density.exp().sort(descending=True).values
    enclosed = density.cumsum(0) * posterior.side**2
    return [density[enclosed < mass][-1].item() for mass in MASSES]


def ellipse(q, colour, **options):
    """The ellipse that encloses 90 % of a Gaussian with one instance."""
    values, vectors = torch.linalg.eigh(q.covariance_matrix[0].double())
    width, height = (2 * (values * -2 * torch.tensor(0.1).log()).sqrt()).tolist()
    angle = torch.atan2(vectors[1, 0], vectors[0, 0]).rad2deg().item()
    return Ellipse(q.mean[0].tolist(), width, height, angle=angle, fill=False, edgecolor=colour, **options)


@torch.no_grad()
def steps_figure(vae, x):
    """One panel per image: the true posterior filled, the means of two steps joined by arrows, and q_0 and q_2."""
    start, end = LIGHT["series-2"], LIGHT["series-1"]
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    panels = figure.subplots(1, len(x))
    for panel, one in zip(panels, x.split(1), strict=True):
        (posterior,) = posteriors(vae, one)
        taken = (0, 1, 2, 8, 20)
        answers = [vae.encode(one, steps=steps) for steps in taken]
        torch.manual_seed(0)
        divergences = [kl_to_posterior(vae, one, q, [posterior.log_evidence]).item() for q in answers]
        print(f"KL(q ‖ p) after {', '.join(map(str, taken))} steps: {rounded(divergences)}")
        ellipses = [ellipse(answers[0], start, lw=1.8), ellipse(answers[2], end, lw=1.8)]
        core = posterior.points[posterior.log_joint > posterior.log_joint.max() - 5]
        corners = torch.cat([core, *(torch.tensor(drawn.get_extents().get_points()) for drawn in ellipses)])
        low, high = corners.amin(0), corners.amax(0)
        centre, reach = (low + high) / 2, 0.55 * (high - low).max()
        ticks = torch.linspace(-1, 1, 181, dtype=torch.float64) * reach
        across, up = centre[0] + ticks, centre[1] + ticks
        points = torch.cartesian_prod(across, up).to(one)
        log_joint = torch.cat([vae.log_joint(one, z.unsqueeze(1))[:, 0] for z in points.split(512)]).double()
        density = (log_joint - posterior.log_evidence).exp().reshape(len(ticks), -1).T
        panel.contourf(across, up, density, [*levels(posterior), torch.inf], colors=FILLS)
        for drawn in ellipses:
            panel.add_patch(drawn)
        means = [q.mean[0] for q in answers[:3]]
        for here, there in pairwise(means):
            arrow = {"arrowstyle": "-|>", "color": LIGHT["ink"], "lw": 1.4, "shrinkA": 0, "shrinkB": 0}
            panel.annotate("", there.tolist(), here.tolist(), arrowprops=arrow)
        middle = (means[0] + means[2]) / 2
        sides = [means[0] - means[1], means[1] - middle, means[2] - means[1]]  # where no arrow is
        for number, (mean, colour) in enumerate(zip(means, (start, LIGHT["ink"], end), strict=True)):
            panel.plot(*mean, "o", color=colour, markersize=5, zorder=3)
            away = (13 * torch.nn.functional.normalize(sides[number], dim=0)).tolist()
            label = {"textcoords": "offset points", "ha": "center", "va": "center", "color": colour, "fontsize": 12}
            panel.annotate(f"$m_{number}$", mean.tolist(), away, **label, path_effects=[HALO])
        panel.set(xlim=across[[0, -1]].tolist(), ylim=up[[0, -1]].tolist(), aspect="equal")
        panel.locator_params(nbins=4)
        panel.tick_params(labelsize=8.5)
        text = "KL " + " → ".join(f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in divergences[:3])
        panel.set_title(text, loc="left", fontsize=12, color=LIGHT["ink"], y=1.02)
        inset = panel.inset_axes((0.86, 1.015, 0.14, 0.14))
        inset.imshow(1 - one[0, 0], cmap="gray", vmin=0, vmax=1)
        inset.set_axis_off()
    return figure


# The anytime curves ----------------------------------------------------------------------------------


@torch.no_grad()
def measure(vae, x):
    """Means over x after each number of steps: the ELBO, log p(x), the gap left and its estimate, and refined ones."""
    torch.manual_seed(0)
    refined = vae.log_likelihood(x, samples=100, proposal="refined")
    found = {"elbo": [], "log_likelihood": [], "gap": [], "estimate": []}
    for steps in STEPS:
        torch.manual_seed(0)
        scores = vae.log_likelihood(x, samples=100, steps=steps)
        found["elbo"].append(scores.elbo.mean().item())
        found["log_likelihood"].append(scores.values.mean().item())
        found["gap"].append((refined.elbo - scores.elbo).mean().item())
        found["estimate"].append(decrement(vae, x, vae.encode(x, steps=steps)).mean().item())
    return {**found, "refined": [refined.values.mean().item()]}


def anytime_figure(found):
    """log p(x), and the gap that is left with its estimate, against the number of steps."""
    figure = Figure(figsize=(10, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    places = range(len(STEPS))
    for method, curves in found.items():
        colour = COLOURS[method]
        left.plot(places, curves["log_likelihood"], "o-", color=colour, label=f"{method}, log p(x)")
        left.plot(places, curves["elbo"], "o:", color=colour, label=f"{method}, ELBO", markersize=3, lw=1.3)
        left.axhline(*curves["refined"], color=colour, lw=1, ls=(0, (5, 3)), label=f"{method}, refined log p(x)")
        right.plot(places, curves["gap"], "o-", color=colour, label=f"{method}, measured")
        right.plot(places, curves["estimate"], "o:", color=colour, label=f"{method}, estimated", markersize=3, lw=1.3)
    right.set_yscale("log")
    right.yaxis.set_major_formatter("{x:g}")
    for panel, title in ((left, "Likelihood, nats"), (right, "Amortization gap that is left, nats")):
        panel.set_xticks(places, STEPS)
        panel.set_xlabel("natural-gradient steps")
        panel.set_title(title, loc="left", fontsize=11)
        panel.grid(color=LIGHT["rule"])
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(fontsize=8.5, frameon=False)
    return figure


def main(folder):
    data = split_and_scale(open_source("mnist"), DataConfig(seed=0, limit=10_000, validation_limit=1000))
    x = random_rows(data.test, IMAGES)[:]

    plane = trained(folder, data, "natural", 2)
    estimate = plane.gap(x, how="estimated", steps=0).values
    shown = estimate.argsort()[[IMAGES * percentile // 100 for percentile in PERCENTILES]]
    print("estimated gaps of the images in the plane: " + rounded(estimate[shown]))
    (DOCS / "natural-steps.png").write_bytes(plots.png(steps_figure(plane, x[shown]), dpi=120))

    found = {}
    for method in ("vae", "natural"):
        vae = trained(folder, data, method, 10)
        found[method] = measure(vae, x)
        for name, values in found[method].items():
            print(f"{method}, {name}: {rounded(values)}")
        ascent = vae.encode(x, tolerance=1.0).ascent
        print(
            f"{method}, tolerance=1: {ascent.steps.double().mean():.1f} steps on average, at most {ascent.steps.max()}"
        )
    (DOCS / "natural-anytime.png").write_bytes(plots.png(anytime_figure(found), dpi=120))


if __name__ == "__main__":
    main(*sys.argv[1:])
