"""Rows of a table, and models for it."""

import numpy as np
import pytest
import torch

import gpin
from gpin.data import Rows, Scaling


@pytest.fixture
def rows():
    values = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    return Rows(values, np.arange(300), Scaling(kind="none"))


@pytest.fixture
def small_model():
    """Builds a model of three columns, ready to encode."""

    def build(method="gp", **options):
        vae = gpin.build((3,), method, 2, seed=0, architecture={"width": 8}, **options)
        vae.prepare(torch.linspace(-2, 2, 60).reshape(20, 3))
        return vae.eval()

    return build
