"""A run for more epochs goes on where a shorter one has ended."""

import shlex

import numpy as np
import pytest

from gpin.cli import main
from gpin.runs import run_settings, train


@pytest.fixture
def trained(tmp_path):
    """Trains on a small table, and returns the run, its history and what was said."""
    np.save(tmp_path / "table.npy", np.random.default_rng(0).normal(size=(60, 3)))

    def trained(out="runs", start=None, **options):
        said = []
        settings = run_settings(
            {"latent_dim": 2, "architecture.width": 6, "batch_size": 16, "method": "vae", **options}
        )
        run, vae, history = train(
            tmp_path / "table.npy",
            settings,
            out=tmp_path / out,
            start=start,
            checkpoint_seconds=0,
            progress=False,
            tell=said.append,
        )
        return run, vae, history, " ".join(said)

    return trained


def test_more_epochs_go_on_to_the_same_bits_and_leave_the_shorter_run(trained):
    short, before, _, _ = trained(epochs=3)
    long, vae, history, said = trained(epochs=6)
    assert f"going on after step 9 of {short.folder}, which has the same settings and stays as it is" in said
    assert long.folder != short.folder
    assert short.load().checksum() == before.checksum()
    afresh, other, expected, nothing = trained(epochs=6, out="elsewhere")
    assert nothing == ""
    assert afresh.identity == long.identity
    assert history.scores == expected.scores
    assert vae.checksum() == other.checksum() == long.load().checksum()


def test_the_longest_of_the_shorter_runs_is_taken_and_a_longer_one_never(trained):
    trained(epochs=2)
    trained(epochs=4)
    trained(epochs=7)
    assert "going on after step 12" in trained(epochs=5)[3]
    assert trained(epochs=1)[3] == ""


def test_more_patience_goes_on_and_less_does_not(trained):
    trained(epochs=4, patience=2)
    assert "going on" in trained(epochs=4, patience=3)[3]
    assert trained(epochs=5, patience=1, out="runs")[3] == ""


@pytest.mark.parametrize("other", [{"seed": 1}, {"batch_size": 8}, {"latent_dim": 1}, {"split_seed": 1}])
def test_another_run_is_not_gone_on_with(trained, other):
    trained(epochs=2)
    assert trained(epochs=3, **other)[3] == ""


def test_a_run_shorter_than_the_time_between_checkpoints_goes_on_at_its_end(trained, monkeypatch):
    monkeypatch.setattr("gpin.training.loop._Store.after_step", lambda *arguments: None)
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    _, before, _, _ = trained(epochs=2, ema=0.9)
    _, vae, history, said = trained(epochs=4, ema=0.9)
    assert "going on after step 6 of" in said
    assert len(history.epochs) == 4
    assert vae.checksum() == trained(epochs=4, ema=0.9, out="elsewhere")[1].checksum() != before.checksum()


def test_a_training_that_ended_early_is_not_longer_with_more_epochs(trained, monkeypatch):
    monkeypatch.setattr("gpin.training.trainer.validate", lambda vae, *others: (scores.pop(0), 0.0))
    scores = [3.0, 2.0, 1.0]
    _, before, _, _ = trained(epochs=5, patience=2)
    run, vae, history, _ = trained(epochs=9, patience=2)
    assert (len(history.epochs), history.best, scores) == (3, 1, [])
    assert vae.checksum() == before.checksum()
    assert run.history()[1]


def test_defaults_that_prevent_going_on_are_named_with_the_command_that_goes_on(tmp_path, capsys):
    np.save(tmp_path / "my table.npy", np.random.default_rng(0).normal(size=(60, 3)))
    command = ["train", str(tmp_path / "my table.npy"), "--method", "vae", "--latent-dim", "2", "--out", str(tmp_path)]
    assert main([*command, "--steps", "2"]) == 0
    capsys.readouterr()
    assert main([*command, "--epochs", "3"]) == 0
    said = next(line for line in capsys.readouterr().err.splitlines() if "starts afresh" in line)
    assert "with batch_size=128, learning_rate=0.0005, because" in said
    command = shlex.split(said.partition("go on with that one: ")[2])[1:]
    assert main(command) == 0
    said = capsys.readouterr().err
    assert "going on after step 2 of" in said
    assert "afresh" not in said
    assert main([*command, "--seed", "1"]) == 0
    assert "afresh" not in capsys.readouterr().err


def test_a_schedule_or_stages_that_depend_on_the_number_of_epochs_start_afresh(trained):
    run, *_ = trained(epochs=2, schedule="cosine")
    _, _, history, said = trained(epochs=4, schedule="cosine")
    assert f"so training starts afresh; `start={run.folder}` starts from its weights" in said
    assert history.scores == trained(epochs=4, schedule="cosine", out="elsewhere")[2].scores
    trained(epochs=2, method="rme")
    assert "going on" not in trained(epochs=6, method="rme")[3]


def test_a_budget_in_steps_goes_on_too(trained):
    trained(steps=6)
    assert "going on after step 6" in trained(steps=12)[3]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--steps", "0"], "--steps must be a positive whole number, got 0"),
        (["--max-time", "-5s"], "--max-time must be a positive time with a unit, such as 30m, 90s or 1h30m, got '-5s'"),
        (["--max-time", "0"], "--max-time must be a positive time with a unit, such as 30m, 90s or 1h30m, got '0'"),
    ],
)
def test_a_budget_that_is_not_positive_is_named_by_its_flag(flags, said, capsys):
    assert main(["train", "digits", *flags]) == 2
    assert said in capsys.readouterr().err
