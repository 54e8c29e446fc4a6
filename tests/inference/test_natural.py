"""The natural-gradient encoder: its training objective, its options, and inference with any number of steps."""

import itertools
import json
import unittest.mock

import pytest
import torch
from linear_gaussian import LinearGaussian

import gpin
from gpin._core.errors import InputError
from gpin._core.files import write_record
from gpin._core.shards import Share, shared
from gpin.distributions import CholeskyNormal
from gpin.generative import log_joint_and_gradient


def small(seed=0, **options):
    return gpin.build((5,), "natural", 3, architecture={"width": 8}, seed=seed, **options)


@pytest.mark.parametrize("covariance", ["full", "low_rank"])  # of any two dimensions' covariance, with one direction
def test_the_encoder_learns_the_posterior_of_a_linear_model_so_that_one_step_is_exact(covariance):
    """The mean and the covariance are learnt; the decoder is the true one, whose posterior has one covariance."""
    truth = LinearGaussian(torch.tensor([[1.0, 0.6], [0.0, 0.8], [0.5, 0.5], [0.3, -0.2]]), torch.zeros(4), 0.1)
    vae = truth.vae("natural", width=16, known=True, covariance=covariance, rank=1)
    vae.decoder.requires_grad_(False)
    vae.likelihood.requires_grad_(False)
    optimiser = torch.optim.Adam(vae.inference.parameters(), 1e-2)
    for step in range(400):
        optimiser.param_groups[0]["lr"] = 1e-2 * (1 - step / 400)
        optimiser.zero_grad()
        vae.loss(truth.sample(64), samples=2).backward()
        optimiser.step()
    vae.eval()
    x = truth.sample(200)
    posterior = truth.posterior(x)

    def distance(steps):
        """½ (m − m*)ᵀ Σ*⁻¹ (m − m*), the part of the KL divergence that is due to the mean."""
        difference = vae.encode(x, steps=steps).mean - posterior.mean
        return 0.5 * (difference.unsqueeze(-2) @ posterior.precision_matrix @ difference.unsqueeze(-1)).mean()

    assert distance(1) < 0.1 * distance(0)
    assert distance(1) < 1e-3
    covariance = vae.encode(x, steps=1).covariance_matrix
    torch.testing.assert_close(covariance.mean(0), posterior.covariance_matrix[0], rtol=0.2, atol=0.005)


@pytest.mark.parametrize("differentiate", ["through", "first_order"])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_gradient_of_the_objective_is_that_of_its_formula(differentiate, steps, double):
    """The loss written out with torch's own distributions and autograd, for every parameter."""
    vae = small(steps=steps, differentiate=differentiate, encoder_weight=1.5, regression=0.7, trials=1)
    x = torch.rand(4, 5)
    vae.prepare(x)
    torch.manual_seed(1)
    vae.loss(x).backward()
    found = {name: p.grad.clone() for name, p in vae.named_parameters() if p.grad is not None}
    vae.zero_grad()

    q = vae.inference.encode(x, vae)
    mean, steps_before, pulls, decrements, first = q.mean, [], [], [], None
    for t in range(steps):
        leaf = mean if differentiate == "through" else mean.detach().requires_grad_()
        value = vae.log_joint(x, leaf)
        (gradient,) = torch.autograd.grad(value.sum(), leaf, create_graph=differentiate == "through")
        first = gradient.detach() if t == 0 else first
        direction = (q.covariance_matrix @ gradient.unsqueeze(-1)).squeeze(-1)
        decrements.append(0.5 * (gradient * direction).sum(-1, keepdim=True).detach())
        change, pull = direction, gradient.detach()
        if t:
            share = (decrements[-1] / decrements[-2]).sqrt().clamp(max=t / (t + 3))
            ahead = change + share * steps_before[-1]
            kept = (vae.log_joint(x, mean + ahead) >= value).double().unsqueeze(-1).detach()
            change, pull = change + kept * share * steps_before[-1], pull + kept * share * pulls[-1]
        accepted = (vae.log_joint(x, mean + change) >= value).double().unsqueeze(-1).detach()
        steps_before.append(accepted * change)
        pulls.append(accepted * pull)
        mean = mean + steps_before[-1]
    pull = 1.5 * first + 0.7 * sum(pulls)
    torch.manual_seed(1)
    noise = torch.randn(1, *mean.shape)
    z = mean + (q.factor @ noise.unsqueeze(-1)).squeeze(-1)
    posterior = torch.distributions.MultivariateNormal(mean, q.covariance_matrix)
    prior = torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3))
    elbo = vae.log_conditional(x, z).mean(0) - torch.distributions.kl_divergence(posterior, prior)
    (-elbo.mean() - (pull * q.mean).sum(-1).mean()).backward()
    for name, p in vae.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(found[name], p.grad, msg=name)


def test_the_regression_is_the_gradient_of_the_squared_distance_in_the_metric(double):
    """−½ (m_T − m_0)ᵀ Σ⁻¹ (m_T − m_0) with m_T and Σ constant, for two steps."""
    vae, x = small(steps=2).eval(), torch.rand(4, 5)
    q = vae.inference.encode(x, vae)
    steps = vae.inference.refinement.differentiable_steps(x, q, vae)
    leaf = q.mean.detach().requires_grad_()
    difference = (steps.mean.detach() - leaf).unsqueeze(-1)
    distance = 0.5 * (difference.mT @ torch.linalg.solve(q.covariance_matrix.detach(), difference)).sum()
    (expected,) = torch.autograd.grad(-distance, leaf)
    torch.testing.assert_close(steps.pull, expected)


def test_steps_can_be_taken_in_some_batches_only():
    vae, x = small(interval=3), torch.rand(4, 5)
    taken = []
    steps = vae.inference.refinement.differentiable_steps
    with unittest.mock.patch.object(vae.inference.refinement, "differentiable_steps", side_effect=steps) as taking:
        for _ in range(7):
            vae.loss(x)
            taken.append(taking.call_count)
    assert taken == [1, 1, 1, 2, 2, 2, 3]
    before = vae.eval().checksum()
    vae.loss(x)
    assert vae.checksum() == before  # batches are counted in training only


def test_step_sizes_are_checked_less_often_while_they_are_accepted():
    vae, x = small(check_interval=4), torch.rand(4, 5)
    vae.prepare(x)
    refinement, checked = vae.inference.refinement, []
    accept = [True]

    def accepted(objective, mean, direction, momentum, value, candidates):
        checked.append(batch)
        size, _ = candidates[0 if accept[0] else 1]
        return torch.full_like(value, size), torch.zeros_like(value), value

    with unittest.mock.patch.object(refinement, "_accepted", side_effect=accepted):
        for batch in range(14):
            accept[0] = batch != 10
            vae.loss(x)
    assert checked == [0, 2, 6, 10, 11, 13]  # distances 2, 4, 4; one reduced step; then 1, 2
    vae.eval()
    with unittest.mock.patch.object(refinement, "_accepted", side_effect=accepted) as accepting:
        for _ in range(3):
            vae.loss(x)
    assert accepting.call_count == 3


def test_a_smaller_step_in_another_process_is_heeded_too():
    vae, x = small(), torch.rand(4, 5)
    vae.prepare(x)
    for elsewhere, expected in ((0, [1, 2]), (1, [0, 1])):
        vae.inference.checking.copy_(torch.tensor([0, 1]))

        def accepted(objective, mean, direction, momentum, value, candidates):
            return torch.ones_like(value), torch.zeros_like(value), value

        accept = unittest.mock.patch.object(vae.inference.refinement, "_accepted", accepted)
        with accept, shared(Share(0, 2), 8, lambda value, more=elsewhere: value + more):
            vae.loss(x)
        assert vae.inference.checking.tolist() == expected


def test_an_unchecked_step_to_where_the_decoder_is_not_finite_is_taken_back():
    vae, x = small(check_interval=8), torch.rand(4, 5)
    vae.prepare(x)
    vae.inference.checking.copy_(torch.tensor([3, 4]))  # three batches without a check to come
    decode, start = vae.decoder.forward, vae.inference.encode(x, vae).mean.detach()

    def near_the_start(z):
        return torch.where(torch.cdist(z, start).min(-1, keepdim=True).values < 20, decode(z), torch.nan)

    far = unittest.mock.patch.object(CholeskyNormal, "covariance_times", lambda self, gradient: 100 + 0 * gradient)
    with far, unittest.mock.patch.object(vae.decoder, "forward", near_the_start):
        loss = vae.loss(x)
    assert loss.isfinite()
    assert vae.inference.checking.tolist() == [0, 1]


def test_models_saved_before_checks_were_planned_load():
    vae = small()
    state = vae.state_dict()
    del state["inference.checking"]
    vae.inference.checking.fill_(5)
    vae.load_state_dict(state)
    assert vae.inference.checking.tolist() == [0, 1]


def test_models_saved_before_steps_were_accelerated_keep_plain_steps(tmp_path):
    vae, x = small(steps=3).eval(), torch.rand(9, 5)
    vae.prepare(x)
    plain = vae.encode(x, steps=4, accelerated=False)
    assert not torch.equal(vae.encode(x, steps=4).mean, plain.mean)
    vae.save(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    record = json.loads(path.read_text())
    del record["config"]["options"]["accelerated"], record["record_sha256"]
    write_record(path, record.pop("format"), record.pop("version"), record)
    old = gpin.load(tmp_path / "model")
    assert torch.equal(old.encode(x, steps=4).mean, plain.mean)
    assert not old.inference.options.accelerated


def test_any_number_of_steps_can_be_asked_for():
    vae, x = small(steps=2).eval(), torch.rand(9, 5)
    vae.prepare(x)
    with torch.no_grad():
        own, start = vae.encode(x), vae.inference.encode(x, vae)
    assert torch.equal(vae.encode(x, steps=0).mean, start.mean)
    torch.testing.assert_close(vae.encode(x, steps=2).mean, own.mean)
    assert vae.encode(x, steps=2).ascent.remaining_gap.isnan().all()
    values = [vae.log_joint(x, vae.encode(x, steps=k).mean).detach() for k in (0, 1, 2, 4, 8)]
    for before, after in itertools.pairwise(values):
        assert (after >= before).all()


@pytest.mark.parametrize("method", ["vae", "gp", "iaf", "me", "vlae", "hf", "natural"])
def test_every_method_can_take_steps_until_a_tolerance(method):
    vae, x = gpin.build((5,), method, 3, architecture={"width": 8}, seed=0).eval(), torch.rand(9, 5)
    vae.prepare(x)
    q = vae.encode(x, tolerance=0.05, max_steps=50)
    assert ((q.ascent.remaining_gap <= 0.05) | (q.ascent.steps > 0)).all()
    normal = q.with_mean(q.mean)
    _, gradient = log_joint_and_gradient(vae, x, q.mean)
    torch.testing.assert_close(
        q.ascent.remaining_gap, 0.5 * (gradient * normal.covariance_times(gradient)).sum(-1), rtol=1e-3, atol=1e-5
    )
    one = vae.log_likelihood(x, 50, steps=1)
    assert one.values.shape == (9,)
    torch.manual_seed(0)
    first = vae.log_likelihood(x, 50, steps=2).values
    torch.manual_seed(0)
    torch.testing.assert_close(first, vae.log_likelihood(x, 50, proposal=vae.encode(x, steps=2)).values)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": -1}, "steps must be a whole number of at least 0, got -1"),
        ({"steps": 1.5}, "steps must be a whole number of at least 0, got 1.5"),
        ({"tolerance": 0}, "tolerance must be a positive number, got 0"),
        ({"tolerance": -1.0}, "tolerance must be a positive number, got -1.0"),
        ({"tolerance": 1.0, "max_steps": -1}, "max_steps must be a whole number of at least 0, got -1"),
        ({"max_steps": 3}, "max_steps applies only with a tolerance"),
        ({"steps": 1, "tolerance": 1.0}, "give either steps"),
        ({"steps": 2000}, "steps must be at most 1000, got 2000"),
        ({"tolerance": 1.0, "max_steps": 2000}, "max_steps must be at most 1000, got 2000"),
    ],
)
def test_senseless_steps_are_refused(arguments, message):
    vae, x = small().eval(), torch.rand(2, 5)
    with pytest.raises(InputError, match=message):
        vae.encode(x, **arguments)
    with pytest.raises(InputError, match=message):
        vae.log_likelihood(x, 5, **arguments)


def test_it_starts_from_a_trained_vae():
    vae = gpin.build((5,), "vae", 3, architecture={"width": 8}, seed=1)
    x = torch.rand(6, 5)
    vae.prepare(x)
    natural = small().start_from(vae).eval()
    torch.testing.assert_close(natural.encode(x, steps=0).mean, vae.eval().encode(x).mean)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"covariance": "dense"}, "covariance"),
        ({"steps": -1}, "steps"),
        ({"encoder_weight": -1}, "encoder_weight"),
        ({"backtracking": 1.0}, "backtracking"),
        ({"interval": 0}, "interval"),
    ],
)
def test_options_out_of_range_are_refused(options, word):
    with pytest.raises(InputError, match=word):
        small(**options)
