"""Stopped anywhere, training goes on to the same bits."""

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from pyarrow import parquet

import gpin
import gpin.training.checkpoints as checkpoints
from gpin.inference import METHODS
from gpin.training.history import Epoch, History, Metrics
from gpin.training.interrupts import interruptible
from gpin.training.trainer import Trainer

IMAGES = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(1))
SETTINGS = {"epochs": 4, "batch_size": 16, "seed": 5, "learning_rate": 2e-3}
VARIANTS = {
    "gp, cosine, clipped, averaged": (
        "gp",
        {},
        {"schedule": "cosine", "clip_norm": 5.0, "ema": 0.9},
    ),
    "gp of the paper": ("gp", {"preset": "paper"}, {}),
    "analytic variance": ("vae", {"likelihood": {"variance": "analytic"}}, {"patience": 1, "learning_rate": 0.05}),
    "decayed, averaged and augmented": (
        "gp",
        {},
        {"weight_decay": 0.5, "ema": 0.9, "augmentation": "shift+flip", "patience": 2},
    ),
    "KL warm-up": ("rme", {"components": 3}, {"kl_warmup": 2.5, "patience": 1}),
    **{name: (name, {"components": 3} if name == "rme" else {}, {}) for name in METHODS},
}


class Stopped(BaseException):
    """As sudden as a kill: nothing may be done on the way out that a killed process could not do."""


def model(method, options):
    return gpin.build((1, 8, 8), method, 2, architecture={"channels": (4, 4), "width": 8}, seed=0, **options)


def bits(vae):
    return {name: tensor.clone() for name, tensor in vae.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def train(folder, method="gp", options=None, settings=None, **more):
    vae = model(method, options or {})
    history = gpin.fit(
        vae, IMAGES, folder=folder, progress=False, **{"checkpoint_seconds": 0, **SETTINGS, **(settings or {}), **more}
    )
    return bits(vae), history


@pytest.mark.parametrize("variant", VARIANTS)
def test_stopped_after_any_step_it_ends_in_the_same_bits(variant, tmp_path, monkeypatch):
    method, options, settings = VARIANTS[variant]
    whole, history = train(None, method, options, settings)
    step, run = Trainer._step, {"steps": 0}

    def step_or_stop(self, *arguments):
        run["steps"] += 1
        if run["steps"] % 3 == 0:
            raise Stopped
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", step_or_stop)
    stops = 0
    while True:
        try:
            resumed, again = train(tmp_path, method, options, settings)
            break
        except Stopped:
            stops += 1
    assert stops >= 2
    assert same(whole, resumed)
    assert (again.validation, again.train, again.best) == (history.validation, history.train, history.best)


def test_checkpoints_that_are_rare_change_nothing_but_how_much_is_repeated(tmp_path, monkeypatch):
    whole, _ = train(None)
    resumed, _ = train(tmp_path, checkpoint_seconds=1e9)
    assert same(whole, resumed)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_a_finished_run_is_only_read(tmp_path, monkeypatch):
    whole, history = train(tmp_path)

    def never(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr(Trainer, "_step", never)
    again, same_history = train(tmp_path)
    assert same(whole, again)
    assert same_history == history


def test_another_run_is_not_mixed_up_with_this_one(tmp_path):
    train(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for change in ({"epochs": 5}, {"seed": 6}, {"learning_rate": 1e-3}):
        with pytest.raises(gpin.InputError, match="holds another run"):
            train(tmp_path, settings=change)
    with pytest.raises(gpin.InputError, match="holds another run"):
        train(tmp_path, method="vae")
    changed = IMAGES.clone()
    changed[37, 0, 3, 3] += 0.1
    with pytest.raises(gpin.InputError, match="holds another run"):
        gpin.fit(model("gp", {}), changed, folder=tmp_path, progress=False, **SETTINGS)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_early_stopping_ends_after_so_many_epochs_without_a_better_bound():
    vae = model("vae", {})
    history = gpin.fit(vae, IMAGES, epochs=60, patience=3, learning_rate=0.03, batch_size=16, progress=False)
    assert len(history.epochs) < 60
    assert len(history.epochs) - history.best == 3


def test_a_cosine_falls_to_nothing_and_a_constant_stays():
    rates = {}
    for schedule in ("cosine", "constant"):
        history = gpin.fit(model("vae", {}), IMAGES, schedule=schedule, progress=False, **SETTINGS)
        rates[schedule] = [epoch.learning_rate for epoch in history.epochs]
    assert rates["constant"] == [2e-3] * 4
    assert all(after < before for before, after in pairwise(rates["cosine"]))
    assert 0 < rates["cosine"][-1] < 2e-4


def test_clipping_bounds_what_a_step_sees(monkeypatch):
    norms = []
    step = torch.optim.Adam.step

    def look(self, *arguments):
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norms.append(torch.nn.utils.get_total_norm(gradients).item())
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", look)
    gpin.fit(model("vae", {}), IMAGES, progress=False, **SETTINGS)
    free, norms[:] = max(norms), []
    assert free > 1.5
    gpin.fit(model("vae", {}), IMAGES, progress=False, clip_norm=1.5, **SETTINGS)
    assert max(norms) == pytest.approx(1.5, rel=1e-4)


def test_the_average_of_the_weights_is_what_is_kept():
    """With decay a, θ̄_t = a θ̄_{t−1} + (1 − a) θ_t from θ̄_0 = θ_0: one step from weights that then stand still."""
    start = model("vae", {})
    plain, averaged = model("vae", {}), model("vae", {})
    one = {**SETTINGS, "epochs": 1, "batch_size": 60}
    gpin.fit(plain, IMAGES, IMAGES, progress=False, **one)
    gpin.fit(averaged, IMAGES, IMAGES, progress=False, ema=0.75, **one)
    first, last = dict(start.named_parameters()), dict(plain.named_parameters())
    for name, parameter in averaged.named_parameters():
        if name != "likelihood.log_variance":  # which starts from the data
            torch.testing.assert_close(parameter, 0.75 * first[name] + 0.25 * last[name], rtol=1e-5, atol=1e-7)


# Files -------------------------------------------------------------------------------------------------


def test_metrics_are_lines_and_at_the_end_a_table(tmp_path):
    _, history = train(tmp_path, tensorboard=True)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == history.rows()
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert parquet.read_table(tmp_path / "metrics.parquet").to_pylist() == lines
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"torn")])
def test_metrics_of_a_finished_run_are_written_again(tmp_path, damage):
    _, history = train(tmp_path)
    for name in ("metrics.jsonl", "metrics.parquet"):
        damage(tmp_path / name)
    train(tmp_path)
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == history.rows()
    assert parquet.read_table(tmp_path / "metrics.parquet").to_pylist() == history.rows()


def test_tensorboard_of_a_finished_run_has_every_epoch_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, history = train(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    for _ in range(2):
        train(tmp_path, tensorboard=True)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    assert {path: path.stat().st_mtime_ns for path in before} == before
    scalars = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("elbo/train")
    assert [scalar.step for scalar in scalars] == [1, 2, 3, 4]
    assert [scalar.value for scalar in scalars] == pytest.approx(history.train)


def test_tensorboard_has_every_epoch_once_though_it_was_interrupted(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    step, count = Trainer._step, [0]

    def step_or_stop(self, *arguments):
        count[0] += 1
        if count[0] == 7:
            raise Stopped
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", step_or_stop)
    with pytest.raises(Stopped):
        train(tmp_path, tensorboard=True)
    _, history = train(tmp_path, tensorboard=True)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    scalars = events.Scalars("elbo/validation")
    assert [scalar.step for scalar in scalars] == [1, 2, 3, 4]
    assert [scalar.value for scalar in scalars] == pytest.approx(history.validation)


def test_a_damaged_checkpoint_is_told_of_and_the_one_before_it_used(tmp_path, capsys):
    whole, _ = train(tmp_path)
    newest = max((tmp_path / "checkpoints").iterdir())
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    again, _ = train(tmp_path)
    assert same(whole, again)
    said = capsys.readouterr().err
    assert f"{newest} is damaged" in said
    assert said.count("\n") == 1
    for path in (tmp_path / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(gpin.InputError, match=r"all checkpoints in .* are damaged: remove that folder to start again"):
        train(tmp_path)


@pytest.mark.parametrize("number", [1, 2, 5, 9])
def test_a_full_disk_is_a_clear_error_and_the_last_good_state_is_kept(number, tmp_path, monkeypatch):
    whole, _ = train(None)
    write, written = checkpoints.write_whole, [0]

    def full(path, content):
        written[0] += 1
        if written[0] == number:
            path.with_name(path.name + ".part").write_bytes(content[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, content)

    monkeypatch.setattr(checkpoints, "write_whole", full)
    with pytest.raises(gpin.TrainingError, match=r"No space left on device; .*free some space and run again") as said:
        train(tmp_path)
    assert "\n" not in str(said.value)
    assert ("the last good checkpoint is kept" in str(said.value)) == (number > 1)
    resumed, _ = train(tmp_path)
    assert same(whole, resumed)


def test_metrics_that_cannot_be_written_are_a_clear_error(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("gpin.training.history.write_whole", full)
    said = f"cannot write to {tmp_path}: Permission denied; fix this and run again"
    with pytest.raises(gpin.TrainingError, match=said):
        train(tmp_path)


def test_a_checkpoint_that_vanishes_is_not_missed(tmp_path, monkeypatch):
    """Another process trains on, and removes the oldest when it has written a new one."""
    train(tmp_path)
    store = checkpoints.Checkpoints(tmp_path / "checkpoints")
    newest, read = max(store.folder.iterdir()), Path.read_bytes

    def vanish(path):
        if path == newest:
            newest.rename(store.folder / "99999999.safetensors")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", vanish)
    assert store.latest(pytest.fail).record["finished"]
    for path in store.folder.iterdir():
        path.unlink()
    (store.folder / "00000001.safetensors").symlink_to("nowhere")
    assert store.latest(pytest.fail) is None


def test_a_data_loader_cannot_be_resumed_and_says_so(tmp_path):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(IMAGES), batch_size=16)
    with pytest.raises(gpin.InputError, match="DataLoader cannot be resumed"):
        gpin.fit(model("gp", {}), loader, IMAGES, folder=tmp_path, progress=False)
    with pytest.raises(gpin.InputError, match="needs a `folder`"):
        gpin.fit(model("gp", {}), IMAGES, tensorboard=True, progress=False)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(gpin.InputError, match="it is a file and not a folder"):
        train(tmp_path / "file")


def test_non_finite_losses_leave_a_run_that_can_be_looked_at(tmp_path, monkeypatch):
    with pytest.raises(gpin.TrainingError, match=r"epoch .*, batch .*: .*not finite|loss is"):
        train(tmp_path, method="vae", settings={"learning_rate": 1e12})
    record = checkpoints.Checkpoints(tmp_path / "checkpoints").latest(pytest.fail).record
    assert not record["finished"]


# Signals -----------------------------------------------------------------------------------------------

SCRIPT = """
import os, random, signal, sys, time
import torch, gpin
sys.path.insert(0, {tests!r})
from training.test_resume import IMAGES, SETTINGS, model

def work():
    vae = model("gp", {{}})
    options = {{**SETTINGS, "epochs": {epochs}, "ema": 0.9, "schedule": "cosine"}}
    gpin.fit(vae, IMAGES, folder={folder!r}, checkpoint_seconds={every}, progress=False, **options)
    vae.save({folder!r} + "/result")

torch.set_num_threads(1)
moments = random.Random({seed})
for _ in range({kills}):
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    time.sleep(moments.uniform(0, 0.4))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    print("killed" if os.WIFSIGNALED(status) else "too late", flush=True)
work()
"""


def start(folder, epochs, every=0.0, kills=0, seed=0):
    """A process that trains, after so many others that were killed at random moments."""
    tests = str(Path(__file__).parents[1])
    code = SCRIPT.format(tests=tests, folder=str(folder), epochs=epochs, every=every, kills=kills, seed=seed)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whatever the tests were started with
    )


def finish(process, folder):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return bits(gpin.load(folder / "result")), out


@pytest.mark.parametrize(
    ("every", "kills"),
    [(0.0, 6), pytest.param(0.0, 20, marks=pytest.mark.slow), pytest.param(0.1, 20, marks=pytest.mark.slow)],
)
def test_killed_at_random_moments_it_ends_in_the_same_bits(every, kills, tmp_path):
    epochs = 30 + 2 * kills
    whole, _ = finish(start(tmp_path / "whole", epochs, every=1e9), tmp_path / "whole")
    killed, out = finish(start(tmp_path / "killed", epochs, every, kills), tmp_path / "killed")
    assert out.split("\n")[:kills] == ["killed"] * kills
    assert same(whole, killed)


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible() as asked:
            os.kill(os.getpid(), signal.SIGINT)
            assert not asked()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGTERM)
            assert asked()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_control_c_stops_between_two_steps_and_loses_nothing(tmp_path):
    process = start(tmp_path / "run", epochs=2000, every=1e9)
    lines = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not (lines.exists() and lines.read_text().count("\n") >= 3):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    kept = checkpoints.Checkpoints(tmp_path / "run" / "checkpoints").latest(pytest.fail).record
    assert len(kept["history"]["epochs"]) >= 3


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_good_one(tmp_path):
    kept = checkpoints.Checkpoints(tmp_path)
    for number in (10, 20):
        kept.write(number, checkpoints.Checkpoint({}, {"number": number}))
    (tmp_path / "00000020.safetensors").write_bytes(b"damaged")
    (tmp_path / "00000030.safetensors.1234abcd.part").write_bytes(b"half")
    again, said = checkpoints.Checkpoints(tmp_path), []
    assert again.latest(said.append).record == {"number": 10}
    assert len(said) == 1
    for number in (12, 14):
        again.write(number, checkpoints.Checkpoint({}, {"number": number}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000012.safetensors", "00000014.safetensors"]


@pytest.mark.parametrize(
    ("shape", "options", "about"),
    [
        (
            (1, 8, 8),
            {"method": "gp", "deviations": "absolute", "likelihood": {"variance": "analytic"}},
            "7f18860c527c1d3a3f7841d7ca23e49c8f0c56341c0dbc5f24dc3fc23e8b8172",
        ),
        (
            (64,),
            {"method": "vae", "likelihood": "bernoulli"},
            "279bd4109bf702c0958f79c031790daf245c3b963df8f9823f05cbc916a5b47f",
        ),
        (
            (1, 8, 8),
            {"method": "sa", "architecture": {"decoder": "dense", "channels": [2]}},
            "7d1dad21d12b8dcbca38d4ba448c3019cd5e2ea9a046acc4c49ab71a1c0c9c2f",
        ),
    ],
)
def test_checkpoints_of_version_0_1_are_of_the_same_run(shape, options, about, tmp_path):
    """The identities that version 0.1.0 wrote; with another one, its checkpoints could not be resumed."""
    x = torch.linspace(0, 1, 20 * 64).reshape(20, *shape)
    vae = gpin.build(shape, latent_dim=2, seed=0, **options)
    gpin.fit(vae, x, x[:4], epochs=1, folder=tmp_path, progress=False)
    assert checkpoints.Checkpoints(tmp_path / "checkpoints").latest(pytest.fail).record["about"] == about


def test_a_history_that_an_older_version_began_keeps_the_processor_time_of_its_later_epochs(tmp_path):
    began = Epoch(train=1.0, validation=2.0, seconds=3.0, score=4.0)
    history = History([began, dataclasses.replace(began, processor_seconds=2.5)], best=2)
    Metrics(tmp_path, history).close(history)
    assert parquet.read_table(tmp_path / "metrics.parquet")["processor_seconds"].to_pylist() == [None, 2.5]
    assert History.from_record(history.record()) == history
