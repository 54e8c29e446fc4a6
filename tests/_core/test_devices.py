"""Devices by name."""

import pytest
import torch

from gpin._core.devices import device_named
from gpin._core.errors import InputError


def test_a_device_that_is_not_there():
    assert device_named("cpu") == torch.device("cpu")
    for name in ("abacus", "cuda:99"):
        with pytest.raises(InputError, match=name):
            device_named(name)
