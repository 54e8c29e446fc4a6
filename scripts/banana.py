"""A banana-shaped posterior, which no Gaussian fits, and how closely each method approximates it.

    z ~ N(0, I) in the plane,  x = z₂ − z₁² + noise of standard deviation 0.25

Given x, z lies along the parabola z₂ = x + z₁²: a single arc for large x, two arms for small x. The decoder is known
and fixed, only the encoders are trained, and the true posterior is computed on a grid.

    python scripts/banana.py            # draws docs/banana.png and prints KL(q ‖ p); takes some minutes
"""

import math
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import nn
from torch.distributions import MultivariateNormal

import gpin
from gpin.inference import METHODS, method_named
from gpin.likelihoods import Gaussian, GaussianOptions
from gpin.networks import Dense, DenseOptions
from gpin.report import plots
from gpin.report.style import LIGHT

NOISE = 0.25
TEST = torch.tensor([[-2.0], [-1.0], [0.0]])
SHOWN = torch.tensor([[-1.5]])

OPTIONS = {
    "vae": {},
    "gp": {},
    "sa": {"inner_samples": 64},  # with a single draw the steps would fit its noise
    "vlae": {},
    "hf": {},
    "iaf": {"flows": 4, "hidden": 32},
    "me": {"components": 3},
    "rme": {"components": 3, "kl_bound": 2.0, "base_share": 0.25},  # with 500 nats, components drift into the tails
}
LABELS = {
    "vae": "diagonal Gaussian",
    "gp": "diagonal Gaussian",
    "sa": "diagonal Gaussian",
    "vlae": "full Gaussian",
    "hf": "full Gaussian",
    "iaf": "4 flows",
    "me": "3 components",
    "rme": "3 components",
}


class Parabola(nn.Module):
    """The decoder g(z) = z₂ − z₁²: `(..., 2)` → `(..., 1)`; it has no parameters."""

    def forward(self, z):
        """E[x|z]."""
        return z[..., 1:] - z[..., :1].square()


def draw(count):
    """Data from the model itself, `(count, 1)`."""
    return Parabola()(torch.randn(count, 2)) + NOISE * torch.randn(count, 1)


def build(method, **options):
    """A VAE with the true decoder and likelihood, and an untrained encoder."""
    chosen = method_named(method)
    options = chosen.Options.parse({**OPTIONS[method], **options}, method)
    inference = chosen(Dense((1,), DenseOptions(width=32)).trunk, 2, options)
    known = GaussianOptions(variance="fixed", initial_variance=NOISE**2)
    return gpin.VAE(inference, Parabola(), Gaussian((1,), known))


def train(method, epochs=40, learning_rate=5e-3, seed=0, **options):
    """A VAE whose encoder is trained on 8,000 draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vae, x_train, x_val = build(method, **options), draw(8000), draw(1000)
    settings = {"epochs": epochs, "batch_size": 512, "learning_rate": learning_rate, "seed": seed, "progress": False}
    gpin.fit(vae, x_train, x_val, **settings)
    return vae


class Grid:
    """A grid over the plane that covers practically all mass of the posterior and of any reasonable q."""

    def __init__(self, low=(-3.2, -4.5), high=(3.2, 4.5), size=321):
        self.axes = [torch.linspace(a, b, size) for a, b in zip(low, high, strict=True)]
        self.points = torch.cartesian_prod(*self.axes).unsqueeze(1)  # (points, 1, 2)
        self.cell = math.prod((axis[1] - axis[0]).item() for axis in self.axes)

    @torch.no_grad()
    def log_evidence(self, vae, x):
        """log p(x), `(batch,)`, by summing the joint density over the grid."""
        return torch.logsumexp(vae.log_joint(x, self._for(x)), 0) + math.log(self.cell)

    @torch.no_grad()
    def log_posterior(self, vae, x):
        """log p(z|x), `(points, batch)`."""
        return vae.log_joint(x, self._for(x)) - self.log_evidence(vae, x)

    @torch.no_grad()
    def log_density(self, q, x):
        """log q(z|x), `(points, batch)`; −∞ far from the origin, where the inverse of a flow overflows."""
        return q.log_prob(self._for(x)).nan_to_num(nan=-math.inf)

    def mass(self, log_density):
        """The mass of a density on the grid, `(batch,)`."""
        return log_density.double().exp().sum(0) * self.cell

    def divergence(self, log_q, log_p):
        """KL(q ‖ p) = ∫ q log q/p, `(batch,)`."""
        q = log_q.double().exp()
        return torch.where(q > 0, q * (log_q - log_p), 0).sum(0) * self.cell

    def _for(self, x):
        return self.points.expand(-1, len(x), -1)


def divergence(vae, x, grid, q=None):
    """KL(q ‖ p) for each x, where q is by default that of the encoder."""
    return grid.divergence(grid.log_density(vae.encode(x) if q is None else q, x), grid.log_posterior(vae, x))


def best_gaussian(vae, x, grid, steps=400, samples=256):
    """The smallest KL(q ‖ p) over all Gaussians q, for each x, found by Adam from seven starting points."""
    first = torch.linspace(-1.8, 1.8, 7).repeat_interleave(len(x))
    x = x.repeat(7, 1)
    mean = torch.stack([first, x[:, 0] + first.square()], -1).requires_grad_()
    root = (0.3 * torch.eye(2)).repeat(len(x), 1, 1).requires_grad_()
    optimiser = torch.optim.Adam([mean, root], 0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        z = mean + (root @ torch.randn(samples, len(x), 2, 1)).squeeze(-1)
        (-vae.log_joint(x, z).mean(0) - torch.linalg.slogdet(root).logabsdet).sum().backward()
        optimiser.step()
        schedule.step()
    q = MultivariateNormal(mean.detach(), root.detach() @ root.detach().mT)
    return divergence(vae, x, grid, q).reshape(7, -1).amin(0)


# The picture -----------------------------------------------------------------------------------------

MASSES = (0.95, 0.8, 0.5, 0.2)


def levels(log_density):
    """The densities, in ascending order, whose contours enclose MASSES: `(points,)` → numbers."""
    density = log_density.double().exp().sort(descending=True).values
    share = density.cumsum(0) / density.sum()
    return [density[(share < mass).sum()].item() for mass in MASSES]


def picture(vaes, divergences, x, grid):
    """One panel per method: the true posterior filled, q as lines, with contours that enclose the same masses."""
    figure = Figure(figsize=(10, 6.05), layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.05, h_pad=0.08, wspace=0.03, hspace=0.03)
    shape = [len(axis) for axis in grid.axes]
    across, up = (axis.numpy() for axis in grid.axes)

    def surface(log_density):
        return log_density[:, 0].exp().reshape(shape).T.numpy()

    panels = figure.subplots(2, 4)
    for panel, (method, vae) in zip(panels.flat, vaes.items(), strict=True):
        torch.manual_seed(0)
        log_p = grid.log_posterior(vae, x)
        log_q = grid.log_density(vae.encode(x), x)
        fills = ["#e6eaef", "#cfd7e0", "#b2bfcd", "#93a4b7"]
        panel.contourf(across, up, surface(log_p), [*levels(log_p[:, 0]), math.inf], colors=fills)
        colour = plots.series(list(METHODS).index(method))
        panel.contour(across, up, surface(log_q), levels(log_q[:, 0]), colors=colour, linewidths=1.3)
        panel.set(xlim=(-2.4, 2.4), ylim=(-2.55, 2.25), aspect="equal", xticks=[], yticks=[])
        for side in panel.spines.values():
            side.set(color=LIGHT["rule"], linewidth=0.8)
        panel.set_title(method, loc="left", fontsize=13, fontweight="bold", color=colour, pad=6)
        panel.set_title(f"KL {divergences[method]:.2f}", loc="right", fontsize=12, color=LIGHT["ink"], pad=6)
        panel.text(0.04, 0.035, LABELS[method], transform=panel.transAxes, fontsize=9.5, color=LIGHT["muted"])
    for text, place in (("$z_1$", (0.93, 0.045)), ("$z_2$", (0.035, 0.92))):
        panels[0, 0].text(*place, text, transform=panels[0, 0].transAxes, fontsize=11, color=LIGHT["muted"])
    shares = ", ".join(f"{100 * mass:.0f}" for mass in reversed(MASSES))
    note = (
        f"Filled: the true posterior p(z|x). Lines: q(z|x). Contours enclose {shares} % of the mass. KL(q ‖ p) in nats."
    )
    figure.supxlabel(note, fontsize=10.5, color=LIGHT["muted"])
    return figure


def main():
    grid, x, vaes, shown = Grid(), torch.cat([TEST, SHOWN]), {}, {}

    def show(name, values):
        print(f"{name:>6}  {values[: len(TEST)].mean():4.2f}  " + "  ".join(f"{v:5.2f}" for v in values), flush=True)

    print(
        "KL(q ‖ p): mean, then at x = " + ", ".join(f"{value:g}" for value in TEST[:, 0]) + f"; and at {SHOWN.item():g}"
    )
    for method in OPTIONS:
        vaes[method] = train(method, epochs=80)
        torch.manual_seed(0)
        repeats = 16 if method == "sa" else 1  # the q of sa depends on the noise of its steps
        values = torch.stack([divergence(vaes[method], x, grid) for _ in range(repeats)]).mean(0)
        show(method, values)
        shown[method] = values[-1].item()
    show("N(·)", best_gaussian(vaes["vae"], x, grid))
    figure = picture(vaes, shown, SHOWN, Grid(size=801))
    (Path(__file__).parents[1] / "docs" / "banana.png").write_bytes(plots.png(figure, dpi=120))


if __name__ == "__main__":
    main()
