"""The findings of a page, and the commands that it advises."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gpin.runs.report.commands import Command
from gpin.runs.report.latent import Codes
from gpin.runs.report.verdict import _likelihood, dimensions, gap, training
from gpin.runs.settings import run_settings
from gpin.training import Epoch, History

RUN = SimpleNamespace(
    folder=Path("runs/digits-vae"), location="digits", start=None, settings=run_settings({"epochs": 20})
)


EARLY = "Training ended before it had flattened."


def trained(scores, best=None, finished=True, run=RUN):
    """A run with these validation scores."""
    epochs = [Epoch(train=0.0, validation=score - 1, seconds=1.0, score=score) for score in scores]
    best = 1 + int(np.argmax(scores)) if best is None else best
    return SimpleNamespace(history=History(epochs, best), finished=finished, run=run, vae=SimpleNamespace(latent_dim=4))


@pytest.mark.parametrize(
    ("scores", "title", "text", "command"),
    [
        ([1, 2, 3, 4], EARLY, "Epoch 4 of 4 was the best, and the validation score rose by 1.00 nats", "--epochs 8"),
        ([1], EARLY, "The only epoch was the best: longer", "--epochs 2"),
        ([*range(19), 17], EARLY, "Epoch 19 of 20 was the best, and the validation score rose by 3.00", "--epochs 40"),
        ([*range(18), 16], "Training has flattened.", "Epoch 18 of 19", None),  # of 20: patience ended it
        ([0, *[100] * 17, 100.5, 100], "Training has flattened.", "Epoch 19 of 20", None),
        ([1, 5, 4, 4.9], "Training has flattened.", "Epoch 2 of 4 was the best", None),
        ([1, 9, 8, 7, 6, 5, 4], "The model began to overfit.", "fallen by 5.00 nats", None),
    ],
)
def test_training_is_judged_by_its_last_epochs(scores, title, text, command):
    found = training(trained(scores))
    assert found.title == title
    assert text in found.text
    config = "gpin train digits --config runs/digits-vae/run.json"
    assert found.command == (f"{config} {command}" if command else "")


def test_training_that_is_not_finished_or_not_known():
    found = training(trained([1, 2], finished=False))
    assert "2 of 20 epochs" in found.text
    assert found.command == "gpin train digits --config runs/digits-vae/run.json"
    assert training(trained([], best=0)) is None
    started = SimpleNamespace(**{**vars(RUN), "start": "1234"})
    assert training(trained([1, 2], run=started)).command == ""  # needs its start, which is not known


def test_a_collapsed_posterior_and_the_number_of_dimensions():
    random = np.random.default_rng(0)
    one = trained([1, 2])

    def judged(scale, std):
        return dimensions(one, Codes(np.arange(99), random.standard_normal((99, 4)) * scale, np.full((99, 4), std)))

    collapsed = judged(0.01, 1.0)
    assert collapsed.title == "The posterior has collapsed."
    assert collapsed.command.endswith("--set kl_warmup=4")
    assert judged(1.0, 0.1).title == "All 4 latent dimensions are active."
    assert judged(1.0, 0.1).command.endswith("--latent-dim 8")
    assert judged([1.0, 1.0, 1.0, 0.2], 1.0).command == ""  # all active, but one says next to nothing
    for scale in (0.2, [0.2, 0.0, 0.0, 0.0]):  # above the threshold of activity, but without information
        unused = judged(scale, 1.0)
        assert (unused.title, unused.kind) == ("The posterior has collapsed.", "bad")
        assert "say only 0.0" in unused.text
    assert judged([1.0, 0.0, 0.0, 0.0], 0.5).title == "1 of 4 latent dimensions is active."


def test_the_gap_says_what_closes_it():
    comparison = SimpleNamespace(noun="image")

    def judged(amortization, approximation, **collapsed):
        parts = {"amortization_gap": amortization, "approximation_gap": approximation}
        values = {name: torch.full((9,), value) for name, value in parts.items()}
        values |= {"inference_gap": sum(values.values()), "refined_khat": torch.zeros(9)}
        return gap(comparison, SimpleNamespace(of_chosen=values, run=RUN), **collapsed)

    assert judged(0.02, 0.03).kind == "good"
    assert judged(0.02, 0.03, collapsed=True).kind == "plain"
    assert judged(0.02, 0.3).command == ""  # a better encoder does not close it
    found = judged(2.0, 0.3)
    assert (found.kind, found.command) == ("bad", "gpin improve runs/digits-vae")
    assert found.title == "The encoder loses 2.30 ± 0.00 nats per image."
    assert "2.00 nats of it are the amortization gap" in found.text


@pytest.mark.parametrize(
    ("encoder", "refined", "count", "kind", "text"),
    [
        (0.1, 0.1, 40, "good", "bits per dimension, on all 40 rows of the test part. k̂ is below 0.7"),
        (0.9, 0.1, 40, "good", "bits per dimension, on all 40 rows"),
        (0.1, 0.9, 40, "good", "estimated with the encoder’s proposals, on all 40 rows"),
        (0.9, 0.9, 40, "plain", "k̂ is above 0.7 for 100 % of the rows, so this is a lower bound"),
        (0.1, 0.1, 9, "plain", "The mean is over only 9 rows, which allow no firm conclusion."),
    ],
)
def test_the_verdict_is_that_of_the_estimate_that_can_be_trusted(encoder, refined, count, kind, text):
    columns = {name: torch.arange(count) / count for name in ("log_likelihood", "bits_per_dim")} | {
        "khat": torch.full((count,), encoder)
    }
    better = {f"refined_{name}": values + 1 for name, values in columns.items()}
    better["refined_khat"] = torch.full((count,), refined)
    parts = {
        name: SimpleNamespace(khat=torch.full((count,), khat), lower_bound=khat > 0.7)
        for name, khat in (("encoder", encoder), ("refined", refined))
    }
    one = SimpleNamespace(
        run=RUN, of_chosen=columns | better, encoder=SimpleNamespace(columns=columns), likelihood=parts.get
    )
    comparison = SimpleNamespace(
        noun="row",
        nouns="rows",
        samples=100,
        data=SimpleNamespace(test=range(count)),
        several=lambda number: f"{number} rows",
    )
    found = _likelihood(comparison, one)
    assert found.kind == kind
    assert text in found.text
    assert ("≥" in found.title) == (encoder > 0.7 and refined > 0.7)


def test_a_command_is_quoted():
    said = str(Command("train", ["my data.csv"], {"latent_dim": 2, "set": "a=[1, 2]", "json": None}))
    assert said == "gpin train 'my data.csv' --latent-dim 2 --set 'a=[1, 2]' --json"
