"""What is particular to each method; what they share is in tests/conformance."""

import itertools
import math

import pytest
import torch
from linear_gaussian import LinearGaussian
from torch import nn
from torch.distributions import Distribution, Normal

import gpin
from gpin.distributions import NormalMixture, gaussian_kl
from gpin.inference.recursive_mixture import _log_weights
from gpin.likelihoods import Gaussian, GaussianOptions
from gpin.refinement.gradient import inner_elbo

SHAPE, D = (6,), 2


def small(method, seed=0, size=50, **options):
    vae = gpin.build(SHAPE, method, D, architecture={"width": 8}, seed=seed, **options)
    x = torch.rand(size, *SHAPE)
    vae.prepare(x)
    return vae.eval(), x


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("sa", {"steps": 0}, "'steps'.*greater than or equal to 1.*got 0"),
        ("sa", {"steps": -2}, "'steps'.*greater than or equal to 1.*got -2"),
        ("sa", {"step_size": 0.0}, "'step_size'.*greater than 0"),
        ("sa", {"momentum": 1.0}, "'momentum'.*less than 1"),
        ("sa", {"reduction": "mean"}, "does not apply to line_search='backtracking'"),
        ("sa", {"preset": "papper"}, "did you mean 'paper'"),
        ("iaf", {"flows": 0}, "'flows'.*greater than or equal to 1.*got 0"),
        ("iaf", {"hidden": 0}, "'hidden'.*greater than or equal to 1"),
        ("hf", {"flows": 0}, "'flows'.*greater than or equal to 1"),
        ("hf", {"flows": 65}, "'flows'.*less than or equal to 64"),
        ("me", {"components": 1}, "'components'.*greater than or equal to 2.*got 1"),
        ("rme", {"components": 1}, "'components'.*greater than or equal to 2"),
        ("rme", {"kl_bound": 0}, "'kl_bound'.*greater than 0"),
        ("rme", {"base_share": 1.0}, "'base_share'.*less than 1"),
        ("vlae", {"steps": -1}, "'steps'.*greater than or equal to 1"),
        ("vlae", {"step_size": 1.5}, "'step_size'.*less than or equal to 1"),
        ("vae", {"steps": 3}, "method 'vae' has no option 'steps'"),
        ("iaf", {"flows": "2"}, "'flows'.*valid integer.*got '2'"),
        ("iaf", {"flows": True}, "'flows'.*valid integer.*got True"),
        ("gp", {"preset": ["paper"]}, "no preset"),
    ],
)
def test_options_out_of_range_are_refused_with_the_range(method, options, said):
    with pytest.raises(gpin.InputError, match=said) as caught:
        gpin.build(SHAPE, method, D, **options)
    assert "\n" not in str(caught.value)


# Semi-amortized ------------------------------------------------------------------------------------


def semi_amortized_run(x, steps=8, **options):
    """The inner objective before and after the steps, for one fixed noise."""
    vae, _ = small("sa", steps=steps, **options)
    mean, _, log_std = vae.inference.base.moments(vae.inference.base.trunk(x))
    start, noise = torch.cat([mean, log_std], -1).detach(), torch.randn(1, len(x), D)

    def objective(state):
        return inner_elbo(state, noise, x, vae)

    return start, vae.inference.refinement.climb(start, objective, vae), objective


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_backtracking_never_lowers_the_bound_of_any_instance(scale):
    x = scale * torch.randn(50, *SHAPE)
    for momentum in (0.0, 0.9):
        start, end, objective = semi_amortized_run(x, momentum=momentum)
        assert (objective(end) >= objective(start)).all()
        assert objective(end).mean() > objective(start).mean()


def test_an_instance_climbs_as_it_would_alone():
    vae, x = small("sa", steps=4)
    start, noise = torch.randn(50, 2 * D), torch.randn(1, 50, D)

    def refined(rows):
        return vae.inference.refinement.climb(
            start[rows], lambda state: inner_elbo(state, noise[:, rows], x[rows], vae), vae
        )

    torch.testing.assert_close(refined(slice(0, 50))[7:8], refined(slice(7, 8)), rtol=1e-4, atol=1e-5)


def test_a_fixed_step_can_lower_it_which_is_why_backtracking_is_the_default():
    x = 30 * torch.randn(50, *SHAPE)
    start, end, objective = semi_amortized_run(x, line_search="none", step_size=1.0)
    assert not (objective(end) >= objective(start)).all()


def test_the_papers_preset_takes_fixed_steps_up_the_mean_of_the_batch():
    vae, x = small("sa", preset="paper", steps=3)
    options = vae.inference.options
    assert (options.step_size, options.line_search, options.reduction) == (1e-3, "none", "mean")
    start, noise = torch.randn(50, 2 * D), torch.randn(1, 50, D)
    expected = start.clone()
    for _ in range(3):  # plain ascent on the mean, written out
        leaf = expected.detach().requires_grad_()
        inner_elbo(leaf, noise, x, vae).mean().backward()
        expected = expected + 1e-3 * leaf.grad
    refined = vae.inference.refinement.climb(start, lambda state: inner_elbo(state, noise, x, vae), vae)
    torch.testing.assert_close(refined, expected.detach(), rtol=1e-5, atol=1e-7)


def test_momentum_and_clipping_are_what_they_say():
    vae, x = small("sa", line_search="none", steps=2, momentum=0.5, clip=0.1, step_size=0.2)
    start, noise = torch.randn(50, 2 * D), torch.randn(1, 50, D)
    state, velocity = start.clone(), 0
    for _ in range(2):
        leaf = state.detach().requires_grad_()
        inner_elbo(leaf, noise, x, vae).sum().backward()
        norm = leaf.grad.norm(dim=-1, keepdim=True)
        velocity = 0.5 * velocity + leaf.grad * (0.1 / norm).clamp(max=1)
        state = state + 0.2 * velocity
    refined = vae.inference.refinement.climb(start, lambda s: inner_elbo(s, noise, x, vae), vae)
    torch.testing.assert_close(refined, state.detach(), rtol=1e-4, atol=1e-6)


def test_refinement_happens_under_no_grad_too():
    vae, x = small("sa", steps=4)
    torch.manual_seed(1)
    with torch.no_grad():
        without = vae.encode(x)
    torch.manual_seed(1)
    torch.testing.assert_close(vae.encode(x).mean, without.mean)
    assert not without.mean.requires_grad
    assert (without.mean - vae.inference.base(x, vae).mean).abs().max() > 1e-4


def test_refinement_happens_in_inference_mode_too():
    vae, x = small("sa", steps=4)
    results = []
    for mode in (torch.no_grad, torch.inference_mode):
        torch.manual_seed(1)
        with mode():
            results.append(vae.encode(x).mean)
    torch.testing.assert_close(*results)


def test_finite_differences_agree_with_exact_second_derivatives(double):
    gradients = []
    for second_order in ("exact", "finite_difference"):
        torch.manual_seed(0)
        vae, x = small("sa", line_search="none", steps=3, step_size=0.05, momentum=0.3, second_order=second_order)
        torch.manual_seed(1)
        vae.loss(x[:8]).backward()
        gradients.append({name: p.grad for name, p in vae.named_parameters()})
    exact, approximate = gradients
    for name, gradient in exact.items():
        torch.testing.assert_close(approximate[name], gradient, rtol=1e-5, atol=1e-7, msg=name)


def test_training_sees_through_the_steps(double):
    vae, x = small("sa", line_search="none", steps=2, step_size=0.1)
    torch.manual_seed(1)
    through = torch.autograd.grad(vae.loss(x), vae.inference.base.head.weight)[0]
    torch.manual_seed(1)
    mean, _, log_std = vae.inference.base.moments(vae.inference.base.trunk(x))
    q = vae.inference(x, vae)
    stopped = q.mean.detach() + mean - mean.detach(), q.stddev.log().detach() + log_std - log_std.detach()
    kl = gaussian_kl(stopped[0], (2 * stopped[1]).exp(), 2 * stopped[1])
    z = stopped[0] + stopped[1].exp() * torch.randn(1, len(x), D)
    first_order = -(vae.log_conditional(x, z).mean(0) - kl).mean()
    blind = torch.autograd.grad(first_order, vae.inference.base.head.weight)[0]
    assert (through - blind).abs().max() > 1e-3 * blind.abs().max()


# Flows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flows", [1, 2, 4, 8])
def test_the_density_of_a_flow_is_that_of_autograds_jacobian(flows, double):
    vae, x = small("iaf", flows=flows)
    vae = vae.double()
    q = vae.encode(x[:1].double())
    start = q.base.sample()

    def push(z):
        for transform in q.transforms:
            z = transform(z)
        return z

    jacobian = torch.autograd.functional.jacobian(push, start)[0, :, 0]
    expected = q.base.log_prob(start) - torch.linalg.slogdet(jacobian).logabsdet
    torch.testing.assert_close(q.log_prob(push(start)), expected)
    torch.manual_seed(1)
    z, log_prob = q.rsample_and_log_prob((6,))
    torch.testing.assert_close(q.log_prob(z), log_prob)


def test_far_from_its_mass_a_flow_has_no_density():
    vae, x = small("iaf", flows=4)
    q = vae.encode(x[:1])
    assert q.log_prob(torch.full((1, D), 1e30)) == -math.inf
    assert q.log_prob(torch.full((1, D), torch.nan)).isnan()


def test_the_features_reach_the_flow_as_context():
    vae, x = small("iaf", flows=2)
    features = vae.inference.base.trunk(x)
    z = torch.randn(1, D).expand(len(x), D)
    for flow in vae.inference.flows:
        moved = flow(features)(z)
        assert (moved - moved[:1]).abs().amax(-1)[1:].min() > 1e-6  # the same z, other features


def test_the_order_is_reversed_between_flows_so_that_all_dimensions_meet():
    vae, x = small("iaf", flows=2)
    features = vae.inference.base.trunk(x[:1])
    first, second = (
        torch.autograd.functional.jacobian(flow(features), torch.randn(1, D))[0, :, 0] for flow in vae.inference.flows
    )
    assert first.triu(1).abs().max() == 0
    assert second.tril(-1).abs().max() == 0
    assert (second @ first).abs().min() > 0


def test_importing_zuko_leaves_torchs_validation_on():
    before = Distribution._validate_args
    gpin.build(SHAPE, "iaf", D)
    assert Distribution._validate_args == before
    with pytest.raises(ValueError, match="scale"):
        Normal(torch.zeros(1), -torch.ones(1))


# Mixtures ------------------------------------------------------------------------------------------


def test_the_stratified_bound_is_the_bound_of_the_mixture():
    vae, x = small("me", components=3)
    with torch.no_grad():
        stratified = vae.elbo(x, samples=4000).value
        q = vae.encode(x)
        z = q.sample((4000,))
        draws = vae.log_joint(x, z) - q.log_prob(z)
    error = (2 * draws.var(0) / len(draws)).sqrt()
    assert ((stratified - draws.mean(0)).abs() < 5 * error).all()


@pytest.mark.parametrize("method", ["me", "rme"])
def test_the_analytic_variance_weighs_the_components_as_the_mixture_does(method):
    vae, x = small(method, components=2, likelihood={"variance": "analytic"})
    for index in range(len(vae.inference.stages())):
        vae.inference.begin_stage(index)
    log_weights = torch.tensor([0.9, 0.1]).log().expand(len(x), 2)
    vae.inference.mixture = lambda x: NormalMixture(
        log_weights, torch.tensor([[0.0] * D, [9.0] * D]).expand(50, 2, D), torch.full((50, 2, D), 1e-6)
    )
    errors = [(vae.decoder(torch.full((1, D), at)) - x).square().mean() for at in (0.0, 9.0)]
    vae.train()
    vae.elbo(x)
    assert vae.likelihood.variance.item() == pytest.approx((0.9 * errors[0] + 0.1 * errors[1]).item(), rel=1e-3)


def test_the_gate_learns_through_the_stratified_bound():
    vae, x = small("me", components=3)
    vae.loss(x).backward()
    assert vae.inference.gate.weight.grad.abs().max() > 0


def test_recursive_weights_are_those_of_the_recursion():
    logits = torch.randn(5, 3)
    epsilon = logits.sigmoid()
    alpha = torch.ones(5, 1)
    for m in range(3):
        alpha = torch.cat([alpha * (1 - epsilon[:, [m]]), epsilon[:, [m]]], dim=-1)
    torch.testing.assert_close(_log_weights(logits).exp(), alpha)
    torch.testing.assert_close(_log_weights(logits[:, :0]), torch.zeros(5, 1))


def test_each_block_of_the_recursive_mixture_follows_its_own_objective(double):
    """The gradient of the one scalar, block by block, against each objective written out."""
    vae, x = small("rme", components=3, kl_bound=1.0)
    vae = vae.double()
    for index in range(3):
        vae.inference.begin_stage(index)
    x = x.double()
    torch.manual_seed(1)
    vae.loss(x).backward()
    told = {name: p.grad for name, p in vae.named_parameters() if p.grad is not None}

    torch.manual_seed(1)
    encoders, nets = vae.inference.components, vae.inference.weight_nets
    moments = [encoder.moments(encoder.trunk(x))[:2] for encoder in encoders]
    noise = torch.randn(1, 3, len(x), D)
    z = [mean + std * noise[:, m] for m, (mean, std) in enumerate(moments)]
    weights = [net(encoders[0].trunk(x)).sigmoid()[:, 0] for net in nets]

    def log_mixture(m, point, epsilon):
        """log Q_m with components held fixed."""
        alpha = [torch.ones(len(x))]
        for e in epsilon[: m - 1]:
            alpha = [a * (1 - e) for a in alpha] + [e]
        terms = [
            a.log() + Normal(mean.detach(), std.detach()).log_prob(point).sum(-1)
            for a, (mean, std) in zip(alpha, moments[:m], strict=True)
        ]
        return torch.logsumexp(torch.stack(terms), 0), alpha

    for m in range(3):
        mean, std = moments[m]
        objective = vae.log_joint(x, z[m]) - Normal(mean, std).log_prob(z[m]).sum(-1)
        if m:
            there = log_mixture(m, z[m], [e.detach() for e in weights])[0]
            divergence = Normal(mean, std).log_prob(z[m]).sum(-1) - there
            objective = objective + divergence.mean(0, keepdim=True).clamp(max=1.0)
        own = list(encoders[m].parameters())
        expected = torch.autograd.grad(-objective.mean(), own, retain_graph=True, allow_unused=True)
        for (name, _), gradient in zip(encoders[m].named_parameters(), expected, strict=True):
            torch.testing.assert_close(told[f"inference.components.{m}.{name}"], gradient, msg=f"component {m} {name}")

    fixed = [point.detach() for point in z]
    for m in (2, 3):
        epsilon = [e.detach() for e in weights[: m - 2]] + [weights[m - 2]]
        terms = []
        for k in range(m):
            log_q, alpha = log_mixture(m, fixed[k], epsilon)
            terms.append(alpha[k] * (vae.log_joint(x, fixed[k]).detach() - log_q))
        expected = torch.autograd.grad(
            -torch.stack(terms).sum(0).mean(), list(nets[m - 2].parameters()), retain_graph=True
        )
        for (name, _), gradient in zip(nets[m - 2].named_parameters(), expected, strict=True):
            torch.testing.assert_close(told[f"inference.weight_nets.{m - 2}.{name}"], gradient, msg=f"weight {m}")

    alpha = log_mixture(3, fixed[0], [e.detach() for e in weights])[1]
    reconstruction = sum(a * vae.log_conditional(x, point) for a, point in zip(alpha, fixed, strict=True)).mean()
    for part in ("decoder", "likelihood"):
        module = getattr(vae, part)
        expected = torch.autograd.grad(-reconstruction, list(module.parameters()), retain_graph=True)
        for (name, _), gradient in zip(module.named_parameters(), expected, strict=True):
            torch.testing.assert_close(told[f"{part}.{name}"], gradient, msg=name)


def test_the_recursive_mixture_grows_through_its_stages():
    x, active = torch.rand(60, *SHAPE), []
    vae = gpin.build(SHAPE, "rme", D, components=4)
    gpin.fit(vae, x, x[:10], epochs=8, progress=False, on_epoch=lambda n, e: active.append(int(vae.inference.active)))
    assert active == [1, 1, 1, 1, 2, 3, 3, 4] or active == [1, 1, 1, 1, 2, 3, 4, 4]
    assert vae.encode(x).means.shape == (60, 4, D)
    with pytest.raises(gpin.InputError, match="4 stages"):
        gpin.fit(gpin.build(SHAPE, "rme", D, components=4), x, x[:10], epochs=3, progress=False)


def test_training_on_keeps_the_grown_components_and_reports_the_bound():
    x = torch.rand(60, *SHAPE)
    vae = gpin.build(SHAPE, "rme", D, components=3)
    gpin.fit(vae, x, x[:10], epochs=6, progress=False)
    before = [p.clone() for p in vae.inference.components[2].parameters()]
    history = gpin.fit(vae, x, x, epochs=2, learning_rate=1e-12, progress=False)
    for old, new in zip(before, vae.inference.components[2].parameters(), strict=True):
        torch.testing.assert_close(old, new)
    assert history.train[0] == pytest.approx(history.validation[0], abs=1.0)


def test_the_best_epoch_is_one_of_the_last_stage():
    x = torch.rand(60, *SHAPE)
    vae = gpin.build(SHAPE, "rme", D, components=3)
    history = gpin.fit(vae, x, x[:10], epochs=6, learning_rate=0.05, progress=False)
    assert vae.inference.active == 3
    assert history.best > 4


def test_a_recursive_mixture_started_from_a_vae_is_that_vae_until_it_grows():
    x = torch.rand(60, *SHAPE)
    trained = gpin.build(SHAPE, "vae", D)
    gpin.fit(trained, x, x[:10], epochs=2, progress=False)
    vae = gpin.build(SHAPE, "rme", D, components=3, start=trained)
    torch.testing.assert_close(vae.encode(x).mean, trained.encode(x).mean)
    assert [stage.name for stage in vae.inference.stages()] == ["component 2", "component 3"]
    gpin.fit(vae, x, x[:10], epochs=2, progress=False)
    assert isinstance(vae.encode(x), NormalMixture)
    assert vae.encode(x).means.shape == (60, 3, D)


# Laplace and refinement ----------------------------------------------------------------------------


def test_one_full_step_of_vlae_hits_the_exact_posterior(double):
    truth = LinearGaussian.random(size=8, latent_dim=3)
    x = truth.sample(20)
    q = truth.vae("vlae", known=True, steps=1, step_size=1.0).encode(x)
    exact = truth.posterior(x)
    torch.testing.assert_close(q.mean, exact.mean, rtol=1e-6, atol=1e-8)
    covariance = exact.covariance_matrix.expand_as(q.covariance_matrix)
    torch.testing.assert_close(q.covariance_matrix, covariance, rtol=1e-6, atol=1e-8)


def test_vlaes_steps_are_the_papers():
    vae, x = small("vlae", steps=3)
    q = vae.encode(x)
    mean = vae.inference.head(vae.inference.trunk(x))
    variance = vae.likelihood.variance
    for t in range(3):
        jacobian = torch.stack([torch.autograd.functional.jacobian(lambda z: vae.decoder(z[None])[0], m) for m in mean])
        offset = vae.decoder(mean) - (jacobian @ mean.unsqueeze(-1)).squeeze(-1)
        precision = jacobian.mT @ jacobian / variance + torch.eye(D)
        solved = torch.linalg.solve(precision, jacobian.mT @ (x - offset).unsqueeze(-1) / variance).squeeze(-1)
        rate = 0.5 / (t + 1)
        mean = (1 - rate) * mean + rate * solved
    torch.testing.assert_close(q.mean, mean, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["vae", "gp", "iaf", "me"])
@pytest.mark.parametrize("likelihood", ["gaussian", {"variance": "per_pixel"}, "bernoulli"])
def test_refinement_never_lowers_the_joint_and_finds_the_mode(method, likelihood, double):
    vae = gpin.build(SHAPE, method, D, architecture={"width": 8}, likelihood=likelihood, seed=0)
    x = torch.rand(30, *SHAPE)
    vae.prepare(x)
    vae.eval()
    vae.decoder = nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, *SHAPE))  # smooth: no gradient at its mode
    values = [vae.log_joint(x, vae.encode(x).mean)]
    values += [vae.log_joint(x, vae.refine(x, steps=steps).mean) for steps in (1, 2, 12)]
    for before, after in itertools.pairwise(values):
        assert (after >= before - 1e-9).all()
    z = vae.refine(x, steps=60, tolerance=1e-12).mean.requires_grad_()
    gradient = torch.autograd.grad(vae.log_joint(x, z).sum(), z)[0]
    assert gradient.norm(dim=-1).max() < 1e-3


def test_refinement_ends_where_steps_gain_little(double):
    vae = gpin.build(SHAPE, "vae", D, architecture={"width": 8}, seed=0)
    x = torch.rand(30, *SHAPE)
    vae.prepare(x)
    vae.eval()
    vae.decoder = nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, *SHAPE))
    best = vae.log_joint(x, vae.refine(x, steps=60, tolerance=1e-12).mean)
    left = {tolerance: best - vae.log_joint(x, vae.refine(x, 60, tolerance).mean) for tolerance in (1e9, 0.1, 1e-6)}
    twice = best - vae.log_joint(x, vae.refine(x, 2, 1e-12, gradients=0).mean)
    torch.testing.assert_close(left[1e9], twice)  # the first step and the last, and none by gradients in between
    assert left[0.1].mean() < twice.mean()
    assert left[0.1].max() < 0.5
    assert left[1e-6].max() < 1e-4
    alone = torch.cat([vae.refine(one, 60, 0.1).mean for one in x.split(1)])  # who settles early disturbs nobody
    torch.testing.assert_close(vae.refine(x, 60, 0.1).mean, alone)


def test_refinement_is_exact_for_a_linear_decoder_and_so_is_its_score(double):
    truth = LinearGaussian.random(size=8, latent_dim=3)
    x = truth.sample(40)
    vae = truth.vae("vae", known=True)
    q, exact = vae.refine(x, steps=1), truth.posterior(x)
    torch.testing.assert_close(q.mean, exact.mean, rtol=1e-6, atol=1e-8)
    covariance = exact.covariance_matrix.expand_as(q.covariance_matrix)
    torch.testing.assert_close(q.covariance_matrix, covariance, rtol=1e-6, atol=1e-8)
    score = vae.log_likelihood(x, samples=50, proposal="refined")
    torch.testing.assert_close(score.values, truth.log_prob(x), rtol=1e-6, atol=1e-6)
    assert (score.ess > 49.9).all()
    assert (score.khat < 0.7).all()
    assert score.proposal == "refined"


def test_jacobians_in_chunks_are_the_jacobian(monkeypatch, double):
    from gpin.refinement import gauss_newton as refinement

    vae = gpin.build((1, 9, 8), "vae", 3, seed=0)
    x = torch.rand(11, 1, 9, 8)
    vae.prepare(x)
    z = vae.encode(x).mean.detach()
    whole = refinement.linearise(vae, x, z)
    monkeypatch.setattr(refinement, "CHUNK", 1)
    for one, other in zip(whole, refinement.linearise(vae, x, z), strict=True):
        torch.testing.assert_close(one, other)
    output, slopes = refinement.jacobian(vae, x, z)
    expected = torch.autograd.functional.jacobian(lambda point: vae.decoder(point).sum(0), z)  # (*shape, batch, d)
    torch.testing.assert_close(slopes, expected.movedim((-1, -2), (0, 1)))
    torch.testing.assert_close(output, vae.decoder(z))


def test_a_precision_that_float32_cannot_factor_is_factored_all_the_same():
    decoder = nn.Linear(3, 40, bias=False)
    direction = torch.randn(40, 1)
    with torch.no_grad():
        decoder.weight.copy_(100 * (direction + 1e-4 * torch.randn(40, 3)))
    likelihood = Gaussian((40,), GaussianOptions(variance="fixed", initial_variance=1e-3))
    vae = gpin.VAE(gpin.build((40,), "vae", 3).inference, decoder, likelihood)
    q = vae.refine(torch.randn(8, 40), steps=2)
    assert torch.isfinite(q.covariance_matrix).all()
    assert torch.isfinite(q.log_prob(q.sample((5,)))).all()


@pytest.mark.parametrize(("steps", "said"), [(0, "steps"), (-1, "steps"), (1.5, "steps")])
def test_refinement_steps_out_of_range_are_refused(steps, said):
    vae, x = small("vae")
    with pytest.raises(gpin.InputError, match=said):
        vae.refine(x, steps=steps)


# All on one model whose answer is known -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [("sa", {}), ("sa", {"preset": "paper"}), ("iaf", {}), ("hf", {}), ("me", {}), ("rme", {}), ("vlae", {})],
    ids=lambda value: str(value),
)
def test_training_reaches_the_exact_log_likelihood(method, options):
    """To 1 %, as do `vae` and `gp` in gp/test_encoder.py to 0.5 %."""
    truth = LinearGaussian.random(size=16, variance=0.3)
    vae, x_test = truth.trained(method, **options), truth.sample(1000)
    exact = truth.log_prob(x_test).mean().item()
    estimate = vae.log_likelihood(x_test, samples=100)
    assert estimate.mean == pytest.approx(exact, rel=0.01)
    assert LinearGaussian.of(vae).log_prob(x_test).mean().item() == pytest.approx(exact, rel=0.01)
    assert math.isfinite(estimate.mean_mc_error)
