"""How long training lasts, and with which batch size and rate, if the user does not say; and what limits it."""

import math

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import gpin
from gpin._core.errors import InputError
from gpin.training import TrainingConfig, progress

AUTO = dict.fromkeys(("epochs", "batch_size", "learning_rate", "patience"), "auto")


@pytest.fixture
def model():
    return gpin.build((3,), "vae", 2, architecture={"width": 6}, seed=0)


@pytest.fixture
def x():
    return torch.randn(48, 3, generator=torch.Generator().manual_seed(0))


def ignore(sentence):
    """Ignore what training says."""


def test_a_warm_up_longer_than_the_chosen_epochs_is_named_in_one_line():
    with pytest.raises(InputError, match="kl_warmup=200 must not exceed the number of epochs, 48"):
        TrainingConfig(**AUTO, kl_warmup=200.0).resolved(54_000)


@pytest.mark.parametrize(
    ("size", "batch_size", "learning_rate", "steps"),
    [(2, 32, 1e-3, 1_000), (319, 32, 1e-3, 10_000), (10_000, 64, 1e-3, 10_000), (54_000, 128, 5e-4, 20_000)],
)
def test_what_is_chosen_by_the_size_of_the_data(size, batch_size, learning_rate, steps):
    chosen = TrainingConfig(**AUTO).resolved(size)
    assert (chosen.batch_size, chosen.learning_rate) == (batch_size, learning_rate)
    each = math.ceil(size / batch_size)
    assert steps <= chosen.epochs * each < steps + each
    assert chosen.patience == max(10, math.ceil(500 / each))
    assert not chosen.auto


def test_large_data_is_seen_at_least_ten_times():
    assert TrainingConfig(**AUTO).resolved(10**7).epochs == 10


def test_with_a_number_of_epochs_nothing_is_chosen():
    given = TrainingConfig(**{**AUTO, "epochs": 7}).resolved(100)
    assert given == TrainingConfig(epochs=7)
    assert (given.batch_size, given.learning_rate, given.patience) == (128, 5e-4, None)


def test_what_is_given_is_obeyed():
    options = {"batch_size": 10, "learning_rate": 0.1, "patience": None}
    chosen = TrainingConfig(epochs="auto", **options).resolved(100)
    assert chosen == TrainingConfig(epochs=1000, **options)


def test_a_budget_in_steps_is_rounded_up_to_whole_epochs():
    chosen = TrainingConfig(**{**AUTO, "steps": 21}).resolved(319)
    assert (chosen.epochs, chosen.steps, chosen.patience) == (3, None, 50)


def test_a_record_has_what_is_automatic_and_is_read_again():
    config = TrainingConfig(**AUTO, steps=5)
    record = config.model_dump(mode="json")
    assert {name: record[name] for name in AUTO} == AUTO
    assert TrainingConfig.parse(record, "training") == config
    assert config != TrainingConfig()
    assert "steps" not in TrainingConfig().model_dump(mode="json")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"epochs": 3, "steps": 5}, "two ways to say how long to train"),
        ({"epochs": "many"}, "option 'epochs' of training must be a valid integer, got 'many'"),
        ({"steps": 0}, "option 'steps' of training must be greater than or equal to 1, got 0"),
        ({"seed": "auto"}, "option 'seed' of training must be a valid integer"),
        ({"max_time": 0}, "max_time must be a positive number, got 0"),
    ],
)
def test_what_cannot_be_is_one_sentence(model, x, options, problem):
    with pytest.raises(InputError, match=problem):
        gpin.fit(model, x, **options)


def test_fit_stops_when_the_validation_score_no_longer_improves_and_says_what_it_chose(model, x):
    said = []
    noise = torch.zeros(4, 3)  # the model of x gives this validation data a score that soon falls
    history = gpin.fit(model, 10 * x, noise, tell=said.append, calibrate=False, learning_rate=0.1, patience=3)
    assert len(history.epochs) == history.best + 3 < 1000
    assert said[0] == "chosen by the size of the data: batches of 32 and at most 1,000 epochs of 2 steps"
    assert gpin.fit(model, x, x, epochs=1, tell=said.append, calibrate=False).best == 1
    assert len(said) == 1


def test_fit_counts_the_batches_of_a_loader(model, x):
    loader = DataLoader(TensorDataset(x), batch_size=8)
    history = gpin.fit(model, loader, x, steps=13, tell=ignore, calibrate=False)
    assert len(history.epochs) == 3


def test_time_that_is_up_pauses_training_and_the_same_call_resumes_to_the_same_bits(x, tmp_path):
    def fit(**options):
        vae = gpin.build((3,), "gp", 2, architecture={"width": 6}, seed=0)
        return gpin.fit(vae, x, x, epochs=2, batch_size=16, calibrate=False, **options), vae

    history, vae = fit()
    paused, _ = fit(folder=tmp_path, max_time=1e-9)
    assert paused.paused
    assert not paused.epochs  # one step was made, of three
    pauses = 1
    while paused.paused:
        paused, resumed = fit(folder=tmp_path, max_time=1e-9)
        pauses += paused.paused
    assert pauses == 6  # one after each step
    assert not history.paused
    assert paused.scores == history.scores
    assert resumed.checksum() == vae.checksum()


def test_lines_instead_of_a_bar_where_there_is_no_terminal(model, x, monkeypatch):
    said = []
    gpin.fit(model, x, x, epochs=2, tell=said.append, calibrate=False)
    assert said == []  # a minute has not passed
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    gpin.fit(model, x, x, epochs=2, tell=said.append, calibrate=False, progress=False)
    assert said == []
    gpin.fit(model, x, x, epochs=2, tell=said.append, calibrate=False)
    first, second = said
    assert first.startswith("epoch 1 of 2 · ELBO train −".replace("−", "-"))
    assert first.endswith(" · at most 0 min left")
    assert second.startswith("epoch 2 of 2 · ELBO train ")
    assert "left" not in second
