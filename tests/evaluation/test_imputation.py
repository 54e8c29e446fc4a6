"""Imputation against the exact conditional means of a linear Gaussian model, and models of incomplete data."""

import pytest
import torch
from linear_gaussian import LinearGaussian

import gpin
from gpin._core.errors import InputError
from gpin.inference import METHODS


def conditional_mean(truth, x):
    """E[x_m|x_o] of one instance, from the joint normal of all values."""
    covariance = truth.matrix @ truth.matrix.T + truth.variance * torch.eye(len(truth.offset))
    gone = x.isnan()
    across = covariance[gone][:, ~gone] @ torch.linalg.inv(covariance[~gone][:, ~gone])
    return truth.offset[gone] + across @ (x[~gone] - truth.offset[~gone])


@pytest.mark.parametrize("proposal", ["refined", "encoder"])
def test_imputed_values_are_the_conditional_means(proposal, double):
    torch.manual_seed(0)
    truth = LinearGaussian.random(6, 2, 0.3)
    vae = truth.vae("vae", known=True).eval()
    x = truth.sample(4)
    mask = torch.rand(4, 6) < 0.4
    mask[0], mask[1] = False, True  # one complete instance, and one of which nothing is known
    filled = vae.impute(x, mask, samples=20_000, proposal=proposal)
    torch.testing.assert_close(filled[~mask], x[~mask])
    for row in range(4):
        wanted = conditional_mean(truth, x[row].masked_fill(mask[row], torch.nan))
        torch.testing.assert_close(filled[row][mask[row]], wanted, atol=0.08 if proposal == "encoder" else 0.03, rtol=0)
    torch.manual_seed(1)
    first = vae.impute(x.masked_fill(mask, torch.nan))
    torch.manual_seed(1)
    assert torch.equal(first, vae.impute(x.numpy(), mask.numpy()))


@pytest.fixture(scope="module")
def holes():
    """A table of correlated values, of which a fifth is missing."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = LinearGaussian.random(5, 1, 0.05).sample(64).float()
        return x.masked_fill(torch.rand(64, 5) < 0.2, torch.nan)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_from_incomplete_data(method, holes):
    vae = gpin.build((5,), method, 2, missing=True, architecture={"width": 8}, seed=0)
    epochs = max(1, len(vae.inference.stages()))
    history = gpin.fit(vae, holes, holes[:16], epochs=epochs, batch_size=32, progress=False, calibrate=False)
    assert all(torch.tensor(history.train).isfinite())
    assert all(parameter.isfinite().all() for parameter in vae.parameters())
    batch = holes[:6]
    assert vae.encode(batch).mean.isfinite().all()
    assert vae.log_likelihood(batch, 5).values.isfinite().all()
    filled = vae.impute(batch, samples=5)
    assert filled.isfinite().all()
    assert torch.equal(filled[~batch.isnan()], batch[~batch.isnan()])


def test_the_encoder_sees_what_is_missing_and_the_model_is_saved(holes, tmp_path):
    vae = gpin.build((5,), "vae", 2, missing=True, architecture={"width": 8}, seed=0).eval()
    vae.prepare(holes)
    known = torch.stack([column[~column.isnan()].mean() for column in holes.T])
    torch.testing.assert_close(vae.inference.trunk.center, known)
    average, absent = known[None].clone(), known[None].clone()
    absent[0, 0] = torch.nan
    assert not torch.equal(vae.encode(average).mean, vae.encode(absent).mean)
    vae.save(tmp_path / "model")
    again = gpin.load(tmp_path / "model")
    assert again.missing
    assert torch.equal(again.encode(holes).mean, vae.encode(holes).mean)
    assert "missing" not in gpin.build((5,), "vae", 2).config.model_dump()


def test_a_conditional_model_imputes_given_its_condition(holes):
    labels = ["a", "b"] * 32
    vae = gpin.build((5,), "vae", 2, missing=True, given=labels, architecture={"width": 8}, seed=0)
    gpin.fit(vae, holes, holes[:16], y=labels, y_val=labels[:16], epochs=1, progress=False, calibrate=False)
    one, other = (vae.impute(holes[:6], y=label, samples=50) for label in "ab")
    assert one.shape == (6, 5)
    assert one.isfinite().all()
    assert not torch.equal(one, other)


def test_pictures_are_completed(double):
    vae = gpin.build((1, 8, 8), "vae", 2, missing=True, architecture={"channels": [4], "width": 8}, seed=0).eval()
    x, mask = torch.rand(3, 1, 8, 8), torch.zeros(1, 8, 8, dtype=torch.bool)
    mask[:, 4:] = True
    filled = vae.impute(x, mask, samples=10)
    assert filled.isfinite().all()
    assert torch.equal(filled[:, :, :4], x[:, :, :4])
    assert not torch.equal(filled, x)


def test_counts_reach_the_encoder_as_logarithms():
    vae = gpin.build((2,), "vae", 1, likelihood={"kind": "mixed", "columns": ["gaussian", "poisson"]}, seed=0).eval()
    vae.prepare(torch.tensor([[1.0, 0.0], [3.0, 1e6]]))
    torch.testing.assert_close(
        vae.inference.trunk.center, torch.tensor([2.0, 5e5]).log1p().where(torch.tensor([False, True]), 2.0)
    )
    seen = []
    vae.inference.trunk.trunk.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    vae.encode(torch.tensor([[2.0, 5e5]]))
    assert seen[0].abs().max() < 1e-5


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda vae, x: vae.encode(x), r"NaN or infinite values in 1 of 2 .* build the model with missing=True"),
        (lambda vae, x: vae.impute(x / 0), "NaN or infinite values in 2 of 2 instances"),
        (lambda vae, x: vae.impute(x, torch.zeros(3, dtype=torch.bool)), "the mask must have the shape of x"),
        (lambda vae, x: vae.impute(x, torch.full((2,), 0.5)), "true or 1 for a missing value"),
        (lambda vae, x: vae.impute(x, samples=0), "samples must be a whole number"),
        (lambda vae, x: vae.impute(x, proposal="prior"), "unknown proposal 'prior'"),
        (lambda vae, x: vae.impute(x, "all"), "the mask must be a tensor or an array"),
    ],
)
def test_what_cannot_be_imputed_is_refused(call, says):
    vae = gpin.build((2,), "vae", 1, seed=0).eval()
    with pytest.raises(InputError, match=says):
        call(vae, torch.tensor([[0.0, 1.0], [0.5, torch.nan]]))
