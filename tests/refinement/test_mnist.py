"""What refinement is worth on real images, and what it costs in memory."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gpin
from gpin.data import load_benchmark
from gpin.distributions import DiagonalNormal, gaussian_kl

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def mnist():
    """Images to train on and images to test with, `(count, 1, 28, 28)` in [0, 1]."""
    folder = Path(os.environ.get("GPIN_DATA") or SHARED)
    if not (folder / "mnist" / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip("needs MNIST: set GPIN_DATA to a folder that holds mnist/train-images-idx3-ubyte.gz")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GPIN_DATA", str(folder))
        images = load_benchmark("mnist")
    return tuple(torch.from_numpy(part / np.float32(255)) for part in (images.train[:15_000], images.test[:100]))


def gaussian_elbo(vae, x, q, samples=200):
    """The mean bound of a Gaussian q over instances; only E_q[log p(x|z)] is sampled, the rest is exact."""
    parts = [vae.log_conditional(x, z).mean(0) for z in q.sample((samples,)).split(10)]
    reconstruction = torch.stack(parts).mean(0)
    log_prior = -0.5 * (q.variance + q.mean.square() + math.log(2 * math.pi)).sum(-1)
    return (reconstruction + log_prior + q.entropy()).mean().item()


def optimised(vae, x, steps, samples=2, learning_rate=0.02):
    """A diagonal Gaussian for each instance, by Adam on its own ELBO from the encoder's Gaussian.

    Adam works entry by entry, so instances that share a batch do not meet. Its steps shrink to zero: the
    noise of the last ones must not be held against it.
    """
    start = vae.encode(x)
    mean, log_std = start.mean.clone().requires_grad_(), start.stddev.log().requires_grad_()
    optimiser = torch.optim.Adam([mean, log_std], learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        std = log_std.exp()
        z = mean + std * torch.randn(samples, *mean.shape)
        bound = vae.log_conditional(x, z).mean(0) - gaussian_kl(mean, std.square(), 2 * log_std)
        (-bound.sum()).backward()
        optimiser.step()
        schedule.step()
    return DiagonalNormal(mean.detach(), log_std.detach().exp())


@pytest.mark.slow
def test_four_gauss_newton_steps_do_what_400_of_adam_do_on_mnist(mnist):
    """And `vae.refine` does too; samples from there are worth ten times as many as the encoder's own."""
    x_train, x = mnist
    vae = gpin.build((1, 28, 28), "vae", latent_dim=10, seed=0)
    gpin.fit(vae, x_train, epochs=12, progress=False)
    vae.requires_grad_(False)

    encoder = gaussian_elbo(vae, x, vae.encode(x))
    adam = gaussian_elbo(vae, x, optimised(vae, x, steps=400))
    refined = {steps: gaussian_elbo(vae, x, vae.refine(x, steps, gradients=0)) for steps in (1, 2, 4, 20)}
    default = gaussian_elbo(vae, x, vae.refine(x))
    own, improved = (vae.log_likelihood(x, samples=100, proposal=name) for name in ("encoder", "refined"))
    steps = ", ".join(f"{value:.1f} after {count}" for count, value in refined.items())
    print(
        f"ELBO: encoder {encoder:.1f}, Adam {adam:.1f}, Gauss–Newton {steps}, refine {default:.1f}\n{own}\n{improved}"
    )
    print(f"mean ESS {own.ess.mean():.2f} and {improved.ess.mean():.2f}")

    assert adam > encoder + 10, "no gap to close: the test says nothing"
    assert encoder < refined[1] < refined[2] < refined[4] < refined[20]
    assert refined[4] > adam - 2
    assert default > refined[20] - 1
    assert improved.ess.mean() > 10 * own.ess.mean()
    assert improved.mean > own.mean


MEMORY = """
import torch, gpin

def memory(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name)) * 1024

torch.set_num_threads(1)
vae = gpin.build((3, 64, 64), "vae", latent_dim=50, seed=0).eval()
x = torch.rand(64, 3, 64, 64)
before = memory("VmRSS")
vae.refine(x, 1)
print(memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of resident memory is read from /proc")
def test_refining_64_large_images_with_50_latents_needs_less_than_two_gigabytes():
    """The whole Jacobian is 157 MB, but the activations on its way would be many times that."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    grown = int(done.stdout)
    print(f"{grown / 1e9:.2f} GB")
    assert 0 < grown < 2e9
