"""Two processes train to what one process does, and survive the loss of one."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

import gpin

SCRIPT = """
import json, os, signal, sys, torch
import gpin
from gpin.training.trainer import Trainer
from gpin.training.processes import Processes
folder, cases, victim = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
x = torch.rand(37, 1, 8, 8, generator=torch.Generator().manual_seed(1))
rank = int(os.environ.get("RANK", "0"))
if victim and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    step = Trainer._step
    def fatal(self, *arguments):
        if self.updates == int(victim[0]):
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *arguments)
    Trainer._step = fatal
for name, (method, options, settings) in cases.items():
    options = {"architecture": {"channels": (4, 4), "width": 8}, **options}
    vae = gpin.build((1, 8, 8), method, 2, seed=0, **options)
    better = settings.pop("improve", None)
    last = settings.pop("last", 100)  # only the first process is asked whether to go on
    history = gpin.fit(vae, x, folder=f"{folder}/{name}", checkpoint_seconds=0, progress=False,
                       on_epoch=lambda number, epoch: number < last,
                       **{"epochs": 3, "batch_size": 16, "learning_rate": 2e-3, **settings})
    if better is not None:
        gpin.improve(vae, x, batch_size=16, progress=False, **better)
    if rank == 0:
        vae.save(f"{folder}/{name}/result")
    else:
        vae.save(f"{folder}/{name}/other")
    line = f"{name} {rank} {Processes('cpu').share.world}" + os.linesep
    os.write(1, line.encode())  # at once, for several processes write to one pipe
"""

CASES = {
    "gp": ("gp", {}, {"clip_norm": 4.0, "schedule": "cosine", "ema": 0.5}),
    "paper": ("gp", {"preset": "paper"}, {}),
    "analytic": ("vae", {"likelihood": {"variance": "analytic"}}, {}),
    "sa": ("sa", {"steps": 2, "preset": "paper"}, {}),
    "rme": ("rme", {"components": 2}, {"patience": 1}),
    "residual": ("vae", {"likelihood": "heteroscedastic", "architecture": "residual"}, {"last": 2}),
    "hf": ("hf", {}, {"kl_warmup": 1.5, "augmentation": "shift+flip"}),
    "me": ("me", {}, {"weight_decay": 0.5, "ema": 0.9, "improve": {"epochs": 2, "samples": 0.5}}),
    "iaf": ("iaf", {}, {"batch_size": 17}),  # whose last batch has one instance only
}


def run(folder, cases, world, restarts=0, *victim, place="--standalone"):
    script = folder.parent / "script.py"
    script.write_text(SCRIPT)
    launcher = []
    if world > 1:
        launcher = ["-m", "torch.distributed.run", place, f"--nproc-per-node={world}", f"--max-restarts={restarts}"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RANK", "WORLD", "LOCAL_"))}
    environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, *launcher, str(script), str(folder), json.dumps(cases), *map(str, victim)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def weights(folder):
    return gpin.load(folder).state_dict()


def assert_close(one, other):
    for name, value in one.items():
        torch.testing.assert_close(
            value, other[name], rtol=1e-6, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "runs"
    run(folder, CASES, world=1)
    return folder


def test_two_processes_give_the_weights_of_one(alone, tmp_path):
    together = tmp_path / "runs"
    out = run(together, CASES, world=2)
    assert sorted(out.split("\n"))[1:] == sorted(f"{name} {rank} 2" for name in CASES for rank in (0, 1))
    for name in CASES:
        assert_close(weights(alone / name / "result"), weights(together / name / "result"))
        first, second = weights(together / name / "result"), weights(together / name / "other")
        assert all(torch.equal(first[key], second[key]) for key in first)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.parametrize("place", ["--standalone", pytest.param("--master-port", marks=pytest.mark.slow)])
def test_a_killed_process_is_replaced_and_the_result_is_the_same(place, alone, tmp_path):
    """With a port of its own choice, and with a fixed one, where the store of addresses outlives the dead."""
    place = f"--master-port={free_port()}" if place == "--master-port" else place
    cases = {"gp": CASES["gp"]}
    folder = tmp_path / "runs"
    out = run(folder, cases, 2, 1, 4, place=place)
    assert sorted(out.split()) == sorted(["gp", "0", "2", "gp", "1", "2"])
    assert_close(weights(alone / "gp" / "result"), weights(folder / "gp" / "result"))


@pytest.mark.slow
def test_what_two_processes_began_one_can_finish(alone, tmp_path):
    cases = {"gp": CASES["gp"]}
    folder = tmp_path / "runs"
    with pytest.raises(AssertionError):
        run(folder, cases, 2, 0, 4)
    run(folder, cases, world=1)
    assert_close(weights(alone / "gp" / "result"), weights(folder / "gp" / "result"))


def test_the_command_gives_the_same_run_in_two_processes(tmp_path):
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(80, 5)))
    settings = ["--epochs", "3", "--latent-dim", "2", "--set", "architecture.width=8", "--set", "batch_size=16"]
    found = {}
    for world in (1, 2):
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"] if world > 1 else []
        out = tmp_path / str(world)
        command = [sys.executable, *launcher, "-m", "gpin", "train", str(tmp_path / "data.npy"), *settings]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, "--out", str(out)], capture_output=True, text=True, timeout=100, env=environment
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("done: ") == 1
        (found[world],) = out.iterdir()
    assert found[1].name == found[2].name
    one, two = (weights(found[world] / "model") for world in (1, 2))
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=1e-3, atol=1e-4)
