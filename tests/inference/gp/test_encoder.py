import json
import math
from dataclasses import replace

import pytest
import torch
from linear_gaussian import LinearGaussian
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence

import gpin
from gpin.building import VAEConfig
from gpin.inference import GPConfig, GPEncoder
from gpin.likelihoods import Gaussian, GaussianOptions

SHAPE, D = (6,), 3

VARIANTS = [
    {"covariance": covariance, "shared_trunk": shared, "deviations": deviations}
    for covariance, shared, deviations in [
        ("full", True, "absolute"),
        ("full", False, "absolute"),
        ("full", False, "relative"),
        ("diagonal", True, "relative"),
        ("diagonal", False, "absolute"),
        ("shared_basis", True, "relative"),
        ("shared_basis", True, "absolute"),
        ("shared_basis", False, "relative"),
    ]
]


def random_gp(scale=0.2, **options):
    """A GP VAE in float64 whose posterior parameters are all random."""
    vae = gpin.build(SHAPE, "gp", D, architecture={"width": 10}, **options).double()
    vae.prepare(torch.rand(20, *SHAPE))
    with torch.no_grad():
        for process in vae.inference.processes:
            for parameter in process.parameters():
                parameter.add_(scale * torch.randn_like(parameter))
    return vae.eval()


def sampled_encoders(encoder, x, count):
    """q(z|x, W, U) for `count` draws of W and U, as (means, stds), each (count, batch, d)."""
    features = encoder.base.trunk(x)
    b, c, _ = encoder.base.moments(features)
    if encoder.options.shared_trunk:
        f, h = torch.einsum("ndp,bp->nbd", encoder.processes[0].sample_weights(count), features).chunk(2, -1)
    else:
        f, h = (
            torch.einsum("ndp,bp->nbd", process.sample_weights(count), tower(x))
            for process, tower in zip(encoder.processes, encoder.towers, strict=True)
        )
    unit = c if encoder.options.deviations == "relative" else 1.0
    return b + unit * f, (c + unit * h).abs()


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("marginal", ["moment", "exact"])
def test_without_a_posterior_it_is_the_plain_vae(options, marginal, double):
    plain = gpin.build(SHAPE, "vae", D)
    gp = gpin.build(SHAPE, "gp", D, start=plain, marginal=marginal, **options)
    x = torch.rand(7, *SHAPE)
    for vae in (plain, gp):
        vae.prepare(x)
    for process in gp.inference.processes:
        process.reset(0.0)
    torch.testing.assert_close(gp.encode(x).mean, plain.encode(x).mean, rtol=0, atol=0)
    torch.testing.assert_close(gp.encode(x).variance, plain.encode(x).variance, rtol=1e-15, atol=0)
    z = torch.randn(5, 7, D)
    torch.testing.assert_close(gp.encode(x).log_prob(z), plain.encode(x).log_prob(z), rtol=1e-13, atol=1e-13)
    kl = gp.inference.expected_kl(gp.inference.functions(x))
    torch.testing.assert_close(kl, plain.elbo(x).kl, rtol=1e-13, atol=1e-13)
    if marginal == "moment":  # the exact marginal draws three noises a sample, not one
        torch.manual_seed(1)
        expected = plain.elbo(x).reconstruction
        torch.manual_seed(1)
        torch.testing.assert_close(gp.elbo(x).reconstruction, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_moments_and_expected_kl_agree_with_sampled_weights(options):
    vae, x, count = random_gp(**options), torch.rand(4, *SHAPE).double(), 40_000
    functions = vae.inference.functions(x)
    with torch.no_grad():
        means, stds = sampled_encoders(vae.inference, x, count)
        prior = Independent(Normal(torch.zeros(D).double(), torch.ones(D).double()), 1)
        kl = kl_divergence(Independent(Normal(means, stds), 1), prior)  # (count, batch)
        second = stds.square() + means.square()
    for sampled, formula in [
        (means, functions.mean),
        (second, functions.variance + functions.mean.square()),
        (kl, vae.inference.expected_kl(functions)),
    ]:
        error = sampled.std(0) / math.sqrt(count)
        assert ((sampled.mean(0) - formula).abs() < 5 * error).all()


def test_the_exact_marginal_is_the_mixture_over_sampled_encoders():
    vae, x, count = random_gp(scale=0.5, marginal="exact"), torch.rand(3, *SHAPE).double(), 100_000
    with torch.no_grad():
        q = vae.encode(x)
        means, stds = sampled_encoders(vae.inference, x, count)
        z = q.sample((6,))
        for point in z:
            density = Normal(means, stds).log_prob(point).exp()  # (count, batch, d)
            formula = torch.stack([one.log_prob(point[..., [j]]) for j, one in enumerate(per_dimension(q))], -1).exp()
            error = density.std(0) / math.sqrt(count)
            assert ((density.mean(0) - formula).abs() < 5 * error + 1e-4 * formula).all()


def per_dimension(q):
    parts = (q.loc, q.mean_std, q.scale, q.scale_std)
    return [type(q)(*(part[..., [j]] for part in parts)) for j in range(D)]


def test_a_draw_that_is_exactly_zero_leaves_the_sampled_log_square_finite(monkeypatch):
    """Mean and noise cancel once in some ten million draws, which a training makes."""
    vae = random_gp(log_square="sampled", log_square_samples=4)
    functions = vae.inference.functions(torch.rand(5, *SHAPE, dtype=torch.float64))
    functions = replace(functions, std_variance=functions.std.square())
    kl = vae.inference.expected_kl
    draws = torch.tensor([-1.0, 0.3, 1.2, -0.4], dtype=torch.float64)
    monkeypatch.setattr(torch, "randn", lambda shape, **kind: draws.view(-1, 1, 1).expand(shape) * functions.std.sign())
    value = kl(functions)
    assert value.isfinite().all()
    floor = 2 * math.log(0.5 * torch.finfo(torch.float64).eps)
    others = (1 + draws[1:]).square().log().sum().item()
    log_square = functions.std.square().log() + (floor + others) / 4
    expected = 0.5 * (functions.variance + functions.mean.square() - 1 - log_square).sum(-1)
    torch.testing.assert_close(value, expected)


def test_the_sampled_log_square_is_unbiased():
    exact, x = random_gp(scale=0.1), torch.rand(5, *SHAPE).double()
    functions = exact.inference.functions(x)
    sampled = GPEncoder.expected_kl
    exact.inference.options = GPConfig(log_square="sampled", log_square_samples=1)
    draws = torch.stack([sampled(exact.inference, functions).detach() for _ in range(4000)])
    exact.inference.options = GPConfig()
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - exact.inference.expected_kl(functions)).abs() < 5 * error).all()


def test_the_supplements_proof_holds_numerically(double):
    """KL(q(W,U) ‖ p(W,U|D)) = log p̂(D) − Σ ELBO, both sides by integration over the two weights.

    One latent dimension, one feature, a linear decoder: L(W, U; x) is closed, and W, U live on a grid.
    """
    noise, slope = 0.5, torch.tensor([0.9, -0.6])
    x = torch.tensor([[0.7, -0.2], [-1.1, 0.4], [0.3, 0.9]])
    encoder = GPEncoder(
        lambda: _OneFeature(),
        1,
        GPConfig(covariance="full", shared_trunk=False, deviations="absolute", marginal="exact"),
    )
    decoder = nn.Linear(1, 2, bias=False)
    fixed = GaussianOptions(variance="fixed", initial_variance=noise, min_variance=1e-9)
    vae = gpin.VAE(encoder, decoder, Gaussian((2,), fixed))
    vae.prepare(x)
    with torch.no_grad():
        decoder.weight.copy_(slope[:, None])
        for process, mean, std in zip(encoder.processes, (0.4, -0.2), (0.5, 0.3), strict=True):
            process.reset(std)
            process.mean.fill_(mean)

        # The library: Σ_x ELBO, its reconstruction term sampled.
        count = 400_000
        bound = encoder.elbo(x, vae, samples=count)
        z = encoder(x, vae).sample((count,))
        error = (vae.log_conditional(x, z).var(0).sum() / count).sqrt()
        total = bound.value.sum()

        # The truth: a grid over (W, U). Offset by an irrational step, so that no node has h = 0.
        grid = torch.linspace(-7, 7, 2801) + 0.01 * math.pi / 7
        w, u = grid[:, None, None], grid[None, :, None]  # (W, U, data)
        features = encoder.base.trunk(x)
        b, c, _ = (moment[:, 0] for moment in encoder.base.moments(features))
        f = b + w * encoder.towers[0](x)[:, 0]
        h = c + u * encoder.towers[1](x)[:, 0]
        square = ((x - f[..., None] * slope).square().sum(-1) + h.square() * slope.square().sum()) / noise
        expected_log_lik = -0.5 * square - math.log(2 * math.pi * noise)
        kl = 0.5 * (h.square() + f.square() - 1 - h.square().log())
        surrogate = (expected_log_lik - kl).sum(-1)  # Σ_x L(W, U; x), (W, U)
        cell = 2 * math.log(grid[1] - grid[0])
        unit = Normal(0.0, 1.0)
        joint = unit.log_prob(w[..., 0]) + unit.log_prob(u[..., 0]) + surrogate
        log_evidence = torch.logsumexp(joint.flatten(), 0) + cell
        q = Normal(0.4, 0.5).log_prob(w[..., 0]) + Normal(-0.2, 0.3).log_prob(u[..., 0])
        divergence = ((q + cell).exp() * (q - (joint - log_evidence))).sum()
    assert divergence > 0.05  # or the identity would say little
    assert abs(divergence - (log_evidence - total)) < 5 * error + 1e-3


class _OneFeature(nn.Module):
    out_features = 1

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return torch.tanh(self.layer(x))


def test_uncertainty_is_the_trace_of_the_posterior_variance():
    vae, x = random_gp(preset="paper"), torch.rand(5, *SHAPE).double()
    told = vae.uncertainty(x)
    for part, process, tower in zip(
        (told.mean_part, told.std_part), vae.inference.processes, vae.inference.towers, strict=True
    ):
        psi = tower(x)
        torch.testing.assert_close(part, torch.einsum("bp,dpq,bq->b", psi, process.covariance(), psi))
    torch.testing.assert_close(told.total, told.mean_part + told.std_part)


def test_the_factor_of_the_weight_kl_changes_the_loss_and_not_the_bound():
    x = torch.rand(20, *SHAPE)
    found = []
    for factor in (1.0, 0.25):
        vae = gpin.build(SHAPE, "gp", D, seed=0, weight_kl_factor=factor)
        vae.prepare(x)
        torch.manual_seed(0)
        found.append((vae.inference.objective(x, vae), vae.inference.weight_kl() / 20))
    ((loss, bound), weight_kl), ((other_loss, other_bound), _) = found
    torch.testing.assert_close(loss, -bound)
    torch.testing.assert_close(other_bound, bound)
    torch.testing.assert_close(loss - other_loss, 0.75 * weight_kl)
    assert weight_kl > 0


def test_the_weight_kl_is_shared_by_the_training_points_not_by_the_batch():
    vae, x = random_gp(), torch.rand(50, *SHAPE).double()
    vae.prepare(x)
    whole = vae.inference.weight_kl() / 50
    for size in (1, 7, 50):
        torch.testing.assert_close(vae.elbo(x[:size]).weight_kl, whole.expand(size))


def test_the_covariance_starts_small_beside_the_features():
    for scale, bound in ((0.01, 1e-4), (1.0, 1e-4), (1e5, 0.0101)):
        x = scale * torch.rand(200, *SHAPE)
        vae = gpin.build(SHAPE, "gp", D, initial_std=0.003)
        vae.prepare(x)
        functions = vae.inference.functions(x)
        assert 0 < functions.std_variance.mean() <= bound * functions.std.square().mean()
        before = vae.inference.processes[0].log_std.clone()
        vae.prepare(2 * x)  # training on does not start the posterior anew
        assert torch.equal(before, vae.inference.processes[0].log_std)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_warm_start_gives_the_trained_means_and_reconstructions(options):
    x = torch.rand(200, *SHAPE)
    trained = gpin.build(SHAPE, "vae", D)
    gpin.fit(trained, x, epochs=2, progress=False)
    gp = gpin.build(SHAPE, "gp", D, start=trained, **options)
    gp.prepare(x)
    torch.testing.assert_close(gp.reconstruct(x), trained.reconstruct(x))
    assert gp.likelihood.variance == trained.likelihood.variance
    ratio = gp.encode(x).variance / trained.encode(x).variance
    assert (ratio > 1).all()
    assert ratio.mean() < 1.2


def test_deterministic_towers_have_the_capacity_and_no_randomness():
    x = torch.rand(9, *SHAPE)
    for shared in (True, False):
        vae = gpin.build(SHAPE, "gp", D, towers="deterministic", shared_trunk=shared)
        vae.prepare(x)
        functions = vae.inference.functions(x)
        assert functions.mean_variance.abs().max() == functions.std_variance.abs().max() == 0
        assert vae.elbo(x).weight_kl.abs().max() == 0
        diagonal = gpin.build(SHAPE, "gp", D, covariance="diagonal", shared_trunk=shared)
        means = sum(p.numel() for name, p in diagonal.named_parameters() if "log_std" not in name)
        assert sum(p.numel() for p in vae.parameters()) == means
        with pytest.raises(gpin.InputError, match="nothing in it is random"):
            vae.uncertainty(x)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"covariance": "dense"}, "covariance"),
        ({"covarience": "full"}, "did you mean 'covariance'"),
        ({"preset": "papper"}, "did you mean 'paper'"),
        ({"initial_std": 0.0}, "initial_std"),
        ({"log_square_samples": 3}, "log_square='sampled' only"),
        ({"towers": "deterministic", "marginal": "exact"}, "does not apply"),
        ({"marginal": "exact", "min_variance": 0.1}, "marginal='moment' only"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(options, said):
    with pytest.raises(gpin.InputError, match=said) as caught:
        gpin.build(SHAPE, "gp", D, **options)
    assert "\n" not in str(caught.value)


def test_the_papers_setting_is_one_preset_away():
    options = gpin.build(SHAPE, "gp", D, preset="paper").inference.options
    assert (options.covariance, options.shared_trunk) == ("full", False)
    assert (options.marginal, options.log_square) == ("moment", "sampled")
    changed = gpin.build(SHAPE, "gp", D, preset="paper", log_square="exact").inference.options
    assert changed.log_square == "exact"


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("vae", {}),
        pytest.param("gp", {}, marks=pytest.mark.slow),
        pytest.param("gp", {"preset": "paper", "log_square": "exact"}, marks=pytest.mark.slow),
        pytest.param("gp", {"marginal": "exact"}, marks=pytest.mark.slow),
    ],
    ids=["vae", "gp", "gp-full", "gp-exact"],
)
def test_training_on_linear_gaussian_data_reaches_the_exact_log_likelihood(method, options):
    truth = LinearGaussian.random(size=16, variance=0.3)
    vae, x_test = truth.trained(method, **options), truth.sample(2000)
    exact, model = truth.log_prob(x_test).mean(), LinearGaussian.of(vae)
    assert abs(model.log_prob(x_test).mean() - exact) < 0.005 * abs(exact)
    bound = vae.elbo(x_test, samples=50)
    assert abs((bound.value + bound.weight_kl).mean() - exact) < 0.01 * abs(exact)

    estimate = vae.log_likelihood(x_test, samples=200)
    error = estimate.values - model.log_prob(x_test)
    # The estimator's bias is −½ of its variance; both come from its own stated error.
    bias = -0.5 * estimate.mc_error.square().mean()
    assert abs(error.mean() - bias) < 4 * estimate.mean_mc_error + 1e-4
    assert abs(estimate.mean - exact) < 0.005 * abs(exact)


def test_a_warm_start_calibrates_anew():
    x = torch.rand(200, *SHAPE)
    trained = gpin.build(SHAPE, "vae", D, seed=1)
    gpin.fit(trained, x, epochs=2, progress=False)
    options = {"preset": "paper", "initial_std": 0.5, "seed": 0}
    first = gpin.build(SHAPE, "gp", D, start=trained, **options)
    first.prepare(x)
    later = gpin.build(SHAPE, "gp", D, **options)
    gpin.fit(later, x, epochs=1, progress=False)
    later.start_from(trained)
    later.prepare(x)
    one, other = (vars(vae.inference.functions(x)) for vae in (first, later))
    torch.testing.assert_close(one, other)


def test_the_weights_start_as_asked_before_there_is_data():
    x = torch.rand(20, *SHAPE)
    small, large = (gpin.build(SHAPE, "gp", D, initial_std=std, seed=0).uncertainty(x).total for std in (0.01, 0.1))
    torch.testing.assert_close(large, 100 * small)


@pytest.mark.parametrize("deviations", ["relative", "absolute"])
def test_saved_deviations_are_loaded(deviations, tmp_path):
    """The record of absolute deviations is that of the versions that knew no others."""
    vae, x = gpin.build(SHAPE, "gp", D, deviations=deviations, seed=0), torch.rand(5, *SHAPE)
    with torch.no_grad():
        vae.inference.processes[0].mean.add_(0.1)
    vae.save(tmp_path / "model")
    loaded = gpin.load(tmp_path / "model")
    assert loaded.config == vae.config
    torch.testing.assert_close(loaded.encode(x).mean, vae.eval().encode(x).mean)
    options = json.loads((tmp_path / "model" / "config.json").read_text())["config"]["options"]
    assert options.get("deviations") == (deviations if deviations == "relative" else None)


def test_the_record_of_a_config_is_that_config():
    for options in ({}, {"deviations": "absolute"}, {"deviations": "relative"}, GPConfig().model_dump()):
        config = VAEConfig(shape=SHAPE, method="gp", options=options)
        assert VAEConfig.parse(config.model_dump(mode="json"), "the record") == config
