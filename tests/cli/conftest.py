"""Small data of every kind, and runs trained on it through the command line, once for all tests."""

import contextlib
import io
import json
import re
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from gpin.cli import main

SMALL = ["--epochs", "2", "--latent-dim", "2", "--set", "architecture.width=16", "--set", "batch_size=32"]


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def one_line(self):
        return self.err.startswith("gpin: ") and self.err.count("\n") == 1 and self.err.endswith("\n")

    @property
    def understood(self):
        """The lines on stderr that say what was understood, by name."""
        lines = [line.split("  ", 1) for line in self.err.splitlines() if re.match(r"[a-z]+  +\S", line)]
        return {name: value.strip() for name, value in lines}

    @property
    def remarks(self):
        """The other lines on stderr."""
        return [line for line in self.err.splitlines() if not re.match(r"[a-z]+  +\S", line)]


def gpin(*arguments):
    """Exit code, stdout and stderr of a command, run in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Said(code, out.getvalue(), err.getvalue())


@pytest.fixture(name="gpin", scope="session")
def _gpin():
    return gpin


def random_table(count=80):
    """Three columns with unlike units that hang together, `(count, 3)`."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=count)
    return np.stack([a, 1000 + 50 * (a + 0.1 * rng.normal(size=count)), 1e-3 * rng.normal(size=count)], 1)


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A folder of data: table.csv, mixed.csv (with a text column), table.npy, images.npy, pictures/."""
    folder = tmp_path_factory.mktemp("data")
    table = random_table()
    np.savetxt(folder / "table.csv", table, delimiter=",", header="a,b,c", comments="", fmt="%.17g")
    lines = [f"person {i},{a!r},{b!r},{c!r}" for i, (a, b, c) in enumerate(table.tolist())]
    (folder / "mixed.csv").write_text("\n".join(["name,a,b,c", *lines]))
    np.save(folder / "table.npy", table)
    images = np.random.default_rng(1).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.save(folder / "images.npy", images)
    (folder / "pictures").mkdir()
    for i, pixels in enumerate(np.random.default_rng(2).integers(0, 256, (30, 12, 10, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder / "pictures" / f"{i:02}.png")
    return folder


@pytest.fixture(scope="session")
def runs(files, tmp_path_factory):
    """Folders of finished runs by name: table (gp), plain (a VAE, on the .npy), images, pictures."""
    out = tmp_path_factory.mktemp("runs")
    commands = {
        "table": ["table.csv"],
        "plain": ["table.npy", "--method", "vae"],
        "images": ["images.npy"],
        "pictures": ["pictures", "--size", "8", "--grey"],
    }
    found = {}
    for name, (data, *options) in commands.items():
        said = gpin("train", files / data, *options, *SMALL, "--out", out, "--json")
        assert said.code == 0, said.err
        found[name] = json.loads(said.out)["run"]
    return found
