"""`import gpin` reaches every public name, quickly and in any order."""

import importlib
import subprocess
import sys

import pytest

import gpin


@pytest.mark.parametrize("name", [name for name in gpin.__all__ if name != "__version__"])
def test_every_public_name_is_reached_by_importing_gpin_alone(name):
    assert callable(getattr(gpin, name))
    assert name in dir(gpin)


def test_a_name_that_is_none_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'gpin' has no attribute 'built'"):
        _ = gpin.built


IMPORTS = [
    "import gpin",
    "import gpin.export, gpin",
    "import gpin; gpin.export; import gpin.export",
    "import gpin; from gpin.export import export; assert callable(export)",
    "import gpin, importlib; importlib.import_module('gpin.export')",
]

# Every order is tried in a process of its own, which has torch already and nothing of gpin.
IN_EVERY_ORDER = """
import os, sys, torch
for imports in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        exec(imports)
        for _ in range(2):
            try:
                gpin.export("model", "encoder.onnx")
            except gpin.InputError as error:
                assert "must be a gpin.VAE, got str" in str(error)
                print(f"{imports}: refused", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_export_can_be_called_in_any_order_of_imports():
    found = subprocess.run([sys.executable, "-c", IN_EVERY_ORDER, *IMPORTS], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [f"{imports}: refused" for imports in IMPORTS for _ in range(2)], found.stderr


def test_importing_gpin_does_not_wait_for_torch():
    code = "import sys, gpin; print('torch' in sys.modules, 'sklearn' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False False\n"


def test_types_for_checkers_name_what_is_public():
    """The names below TYPE_CHECKING, for which nothing else looks."""
    for name, home in gpin._HOMES.items():
        assert name in gpin.__all__
        assert hasattr(importlib.import_module(home), name)
