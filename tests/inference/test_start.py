"""Warm starts: every method starts from a trained model of its own kind, and some from a plain VAE."""

import pytest
import torch

import gpin
from gpin._core.errors import InputError
from gpin._core.seeding import seeded
from gpin.inference import METHODS

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 0.5])


def build(method, seed=0, **options):
    return gpin.build((3,), method, 2, architecture={"width": 6}, seed=seed, **options)


def trained(method, **options):
    vae = build(method, **options)
    gpin.fit(vae, X, X, epochs=2, learning_rate=0.01, progress=False, calibrate=False)
    return vae


@pytest.mark.parametrize("method", METHODS)
def test_a_model_starts_with_the_answers_of_one_of_its_own_kind_and_trains_on(method):
    vae = trained(method)
    other = build(method, seed=1, start=vae)
    other.prepare(X)  # as training does first
    other.eval()
    with torch.no_grad(), seeded(0):
        expected = vae.encode(X).mean, vae.elbo(X).value
    with torch.no_grad(), seeded(0):
        found = other.encode(X).mean, other.elbo(X).value
    torch.testing.assert_close(found, expected)
    before = vae.checksum()
    history = gpin.fit(other, X, X, epochs=1, progress=False, calibrate=False)
    assert len(history.epochs) == 1
    assert vae.checksum() == before  # nothing is shared


def test_what_cannot_be_a_start_is_one_sentence():
    with pytest.raises(InputError, match="method 'iaf' cannot start from a trained 'gp'"):
        build("iaf", start=build("gp"))
    with pytest.raises(InputError, match="cannot start from a model of method 'gp' with other options"):
        build("gp", start=build("gp", covariance="diagonal"))
    with pytest.raises(InputError, match="cannot start a model with latent_dim=3 from one with latent_dim=2"):
        gpin.build((3,), "sa", 3, start=build("sa"))
    with pytest.raises(InputError, match="cannot start from a VAE with another data shape or architecture"):
        gpin.build((4,), "me", 2, start=build("me"))
