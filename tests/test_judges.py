"""The models and the test with which `benchmarks/judges` compares gpin with references from outside."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from torch.distributions import Bernoulli, MultivariateNormal

JUDGES = Path(__file__).parent.parent / "benchmarks" / "judges"


@pytest.fixture
def judges(monkeypatch):
    """Imports a module of the benchmark."""
    monkeypatch.syspath_prepend(JUDGES)
    for name in ("tasks", "c2st", "summary"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module


@pytest.fixture
def tasks(judges):
    design = torch.randn(100, 10, generator=torch.Generator().manual_seed(0))
    module = judges("tasks")
    return {"gaussian_linear": module.gaussian_linear(), "bernoulli_glm": module.bernoulli_glm(design)}, design, module


def covariances(theta):
    """SLCP's covariance of x given θ, as in sbibm."""
    first, second, correlation = theta[:, 2] ** 2, theta[:, 3] ** 2, theta[:, 4].tanh()
    matrix = torch.empty(len(theta), 2, 2, dtype=theta.dtype)
    matrix[:, 0, 0], matrix[:, 1, 1] = first**2 + 1e-6, second**2 + 1e-6
    matrix[:, 0, 1] = matrix[:, 1, 0] = correlation * first * second
    return matrix


def test_densities_are_those_of_sbibms_simulators(tasks):
    models, design, module = tasks
    task = models["gaussian_linear"]
    z, x = task.simulate(20, seed=0)
    expected = MultivariateNormal(task.to_parameters(z), 0.1 * torch.eye(10, dtype=x.dtype)).log_prob(x)
    assert torch.allclose(task.vae("vae").log_conditional(x, z), expected, atol=1e-5)

    task = models["bernoulli_glm"]
    z, x = task.simulate(20, seed=0)
    logits = task.to_parameters(z) @ design.double().T
    assert torch.allclose(task.vae("vae").log_conditional(x, z), Bernoulli(logits=logits).log_prob(x).sum(-1))

    task = module.slcp()
    z, x = task.simulate(20, seed=0)
    theta = task.to_parameters(z)
    normal = MultivariateNormal(theta[:, None, :2], covariances(theta).unsqueeze(1))
    expected = normal.log_prob(x.reshape(-1, 4, 2)).sum(-1)
    assert torch.allclose(task.vae("vae").log_conditional(x, z), expected)
    assert task.likelihood.mean(task.decoder(z)).reshape(-1, 4, 2).allclose(theta[:, None, :2].expand(-1, 4, 2))


def test_priors_are_sbibms(tasks):
    models, _, module = tasks
    z = torch.randn(200_000, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    theta = models["bernoulli_glm"].to_parameters(z)
    expected = torch.linalg.inv(module.smooth_prior().double())
    assert torch.allclose(theta.mT @ theta / len(theta), expected, atol=0.02 * expected.max().item())
    assert models["gaussian_linear"].to_parameters(z).var().item() == pytest.approx(0.1, rel=0.01)
    quantiles = module.to_box(torch.tensor([-8.0, -0.6744898, 0.0, 0.6744898, 8.0], dtype=torch.float64))
    assert quantiles.tolist() == pytest.approx([-3, -1.5, 0, 1.5, 3], abs=1e-6)


def test_the_curvature_of_slcp_is_the_fisher_information(tasks):
    task = tasks[2].slcp()
    z, x = task.simulate(5, seed=3)
    output = task.decoder(z).requires_grad_()
    (gradient,) = torch.autograd.grad(task.likelihood.log_prob(x, output).sum(), output)
    score, _ = task.likelihood.score_and_precision(x, output.detach())
    assert torch.allclose(score, gradient)
    one = output.detach()[:1].expand(100_000, 5)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        scores, factor = task.likelihood.score_and_precision(task.likelihood.sample(one), one)
    scale = scores.std(0) * scores.std(0).unsqueeze(-1)
    information = factor[0].mT @ factor[0]
    assert torch.allclose(scores.mT @ scores / len(scores) / scale, information / scale, atol=0.03)


def test_a_classifier_tells_apart_only_what_differs(judges):
    c2st = judges("c2st").c2st
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(400, 1, generator=generator) for _ in range(2))
    assert abs(c2st(first, second, folds=2) - 0.5) < 0.06
    assert c2st(first, second + 6, folds=2) > 0.98


def test_tables_are_those_of_the_results(judges):
    summary = judges("summary")

    assert not summary.write(json.loads((JUDGES / "results.json").read_text()), check=True)
    npe = json.loads((JUDGES / "npe.json").read_text())
    assert all(len(values) == 10 for task in summary.TASKS[:3] for values in npe[task].values())
