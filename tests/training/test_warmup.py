"""The KL warm-up: the weight of the KL in every method's loss, and its rise during training."""

import inspect

import pytest
import torch
from linear_gaussian import LinearGaussian

import gpin
from gpin.inference import METHODS, GaussianEncoder
from gpin.training import TrainingConfig

OPTIONS = {"rme": {"components": 3}, "sa": {"preset": "paper"}}
ELBO_LOSS = [name for name in METHODS if name not in ("rme", "natural")]


def ready(method):
    """A float64 model of random data, in training mode, and a batch."""
    data = LinearGaussian.random()
    x = data.sample(40)
    vae = data.vae(method, width=8, **OPTIONS.get(method, {}))
    vae.prepare(x)
    vae.inference.begin_stage(len(vae.inference.stages()) - 1)  # with all of its components
    return vae.train(), x


def gradients(vae, loss):
    vae.zero_grad(set_to_none=True)
    loss.backward()
    return {name: p.grad.clone() for name, p in vae.named_parameters() if p.grad is not None}


def objective(vae, x, **weight):
    torch.manual_seed(3)
    loss, bound = vae.inference.objective(x, vae, samples=2, **weight)
    return loss.detach(), bound, gradients(vae, loss)


@pytest.mark.parametrize("method", METHODS)
def test_a_weight_of_one_is_the_loss_itself_and_the_bound_has_no_weight(method, double):
    vae, x = ready(method)
    loss, bound, slopes = objective(vae, x)
    same, same_bound, same_slopes = objective(vae, x, kl_weight=1.0)
    assert torch.equal(loss, same)
    assert torch.equal(bound, same_bound)
    assert all(torch.equal(slopes[name], same_slopes[name]) for name in slopes)
    half, half_bound, half_slopes = objective(vae, x, kl_weight=0.5)
    assert half != loss
    torch.testing.assert_close(half_bound, bound, rtol=1e-12, atol=0)
    assert any(not torch.allclose(slopes[name], half_slopes[name]) for name in slopes)


@pytest.mark.parametrize("method", ELBO_LOSS)
def test_the_weight_multiplies_the_kl_alone(method, double):
    vae, x = ready(method)
    loss, _, slopes = objective(vae, x, kl_weight=0.3)
    torch.manual_seed(3)
    terms = vae.elbo(x, samples=2)
    expected = -(terms.reconstruction - 0.3 * terms.kl - terms.weight_kl).mean()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    for name, slope in gradients(vae, expected).items():
        torch.testing.assert_close(slopes[name], slope, rtol=1e-9, atol=1e-12)


def test_the_recursive_mixture_weighs_every_kl_of_its_loss(double):
    """Its loss is linear in the weight, and without the KL it is that of the reconstructions alone."""
    vae, x = ready("rme")
    losses = {weight: objective(vae, x, kl_weight=weight)[0] for weight in (0.0, 0.5, 1.0)}
    torch.testing.assert_close(losses[0.5], (losses[0.0] + losses[1.0]) / 2, rtol=1e-12, atol=0)
    torch.manual_seed(3)
    q = vae.inference.mixture(x)
    z = q.component_rsample(2)
    reconstruction = vae.log_conditional(x, z).mean(0)  # (components, batch)
    logits = vae.inference._logits(vae.inference._encoders()[0].trunk(x))
    last = q.log_weights.exp().T
    first_two = torch.stack([torch.sigmoid(-logits[:, 0]), torch.sigmoid(logits[:, 0])])
    parts = [reconstruction, first_two * reconstruction[:2], last * reconstruction, last * reconstruction]
    expected = -sum(part.sum(0) for part in parts).mean()  # components, both weights, the decoder
    torch.testing.assert_close(losses[0.0], expected.detach(), rtol=1e-10, atol=0)


def test_the_weight_rises_linearly_from_zero_to_one_and_then_is_not_given(monkeypatch):
    seen = []
    objective = GaussianEncoder.objective

    def spied(self, x, model, samples=1, **more):
        seen.append(more.get("kl_weight"))
        return objective(self, x, model, samples, **more)

    spied.__signature__ = inspect.signature(objective)
    monkeypatch.setattr(GaussianEncoder, "objective", spied)
    x = torch.rand(40, 6)
    gpin.fit(gpin.build((6,), "vae", 2, seed=0), x, x[:8], epochs=2, batch_size=10, kl_warmup=1.5, progress=False)
    assert seen == [pytest.approx(step / 6) for step in range(6)] + [None, None]


@pytest.mark.parametrize(("warmup", "expected"), [(0.0, 3), (3.5, 6)])
def test_patience_begins_after_the_warmup(warmup, expected, monkeypatch):
    x, seen = torch.rand(30, 6), []
    monkeypatch.setattr("gpin.training.trainer.validate", lambda *arguments: (-float(len(seen)), 0.0))
    options = {"epochs": 9, "patience": 2, "kl_warmup": warmup, "progress": False}
    gpin.fit(gpin.build((6,), "vae", 2, seed=0), x, x[:8], on_epoch=lambda *epoch: seen.append(epoch), **options)
    assert len(seen) == expected


class Unweighted(GaussianEncoder):
    """A method of a user's own whose objective is that of an earlier version."""

    name = "unweighted"

    def objective(self, x, model, samples=1):
        return super().objective(x, model, samples)


def test_a_method_whose_objective_has_no_weight_refuses_the_warmup(monkeypatch):
    monkeypatch.setitem(METHODS, "unweighted", Unweighted)
    x = torch.rand(30, 6)
    gpin.fit(gpin.build((6,), "unweighted", 2), x, epochs=1, progress=False)
    with pytest.raises(gpin.InputError, match="method 'unweighted' has no KL warm-up: its objective does not take"):
        gpin.fit(gpin.build((6,), "unweighted", 2), x, epochs=1, kl_warmup=1, progress=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kl_warmup": -1}, "option 'kl_warmup' of training"),
        ({"kl_warmup": 3, "epochs": 2}, "kl_warmup=3 must not exceed the number of epochs, 2"),
        ({"kl_warmup": "long"}, "kl_warmup"),
    ],
)
def test_a_warmup_out_of_range_is_one_sentence(options, said):
    with pytest.raises(gpin.InputError, match=said) as caught:
        TrainingConfig.parse(options, "training")
    assert "\n" not in str(caught.value)


def test_an_option_that_is_not_used_is_not_recorded():
    assert "kl_warmup" not in TrainingConfig().model_dump(mode="json")
    assert TrainingConfig(kl_warmup=2).model_dump(mode="json")["kl_warmup"] == 2
    assert TrainingConfig().model_dump()["kl_warmup"] == 0
