"""What every inference model must do. A method that registers itself is tested here without another line."""

import math

import pytest
import torch
from linear_gaussian import LinearGaussian
from torch.func import functional_call

import gpin
from gpin._core.seeding import seeded
from gpin.inference import METHODS, InferenceModel

VARIANTS = {
    "gp": [{"preset": "paper"}, {"marginal": "exact", "covariance": "diagonal"}, {"towers": "deterministic"}],
    "sa": [{"preset": "paper"}, {"steps": 2, "momentum": 0.5, "clip": 5.0, "inner_samples": 3}],
    "iaf": [{"flows": 1}, {"flows": 4}],
    "hf": [{"flows": 4}],
    "me": [{"components": 4}],
    "rme": [{"components": 3}],
    "vlae": [{"steps": 1, "step_size": 1.0}],
}
"""Settings beside the defaults, which every method is tested with."""

CASES = [(name, options) for name in METHODS for options in [{}, *VARIANTS.get(name, [])]]
every = pytest.mark.parametrize(("method", "options"), CASES, ids=lambda value: str(value))

SHAPE, D = (6,), 2


def small(method, options, shape=SHAPE, latent_dim=D, size=40, width=8):
    """An untrained VAE with all its components in place, and data for it."""
    vae = gpin.build(shape, method, latent_dim, architecture={"width": width}, seed=0, **options)
    x = torch.rand(size, *shape)
    vae.prepare(x)
    for index in range(len(vae.inference.stages())):
        vae.inference.begin_stage(index)
    return vae.eval(), x.to(next(vae.parameters()).dtype)


@every
def test_encoding_gives_a_distribution_over_z(method, options):
    vae, x = small(method, options)
    for batch in (1, 3, 7):
        q = vae.encode(x[:batch])
        assert isinstance(q, torch.distributions.Distribution)
        assert (q.batch_shape, q.event_shape) == ((batch,), (D,))
        assert q.mean.shape == q.variance.shape == q.stddev.shape == (batch, D)
        assert (q.variance > 0).all()
        assert q.rsample().shape == (batch, D)
        assert q.sample((5, 2)).shape == (5, 2, batch, D)
        assert q.log_prob(q.sample((5,))).shape == (5, batch)


@pytest.mark.parametrize(
    ("method", "options"), [case for case in CASES if case[0] != "sa"], ids=lambda value: str(value)
)
def test_one_instance_is_inferred_as_in_company(method, options):
    """`sa` climbs with fresh noise each time; its own test holds the noise fixed."""
    vae, x = small(method, options)
    together, alone = vae.encode(x[:5]), vae.encode(x[2:3])
    torch.testing.assert_close(together.mean[2:3], alone.mean, rtol=1e-4, atol=1e-5)


@every
def test_samples_carry_gradients_to_the_encoder(method, options):
    vae, x = small(method, options)
    vae.encode(x).rsample((3,)).square().sum().backward()
    trunks = [p for name, p in vae.inference.named_parameters() if "trunk" in name and p.grad is not None]
    assert trunks
    assert any(p.grad.abs().sum() > 0 for p in trunks)


@every
def test_the_density_integrates_to_one_and_fits_the_samples(method, options, double):
    """On a grid over two latent dimensions; a density that is wrong by a Jacobian cannot pass."""
    vae, x = small(method, options)
    x = x[:3]
    torch.manual_seed(1)
    with torch.no_grad():
        q = vae.encode(x)
        z = q.sample((20_000,))
        low, high = z.amin((0, 1)) - 1, z.amax((0, 1)) + 1
        axes = [torch.linspace(low[j], high[j], 141) for j in range(D)]
        grid = torch.cartesian_prod(*axes)  # (points, d)
        density = q.log_prob(grid.unsqueeze(1).expand(-1, len(x), -1)).exp()  # (points, batch)
        cell = math.prod((axis[1] - axis[0]).item() for axis in axes)
        torch.testing.assert_close(density.sum(0) * cell, torch.ones(len(x)), rtol=0, atol=2e-3)
        for power in (1, 2):
            expected = (density.unsqueeze(-1) * grid.unsqueeze(1).pow(power)).sum(0) * cell
            error = z.pow(power).std(0) / math.sqrt(len(z))
            assert ((z.pow(power).mean(0) - expected).abs() < 5 * error + 4e-3 * (1 + expected.abs())).all()


@every
def test_bounds_are_ordered_on_a_linear_gaussian_model(method, options):
    """ELBO ≤ importance-weighted bound ≤ log p(x), each within its Monte-Carlo error."""
    truth = LinearGaussian.random(size=6, latent_dim=D, variance=0.3)
    x = truth.sample(200)
    vae = truth.vae(method, known=True, **options)
    vae.prepare(x)
    for index in range(len(vae.inference.stages())):
        vae.inference.begin_stage(index)
    vae.eval()
    bound = vae.elbo(x, samples=64)
    estimate = vae.log_likelihood(x, samples=64)
    exact = truth.log_prob(x)
    spread = bound.value.std() / math.sqrt(len(x) * 64)  # of the bound's own noise, generously
    assert bound.value.mean() <= estimate.mean + 4 * (estimate.mean_mc_error + spread)
    assert estimate.mean <= exact.mean() + 4 * estimate.mean_mc_error


@every
def test_the_input_matters(method, options):
    vae, x = small(method, options)
    torch.manual_seed(1)
    one = vae.encode(x[:4]).sample()
    torch.manual_seed(1)
    other = vae.encode(x[4:8]).sample()
    assert (one - other).abs().min() > 0


@every
def test_ten_steps_lower_the_loss(method, options):
    vae, x = small(method, options, size=64)
    vae.train()
    optimiser = torch.optim.Adam(vae.parameter_groups(3e-3))

    def loss_now():
        torch.manual_seed(2)
        return vae.loss(x, samples=4)

    before = loss_now().item()
    for _ in range(10):
        optimiser.zero_grad()
        vae.loss(x, samples=4).backward()
        optimiser.step()
    assert loss_now().item() < before


@every
def test_a_saved_model_gives_the_same_numbers(method, options, tmp_path):
    vae, x = small(method, options)
    vae.save(tmp_path)
    again = gpin.load(tmp_path)
    for model in (vae, again):
        torch.manual_seed(1)
        model.told = (model.elbo(x).value.detach(), model.log_likelihood(x, samples=30).values)
    for ours, theirs in zip(vae.told, again.told, strict=True):
        assert torch.equal(ours, theirs)


@every
def test_the_gradient_of_the_bound_is_right(method, options, double):
    vae, x = small(method, options, shape=(4,), size=3, width=3)
    names, start = zip(*((name, p.detach()) for name, p in vae.named_parameters()), strict=True)

    def bound(*parameters):
        torch.manual_seed(1)
        state = dict(zip(names, parameters, strict=True))
        return functional_call(_Bound(vae), {f"vae.{name}": p for name, p in state.items()}, (x,))

    parameters = tuple(p.clone().requires_grad_() for p in start)
    # A whole Jacobian of this size is slow: along a random direction it tells as much.
    directions = [torch.randn_like(p) for p in parameters]

    def along(t):
        return bound(*(p + t * v for p, v in zip(start, directions, strict=True)))

    assert torch.autograd.gradcheck(along, (torch.zeros((), requires_grad=True),), eps=1e-6, atol=1e-5, rtol=1e-4)
    gradients = torch.autograd.grad(bound(*parameters), parameters, allow_unused=True)
    assert all(torch.isfinite(g).all() for g in gradients if g is not None)


class _Bound(torch.nn.Module):
    def __init__(self, vae):
        super().__init__()
        self.vae = vae

    def forward(self, x):
        return self.vae.inference.elbo(x, self.vae, 2).value.sum()


@every
def test_a_seed_reproduces_training_and_the_last_batch_may_be_small(method, options):
    x = torch.rand(37, *SHAPE)  # batches of 16, 16 and 5
    runs = []
    for _ in range(2):
        vae = gpin.build(SHAPE, method, D, architecture={"width": 8}, seed=0, **options)
        gpin.fit(vae, x, x[:9], epochs=4, batch_size=16, seed=3, progress=False)
        runs.append(vae)
    assert all(torch.equal(a, b) for a, b in zip(*(run.state_dict().values() for run in runs), strict=True))
    assert all(torch.isfinite(p).all() for p in runs[0].parameters())


@every
def test_what_a_method_says_of_itself_is_true(method, options):
    vae, x = small(method, options)
    inference = vae.inference
    q, uncertainty = inference.posterior_and_uncertainty(x, vae)
    assert (uncertainty is not None) == inference.has_uncertainty
    if inference.has_uncertainty:
        torch.testing.assert_close(uncertainty.total, vae.uncertainty(x).total)
        torch.testing.assert_close(q.mean, vae.encode(x).mean)
    else:
        with pytest.raises(gpin.InputError, match="has no uncertainty"):
            vae.uncertainty(x)
    if not options:
        assert METHODS[method].has_uncertainty == inference.has_uncertainty


@every
def test_a_kl_in_closed_form_is_what_samples_say(method, options, double):
    vae, x = small(method, options, size=5)
    if not vae.inference.closed_form_kl or type(vae.inference).elbo is not InferenceModel.elbo:
        pytest.skip("samples of z, or a bound of its own")
    q = vae.encode(x)
    z, log_prob = q.rsample_and_log_prob((20_000,))
    terms = log_prob - vae.log_prior(z)
    error = terms.std(0) / math.sqrt(len(terms))
    assert ((vae.inference.kl(q) - terms.mean(0)).abs() < 5 * error).all()


@every
def test_the_density_that_comes_with_samples_is_theirs(method, options, double):
    vae, x = small(method, options, size=3)
    q = vae.encode(x)
    z, log_prob = q.rsample_and_log_prob((7,))
    torch.testing.assert_close(log_prob, q.log_prob(z))
    torch.manual_seed(1)
    z, log_prob = q.sample_and_log_prob(7, chunk=3)
    assert not z.requires_grad
    torch.testing.assert_close(log_prob, q.log_prob(z))
    torch.manual_seed(1)
    torch.testing.assert_close(q.sample_and_log_prob(7, chunk=100)[0], z)


@pytest.mark.parametrize("method", METHODS)
def test_an_option_that_does_not_apply_is_a_clear_error(method):
    with pytest.raises(gpin.InputError, match=f"method '{method}' has no option 'colour'") as caught:
        gpin.build(SHAPE, method, colour="red")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_introduces_itself(method):
    chosen = METHODS[method]
    assert chosen.name == method
    assert chosen.label
    assert chosen.title
    assert chosen.reference
    assert chosen.Options.__doc__
    for option in chosen.Options.model_fields:
        assert f"{option}:" in chosen.Options.__doc__, f"{method} does not explain its option {option}"


@every
@pytest.mark.parametrize("shape", [(1, 28, 28), (5,)], ids=str)
def test_images_and_vectors_work(method, options, shape):
    vae = gpin.build(shape, method, 3, **options)
    x = torch.rand(4, *shape)
    vae.prepare(x)
    vae.train()
    vae.loss(x).backward()
    vae.eval()
    assert torch.isfinite(vae.elbo(x).value).all()
    assert vae.reconstruct(x).shape == x.shape


@every
def test_the_gap_is_known_at_every_price(method, options):
    vae, x = small(method, options, size=60)
    assert (vae.gap(x).values >= 0).all()
    vae.calibrate(x, samples=2)
    for how in ("predicted", "estimated", "refined"):
        found = vae.gap(x[:3], how)
        assert found.values.shape == found.low.shape == found.high.shape == (3,)
        assert found.values.isfinite().all()
        assert how == "refined" or (found.low <= found.high).all()


@every
def test_the_posterior_can_be_checked_calibrated_and_drawn_from(method, options):
    vae, x = small(method, options, size=60)
    vae.calibrate(x, samples=2)
    found = vae.coverage(50, samples=19, calibrated=True)
    assert found.values.shape == (50, vae.latent_dim)
    assert 0 <= found.mean(0.8) <= 1
    with torch.no_grad(), seeded(0):
        q = vae.encode(x[:3])
    with torch.no_grad(), seeded(0):
        calibrated = vae.encode(x[:3], calibrated=True)
    torch.testing.assert_close(calibrated.mean, q.mean)
    torch.testing.assert_close(calibrated.variance, vae.temperatures[None] * q.variance)
    draws = vae.posterior(x[:3], samples=50)
    assert draws.z.shape == (50, 3, vae.latent_dim)
    torch.testing.assert_close(draws.weights.sum(0), torch.ones(3, dtype=torch.float64))
