"""The latent space of a run: activity, projection, paths and neighbours, against direct computations."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch.distributions import Normal, kl_divergence

from gpin.data import Rows, Scaling
from gpin.runs.report.latent import REACH, Codes, codes_of, interpolation, neighbours, plane, traversal


@pytest.fixture
def codes():
    random = np.random.default_rng(0)
    mean = random.standard_normal((60, 4)) * [1.0, 0.05, 3.0, 0.2]
    return Codes(np.arange(60), mean, random.uniform(0.1, 1.0, (60, 4)))


def test_kl_and_active_dimensions(codes):
    q = Normal(torch.tensor(codes.mean), torch.tensor(codes.std))
    expected = kl_divergence(q, Normal(0.0, 1.0)).mean(0)
    np.testing.assert_allclose(codes.kl, expected, rtol=1e-12)
    assert codes.active == 3  # a variance of 0.05² is below 0.01
    assert codes.order.tolist() == [2, 0, 3, 1]


def test_the_projection_is_that_of_pca(codes):
    points, shares = codes.projection
    pca = PCA(2).fit(codes.mean)
    np.testing.assert_allclose(np.abs(points), np.abs(pca.transform(codes.mean)), atol=1e-10)
    np.testing.assert_allclose(shares, pca.explained_variance_ratio_, rtol=1e-10)


@pytest.mark.parametrize("dims", [1, 2])
def test_few_dimensions_are_not_projected(codes, dims):
    points, _ = Codes(codes.index, codes.mean[:, :dims], codes.std[:, :dims]).projection
    assert points.shape == (60, 2)
    np.testing.assert_array_equal(points[:, :dims], codes.mean[:, :dims])


def test_paths_are_decoded_codes(small_model):
    vae = small_model("vae")
    low = torch.tensor([[0.0, -REACH], [0.0, REACH]])
    torch.testing.assert_close(traversal(vae, 1, 2), vae.decode(low))
    first, last = torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 0.0])
    path = interpolation(vae, first.tolist(), last.tolist(), 3)
    torch.testing.assert_close(path, vae.decode(torch.stack([first, (first + last) / 2, last])))
    corners = plane(vae, 2)  # the first row has the largest z2
    expected = torch.tensor([[-REACH, REACH], [REACH, REACH], [-REACH, -REACH], [REACH, -REACH]])
    torch.testing.assert_close(corners, vae.decode(expected))


def test_neighbours_are_the_nearest_training_rows(small_model, rows):
    vae = small_model("vae")
    scaling = Scaling(kind="none")
    train, test = rows.chosen(np.arange(0, 250)), Rows(rows.values, np.arange(250, 300), scaling)
    one, data = SimpleNamespace(vae=vae, chosen=torch.arange(0, 50, 2)), SimpleNamespace(train=train, test=test)
    codes = codes_of(one, data, seed=0)
    assert codes.index.tolist() == list(range(0, 50, 2))
    np.testing.assert_allclose(codes.mean, vae.encode(test[::2]).mean.detach(), atol=1e-6)
    found = neighbours(one, data, codes, 3, 4, seed=0)
    assert found.searched == 250
    distance = torch.cdist(vae.encode(test[:]).mean, vae.encode(train[:]).mean)
    for i, near in zip(found.index, found.nearest, strict=True):
        assert near.tolist() == distance[i].argsort()[:4].tolist()
