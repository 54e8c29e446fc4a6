"""What tells one module from another, and what does not."""

import functools
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from gpin._core.errors import InputError
from gpin._core.identity import fingerprint


class Scaled(nn.Module):
    """A layer with a plain attribute, a buffer, a frozen and a trainable parameter."""

    def __init__(self, scale=2.0, shift=1.0, fixed=3.0, act=torch.relu):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.scale = scale
        self.act = act
        self.register_buffer("shift", torch.tensor(shift), persistent=False)
        self.fixed = nn.Parameter(torch.tensor(fixed), requires_grad=False)

    def forward(self, x):
        return self.act(self.linear(x) * self.scale + self.shift + self.fixed)


def class_named_layer(slope):
    """Two classes with one name, whose code differs by a constant."""
    names = {"nn": nn, "__name__": "script"}
    exec(f"class Layer(nn.Module):\n    def forward(self, x):\n        'Words.'\n        return {slope} * x", names)
    return names["Layer"]()


def test_first_weights_and_the_mode_do_not_matter():
    one, other = Scaled(), Scaled().eval()
    assert not torch.equal(one.linear.weight, other.linear.weight)
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 2.5},
        {"scale": torch.tensor(2.0)},
        {"scale": [2.0, {"a": 1}]},
        {"shift": 1.5},
        {"fixed": 4.0},
        {"act": torch.tanh},
        {"act": lambda x: 2 * x},
        {"act": functools.partial(nn.functional.leaky_relu, negative_slope=0.3)},
        {"act": nn.GELU()},
    ],
    ids=["number", "tensor", "list", "buffer", "frozen", "builtin", "lambda", "partial", "module"],
)
def test_everything_else_matters(change):
    assert fingerprint(Scaled(**change)) != fingerprint(Scaled())
    assert fingerprint(Scaled(**change)) == fingerprint(Scaled(**change))


def test_closures_and_code_are_told_apart():
    def times(factor):
        return lambda x: factor * x

    assert fingerprint(Scaled(act=times(2))) == fingerprint(Scaled(act=times(2)))
    assert fingerprint(Scaled(act=times(2))) != fingerprint(Scaled(act=times(3)))
    assert fingerprint(class_named_layer(2)) == fingerprint(class_named_layer(2))
    assert fingerprint(class_named_layer(2)) != fingerprint(class_named_layer(3))


def test_freezing_matters_and_so_do_layers_hidden_in_a_list():
    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert fingerprint(frozen) != fingerprint(nn.Linear(2, 2))
    assert fingerprint(nn.LeakyReLU(0.1)) != fingerprint(nn.LeakyReLU(0.2))
    assert fingerprint(nn.Linear(2, 2)) != fingerprint(nn.Linear(2, 2).double())
    assert fingerprint(Scaled(scale=[nn.Dropout(0.1)])) != fingerprint(Scaled(scale=[nn.Dropout(0.2)]))


@pytest.mark.parametrize("secret", [torch.Generator(), iter([1])], ids=["generator", "iterator"])
def test_what_cannot_be_described_is_refused_in_one_line(secret):
    with pytest.raises(InputError, match=r"1\.scale is a \w+, .*identity=") as caught:
        fingerprint(nn.Sequential(nn.ReLU(), Scaled(scale=secret)))
    assert "\n" not in str(caught.value)


def test_it_is_the_same_in_another_process(tmp_path):
    """Whatever the seed of Python's hashes, which orders sets."""
    (tmp_path / "script.py").write_text(
        "import torch\nfrom torch import nn\nfrom gpin._core.identity import fingerprint\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.names = {'a', 'b', 'c', 'd'}\n"
        "        self.itself = [self]\n"
        "    def forward(self, x):\n"
        "        return x if x in {'a', 'b', 'c'} else torch.relu(x)\n"
        "print(fingerprint(Net()))\n"
    )
    said = {
        subprocess.run(
            [sys.executable, tmp_path / "script.py"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1
    assert len(said.pop().strip()) == 64
