"""Devices by name."""

import pytest
import torch

from gpin._core.devices import device_named
from gpin._core.errors import InputError


def test_a_device_that_is_not_there():
    assert device_named("cpu") == torch.device("cpu")
    for name in ("abacus", "cuda:99"):
        with pytest.raises(InputError, match=rf"there is no device '{name}' here: there (is only|are) cpu"):
            device_named(name)


def test_the_devices_that_are_there_are_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"there are cpu, cuda:0 and cuda:1$"):
        device_named("abacus")
