"""The validation score, which is the same for every method, and the warning when training and validation diverge."""

import json
import math
import os
from dataclasses import replace

import pytest
import torch
from linear_gaussian import LinearGaussian

import gpin
from gpin._core.seeding import seeded
from gpin.data import Batches
from gpin.inference import METHODS
from gpin.training import Epoch, History
from gpin.training.checkpoints import Checkpoint, Checkpoints
from gpin.training.processes import Processes
from gpin.training.trainer import Trainer
from gpin.training.validation import SAMPLES, training_bound, validate, warning_of_overfitting

ALONE = Processes("cpu")


@pytest.mark.parametrize("method", METHODS)
def test_the_score_is_the_importance_weighted_bound_of_four_samples(method):
    vae, x = LinearGaussian.random().vae(method, width=8).eval(), LinearGaussian.random().sample(50)
    vae.prepare(x)
    score, elbo = validate(vae, Batches(x, 128), 3, ALONE)
    with seeded(3):
        expected = vae.log_likelihood(x, SAMPLES)
    assert score == pytest.approx(expected.mean, rel=1e-6)
    assert elbo == pytest.approx(expected.elbo.mean().item(), rel=1e-6)
    assert validate(vae, Batches(x, 128), 3, ALONE) == (score, elbo)  # the same noise
    assert validate(vae, Batches(x, 128), 4, ALONE) != (score, elbo)


def test_with_the_true_posterior_the_score_is_the_log_likelihood(double, monkeypatch):
    truth = LinearGaussian.random()
    vae, x = truth.vae("vae", known=True).eval(), truth.sample(200)
    monkeypatch.setattr(vae.inference, "forward", lambda x, model: truth.posterior(x))
    score, elbo = validate(vae, Batches(x, 64), 0, ALONE)
    assert score == pytest.approx(truth.log_prob(x).mean().item(), abs=1e-9)
    assert elbo == pytest.approx(score, abs=1e-9)


def test_the_score_does_not_count_the_kl_of_random_weights(double):
    x = LinearGaussian.random().sample(40)
    vae = LinearGaussian.random().vae("gp", width=8).eval()
    vae.prepare(x[:5])  # five training points, which share the KL of all weights
    _, elbo = validate(vae, Batches(x, 64), 0, ALONE)
    bound = training_bound(vae, Batches(x, 64), 0, ALONE)
    assert bound == pytest.approx(elbo - vae.elbo(x).weight_kl.mean().item(), abs=2)
    assert elbo - bound > 10


def epoch(train, validation, score=None, stage="all"):
    return Epoch(train, validation, 1.0, stage=stage, score=validation + 5 if score is None else score)


RISING = [epoch(10.0 * n, 9.0 * n) for n in range(4)]
PARTING = [*RISING, *(epoch(30 + 10.0 * n, 27 - 2.0 * n) for n in range(1, 7))]


def test_training_and_validation_that_part_are_named_once():
    said = [warning_of_overfitting(PARTING[:count]) for count in range(len(PARTING) + 1)]
    assert [sentence is not None for sentence in said] == [False] * 9 + [True, False]
    assert said[9].startswith(
        "training and validation diverge: from epoch 4 to 9 the training ELBO rose from 30.0 to 80.0 nats, but the "
        "validation score fell from 32.0 to 22.0 nats; the best weights, of epoch 4, are kept"
    )
    assert "\n" not in said[9]
    assert all(name in said[9] for name in ("patience", "augmentation", "weight_decay", "ema", "improve"))


def test_late_in_training_a_better_epoch_may_take_longer_to_come():
    rising = [epoch(10.0 * n, 9.0 * n) for n in range(31)]
    parting = [*rising, *(epoch(300 + 10.0 * n, 270 - 2.0 * n) for n in range(1, 12))]
    said = [warning_of_overfitting(parting[:count]) is not None for count in range(len(parting) + 1)]
    assert said.index(True) == 31 + 10  # a third of the 30 epochs before the best


@pytest.mark.parametrize(
    "epochs",
    [
        RISING,
        [*RISING, *(epoch(30.0 - n, 27.0 - 2 * n) for n in range(1, 6))],  # both fall: not overfitting
        [*RISING, *(epoch(30.0 + n, 27.0 - 2 * n, stage="next") for n in range(1, 6))],  # too few in their stage
        [*RISING, *(epoch(30.0 + 10 * n, 27.0 + (-1) ** n) for n in range(1, 9))],  # up and down
        [*RISING, *(epoch(30.0 + 10 * n, 26.9) for n in range(1, 9))],  # a tenth of a nat
        [epoch(n - 50.0, -2.0 * n) for n in range(10)],  # the training ELBO is still below that of validation
        [epoch(10.0 * n, 10.0 * n, score=30.0 - n) for n in range(8)],  # the ELBO does not part from that of training
    ],
)
def test_other_trainings_are_not_warned_of(epochs):
    assert all(warning_of_overfitting(epochs[:count]) is None for count in range(len(epochs) + 1))


def test_overfitting_is_said_through_the_channel_of_messages(monkeypatch):
    said, scores = [], iter([-50.0, -40.0, -51.0, -52.0, -53.0, -54.0, -55.0, -56.0])
    monkeypatch.setattr("gpin.training.trainer.validate", lambda *arguments: (next(scores),) * 2)
    x = LinearGaussian.random().sample(200)
    vae = gpin.build((8,), "vae", 2, architecture={"width": 16}, seed=0)
    options = {"epochs": 8, "batch_size": 16, "learning_rate": 3e-3, "progress": False, "tell": said.append}
    gpin.fit(vae, x, x[:20], **options, on_epoch=lambda number, epoch: said.append(number))
    assert [one for one in said if isinstance(one, int)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert said[6].startswith("training and validation diverge: from epoch 2 to 7 ")  # before the call after epoch 7
    assert len(said) == 9


def test_the_best_epoch_is_that_of_the_score(monkeypatch):
    scores = iter([1.0, 3.0, 2.0])
    monkeypatch.setattr("gpin.training.trainer.validate", lambda *arguments: (next(scores), -1.0))
    x = torch.rand(20, 6)
    history = gpin.fit(gpin.build((6,), "vae", 2, seed=0), x, x[:5], epochs=3, progress=False)
    assert (history.best, history.scores, history.validation) == (2, [1.0, 3.0, 2.0], [-1.0] * 3)


# Runs of versions that had no score ---------------------------------------------------------------


def test_a_run_that_was_begun_without_a_score_goes_on_without_one(tmp_path, monkeypatch):
    """As the version that began it would have gone on: by the bound of the method, and without a score in its files."""
    x = torch.rand(40, 6)
    options = {"epochs": 4, "batch_size": 16, "progress": False, "checkpoint_seconds": 0}

    def train(folder):
        vae = gpin.build((6,), "gp", 2, architecture={"width": 8}, seed=0)
        return gpin.fit(vae, x, x[:10], folder=folder, **options), vae

    with monkeypatch.context() as before:
        before.setattr(Trainer, "__setattr__", _unscored)
        old, expected = train(tmp_path / "whole")
        step = Trainer._step

        def stopping(self, *arguments):
            if self.updates == 5:
                raise KeyboardInterrupt
            return step(self, *arguments)

        before.setattr(Trainer, "_step", stopping)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run")
    kept = Checkpoints(tmp_path / "run" / "checkpoints")
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    checkpoint = kept.latest(pytest.fail)
    record = {name: value for name, value in checkpoint.record.items() if name != "scored"}
    os.remove(newest)
    kept.write(record["updates"], Checkpoint(checkpoint.tensors, record))
    history, vae = train(tmp_path / "run")
    assert history.scores == [None] * 4
    assert (history.validation, history.best) == (old.validation, old.best)
    assert all(torch.equal(a, b) for a, b in zip(vae.parameters(), expected.parameters(), strict=True))
    assert "score" not in json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])


def _unscored(self, name, value):
    object.__setattr__(self, name, False if name == "scored" else value)


def test_a_history_without_scores_is_read_and_written_as_it_was():
    record = {
        "best": 1,
        "stopped": False,
        "epochs": [{"train": 1.0, "validation": 2.0, "seconds": 3.0, "learning_rate": 0.1, "stage": "all"}],
    }
    history = History.from_record(record)
    assert history.scores == [None]
    assert history.record() == record
    scored = History([replace(history.epochs[0], score=2.5)], 1)
    assert History.from_record(scored.record()) == scored
    assert scored.rows()[0]["score"] == 2.5
    assert math.isclose(scored.scores[0], 2.5)
