"""What tells one module from another, and what does not."""

import collections
import enum
import functools
import os
import random
import subprocess
import sys
import types
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from gpin._core.errors import InputError
from gpin._core.identity import fingerprint, same_structure


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


def test_layers_that_refer_to_their_parameters_are_described():
    assert fingerprint(nn.LSTM(2, 2)) == fingerprint(nn.LSTM(2, 2))
    assert fingerprint(nn.LSTM(2, 2)) != fingerprint(nn.LSTM(2, 2, dropout=0.1, num_layers=2))
    assert fingerprint(nn.LSTM(2, 2)) != fingerprint(nn.LSTM(2, 2).requires_grad_(False))


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


def layer_of(source, **names):
    """A layer of a script with this body of `forward` after global definitions, separated by a line of dashes."""
    before, _, body = source.rpartition("---")
    names = {"nn": nn, "torch": torch, "__name__": "script", **names}
    exec(f"{before}\nclass Layer(nn.Module):\n    def forward(self, x):\n        return {body.strip()}", names)
    return names["Layer"]()


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("scale = 2\n---x * scale", ("2", "3")),
        ("scale = torch.ones(2)\n---x * scale", ("ones", "zeros")),
        ("scale = {'a': [1, (2,)]}\n---x * scale['a'][0]", ("2", "3")),
        ("def helper(x): return x * 2\n---helper(x)", ("2", "3")),
        ("k = 2\ndef helper(x): return x * k\n---(lambda: helper(x))()", ("k = 2", "k = 3")),
        (
            "def one(x, n): return other(x, n)\ndef other(x, n): return one(x, n - 1) if n else 2\n---one(x, 1)",
            ("2", "3"),
        ),
        ("class Constants:\n    scale = (1, 2)\n---x * Constants.scale[1]", ("2", "3")),
        (
            "import functools\n"
            "def times(k):\n"
            "    def decorate(f):\n"
            "        @functools.wraps(f)\n"
            "        def changed(x): return k * f(x)\n"
            "        return changed\n"
            "    return decorate\n"
            "@times(2)\n"
            "def helper(x): return x\n---helper(x)",
            ("(2)", "(3)"),
        ),
        ("import functools\n@functools.lru_cache\ndef helper(x): return 2\n---helper(x)", ("2", "3")),
        ("@torch.no_grad()\ndef helper(x): return 2 * x\n---helper(x)", ("2", "3")),
    ],
    ids=["number", "tensor", "dict", "function", "deep", "recursion", "class", "decorator", "cache", "no_grad"],
)
def test_what_the_code_uses_matters(source, change):
    assert source.replace(*change) != source
    assert fingerprint(layer_of(source)) == fingerprint(layer_of(source))
    assert fingerprint(layer_of(source)) != fingerprint(layer_of(source.replace(*change)))
    assert fingerprint(layer_of(f"unused = 1\n{source}")) == fingerprint(layer_of(f"unused = 2\n{source}"))


def test_attributes_of_own_modules_matter_and_those_of_the_same_name_do_not():
    def using(**values):
        helpers = types.ModuleType("helpers")
        vars(helpers).update(values)
        return fingerprint(layer_of("---x * helpers.scale", helpers=helpers))

    assert using(scale=2, other=1) == using(scale=2, other=5)
    assert using(scale=2) != using(scale=3)
    with_data = [fingerprint(layer_of("---x.data", data=torch.full((), float(k)))) for k in range(2)]
    assert with_data[0] == with_data[1]


@pytest.mark.parametrize("values", [(torch.ones(()), torch.zeros(())), ((1,), (2,)), ([1], [2]), ({"a": 1}, {"a": 2})])
def test_attributes_of_a_class_matter(values):
    def of(value):
        return fingerprint(type("Layer", (nn.Module,), {"constant": value, "__module__": "script"})())

    assert of(values[0]) == of(values[0])
    assert of(values[0]) != of(values[1])


@pytest.mark.parametrize(
    "register",
    ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "weight"],
)
def test_hooks_matter(register):
    def hooked(factor):
        layer = nn.Linear(2, 2)
        add = layer.weight.register_hook if register == "weight" else getattr(layer, register)
        add(lambda *values: factor)
        return layer

    assert fingerprint(hooked(2)) == fingerprint(hooked(2))
    assert fingerprint(hooked(2)) != fingerprint(hooked(3))
    assert fingerprint(hooked(2)) != fingerprint(nn.Linear(2, 2))
    assert not same_structure(hooked(2), nn.Linear(2, 2))


class Pair(NamedTuple):
    one: int
    other: int


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def test_small_containers_are_described():
    for one, other in [
        (Pair(1, 2), Pair(1, 3)),
        (Colour.RED, Colour.BLUE),
        (collections.OrderedDict(a=1), collections.OrderedDict(a=2)),
        (torch.Size((1,)), torch.Size((2,))),
        (np.float64(1), np.float64(2)),
        (np.ones(2), np.zeros(2)),
        (np.exp, np.sin),
        (Pair, Colour),
    ]:
        assert fingerprint(Scaled(scale=one)) == fingerprint(Scaled(scale=one))
        assert fingerprint(Scaled(scale=one)) != fingerprint(Scaled(scale=other))


def test_structure_is_all_but_the_values_of_tensors():
    assert same_structure(Scaled(shift=1.0, fixed=2.0), Scaled(shift=2.0, fixed=3.0).double())
    assert not same_structure(Scaled(), Scaled(scale=3.0))
    assert not same_structure(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    assert not same_structure(nn.Sequential(nn.ReLU()), nn.Sequential(nn.GELU()))


class List(list):
    """A list that may have attributes."""


class Text(str):
    """A string that may have attributes."""


class Slotted:
    __slots__ = ("value",)


class Unreadable:
    def __init__(self):
        self.__dict__[1] = self.__dict__["a"] = 0  # keys that cannot be sorted


@pytest.mark.parametrize(
    "secret",
    [
        List([1]),
        Text("a"),
        Slotted(),
        collections.defaultdict(int),
        random.Random(0),
        np.random.default_rng(0).normal,
        torch.eye(2).to_sparse(),
        torch.ones(2, device="meta"),
        Unreadable(),
    ],
    ids=["list", "str", "slots", "defaultdict", "random", "method", "sparse", "meta", "unreadable"],
)
def test_nothing_else_is_described_by_half_or_fails_with_another_error(secret):
    with pytest.raises(InputError, match=r"scale .*identity=") as caught:
        fingerprint(Scaled(scale=secret))
    assert "\n" not in str(caught.value)


def test_a_compiled_module_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"cannot be identified: .*identity="):
        fingerprint(torch.compile(nn.Linear(2, 2), backend="eager"))


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
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert len(said.pop().strip()) == 64
