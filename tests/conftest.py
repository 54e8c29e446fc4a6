"""What all tests share."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test processes on two cores

import pytest
import torch
from jaxtyping import install_import_hook

# Shapes and types of the mathematics are checked at run time, here and only here. What users call is left out:
# its own errors are what the tests look at.
CHECKED = [
    *(f"gpin.inference.{name}" for name in ("gaussian", "gp", "householder", "iaf", "laplace", "mixture")),
    "gpin.inference.recursive_mixture",
    "gpin.refinement",
    "gpin.evaluation.annealed",
    "gpin.evaluation.importance",
]
install_import_hook(CHECKED, "beartype.beartype")

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    """Every test starts from the same random state, in float32, with distributions that check their arguments."""
    torch.manual_seed(0)
    torch.distributions.Distribution.set_default_validate_args(True)  # torch.compile switches it off for the process
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def double():
    """Everything made in this test is float64."""
    torch.set_default_dtype(torch.float64)
