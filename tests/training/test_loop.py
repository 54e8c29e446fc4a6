import inspect

import numpy as np
import pytest
import torch
from linear_gaussian import LinearGaussian
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import gpin
from gpin.data import Batches, Rows, Scaling, hold_out
from gpin.training import TrainingConfig
from gpin.training.processes import Processes
from gpin.training.validation import validate

SHAPE = (8,)


class _Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class _Endless(IterableDataset):
    def __iter__(self):
        return iter(())


def _never(number, epoch):
    raise AssertionError("an epoch was trained before the mistake was seen")


@pytest.fixture
def data():
    return LinearGaussian.random().sample(300)


def small(method="gp", **options):
    return gpin.build(SHAPE, method, 2, architecture={"width": 16}, seed=0, **options)


@pytest.mark.parametrize("method", ["vae", "gp"])
def test_training_raises_the_bound_and_keeps_the_best_epoch(method, data):
    vae, seen = small(method), []
    history = gpin.fit(
        vae,
        data,
        data[:60],
        epochs=12,
        batch_size=32,
        learning_rate=3e-3,
        progress=False,
        on_epoch=lambda n, e: seen.append((n, e)),
    )
    assert history.train[-1] > history.train[0] + 1
    assert [n for n, _ in seen] == list(range(1, 13))
    best = history.epochs[history.best - 1]
    assert best.score == max(history.scores)
    assert not vae.training
    score, elbo = validate(vae, Batches(data[:60], 32), 0, Processes("cpu"))
    assert (score, elbo) == (pytest.approx(best.score, abs=1e-6), pytest.approx(best.validation, abs=1e-6))


def test_the_best_epoch_wins_even_when_it_is_not_the_last(data):
    vae = small("vae")
    history = gpin.fit(vae, data, data[:60], epochs=6, batch_size=32, learning_rate=3e-3, progress=False)
    start = history.validation[-1]
    worse = gpin.fit(vae, data, data[:60], epochs=4, learning_rate=0.1, seed=1, progress=False)
    assert worse.best < 4
    assert worse.validation[-1] < start


def test_the_same_seed_gives_the_same_bits_and_leaves_the_global_state_alone(data):
    torch.manual_seed(9)
    expected = torch.rand(2)
    torch.manual_seed(9)
    runs = []
    for seed in (3, 3, 4):
        vae = small()
        gpin.fit(vae, data, epochs=2, seed=seed, progress=False)
        runs.append(torch.cat([p.detach().flatten() for p in vae.parameters()]))
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: x.numpy(),
        lambda x: x.numpy().astype(np.float64),
        lambda x: TensorDataset(x, torch.zeros(len(x))),
        lambda x: TensorDataset(x),
        lambda x: DataLoader(TensorDataset(x), batch_size=32, shuffle=True),
    ],
    ids=["tensor", "array", "float64 array", "labelled dataset", "dataset", "loader"],
)
def test_data_comes_in_many_forms(wrap, data):
    vae = small()
    gpin.fit(vae, wrap(data), data[:20], epochs=1, progress=False)
    assert vae.inference.training_size == 300
    torch.testing.assert_close(vae.inference.base.trunk.center, data.mean(0))


def test_without_validation_data_a_tenth_is_held_out(data):
    for form in (data, data.numpy(), TensorDataset(data)):
        vae = small()
        gpin.fit(vae, form, epochs=1, progress=False)
        assert vae.inference.training_size == 270


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"epochs": 0}, "option 'epochs' of training must be greater than or equal to 1"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"learning_rate": float("inf")}, "learning_rate"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"seed": "a"}, "seed"),
        ({"seed": -1}, "seed"),
        ({"vae": "model"}, "must be a gpin.VAE, got str"),
        ({"x_train": torch.tensor(3.0)}, "batch dimension"),
        ({"x_train": np.array([["a"]] * 20)}, "must hold numbers"),
        ({"x_train": [{"x": 1}] * 20}, "got list"),
        ({"x_train": _Items([{"x": 1}] * 20)}, "items of the Dataset"),
        ({"x_train": _Items([torch.rand(n + 1) for n in range(20)])}, "items of the Dataset"),
        ({"x_train": _Endless()}, "must have a length"),
        ({"x_val": torch.rand(5, 7)}, "shape"),
        ({"x_val": torch.full((5, 8), torch.nan)}, "NaN"),
        ({"x_train": torch.rand(0, 8)}, "x_val is needed|empty"),
        ({"x_train": torch.rand(1, 8)}, "x_val is needed"),
        ({"x_train": [[1.0]] * 9}, "got list"),
        ({"x_train": torch.rand(20, 7)}, "shape"),
        ({"x_train": torch.full((20, 8), torch.nan)}, "NaN"),
        ({"x_val": torch.rand(0, 8)}, "empty"),
    ],
)
def test_bad_arguments_are_named_in_one_line(arguments, said, data):
    vae = small()
    before = [p.clone() for p in vae.parameters()]
    with pytest.raises(gpin.InputError, match=said) as caught:
        gpin.fit(**{"vae": vae, "x_train": data, "progress": False, "on_epoch": _never, **arguments})
    assert "\n" not in str(caught.value)
    assert all(torch.equal(a, b) for a, b in zip(before, vae.parameters(), strict=True))


def test_a_loss_that_is_not_finite_stops_training_and_keeps_the_last_good_weights(data):
    vae, states = small("vae"), []

    def spoil(number, epoch):
        states.append({name: p.clone() for name, p in vae.state_dict().items()})
        if number == 2:
            with torch.no_grad():
                vae.inference.head.weight[0, 0] = torch.nan

    with pytest.raises(gpin.TrainingError, match=r"epoch 3, batch 1: .*inference\.head\.weight") as caught:
        gpin.fit(vae, data, data[:60], epochs=5, learning_rate=3e-3, progress=False, on_epoch=spoil)
    assert "\n" not in str(caught.value)
    assert all(torch.isfinite(p).all() for p in vae.parameters())
    assert any(all(torch.equal(p, state[name]) for name, p in vae.state_dict().items()) for state in states)


def test_a_validation_bound_that_is_not_finite_stops_training(data):
    vae = small("vae")
    gpin.fit(vae, data, data[:60], epochs=1, progress=False)
    good = [p.clone() for p in vae.parameters()]
    with pytest.raises(gpin.TrainingError, match="epoch 1: the validation bound is -inf"):
        gpin.fit(vae, data, torch.full((5, 8), 1e30), epochs=2, learning_rate=1e-9, progress=False)
    for before, after in zip(good, vae.parameters(), strict=True):
        torch.testing.assert_close(before, after)


@pytest.mark.parametrize("turn", [lambda x: x[::-1], lambda x: x.astype(">f4"), lambda x: x.astype(np.longdouble)])
def test_arrays_of_any_layout_are_trained_on(turn, data):
    vae = small("vae")
    gpin.fit(vae, turn(data.numpy()), data[:20], epochs=1, progress=False)
    torch.testing.assert_close(vae.inference.trunk.center, data.mean(0))


def test_a_read_only_array_is_trained_on(data):
    array = data.numpy().copy()
    array.flags.writeable = False
    gpin.fit(small("vae"), array, data[:20], epochs=1, progress=False)
    assert not array.flags.writeable


def test_rows_that_break_the_loss_are_named(data):
    vae = small("vae")
    vae.prepare(data)
    data[17] = 1e20  # finite, but its square is not
    with pytest.raises(gpin.TrainingError, match=r"rows of the data at fault: \[17\]"):
        gpin.fit(vae, data, data[:10], epochs=1, progress=False)


@pytest.mark.parametrize("kind", ["tensor", "dataset", "rows"])
def test_rows_are_counted_as_in_the_users_data(kind, data):
    if kind == "rows":
        numbers = np.random.default_rng(0).permutation(len(data))[:200]
        given = Rows(data.numpy(), numbers, Scaling(kind="none"))
    else:
        given = _Items(list(data)) if kind == "dataset" else data
    generator = torch.Generator().manual_seed(1)
    for part in hold_out(given, generator):
        batches = Batches(part, 16, generator)
        for x, rows in batches:
            assert torch.equal(x, data[batches.original(rows)])


def test_the_row_at_fault_is_named(data):
    data = data.clone()
    data[73] = 2.5e19
    vae = gpin.build(SHAPE, "vae", 2, likelihood={"variance": "fixed", "initial_variance": 1.0}, seed=0)
    rows = Rows(data.numpy(), np.arange(70, 80), Scaling(kind="none"))
    with pytest.raises(gpin.TrainingError, match=r"rows of the data at fault: \[73\]"):
        gpin.fit(vae, rows, data[:5], epochs=1, progress=False)


def test_gradients_that_are_too_large_together_are_told_from_those_that_are_not_finite(data):
    data = data.clone()
    data[73] = 1e19
    vae = small("vae")
    with pytest.raises(gpin.TrainingError, match=r"gradients are too large; first parameter at fault: \w+"):
        gpin.fit(vae, data, data[:5], epochs=1, progress=False)


def test_the_keywords_of_fit_are_the_options_of_training_with_their_defaults():
    parameters = inspect.signature(gpin.fit).parameters
    automatic = TrainingConfig(epochs="auto", batch_size="auto", learning_rate="auto", patience="auto")
    assert {name: parameters[name].default for name in TrainingConfig.model_fields} == automatic.model_dump()
    with pytest.raises(TypeError, match="epoch"):
        gpin.fit(small(), torch.rand(20, 8), epoch=3)


def _raise(number, epoch):
    if number == 2:
        raise gpin.StopTraining


@pytest.mark.parametrize(
    "on_epoch",
    [lambda number, epoch: number < 2, lambda number, epoch: np.bool_(number < 2), _raise],
    ids=["False", "numpy's False", "StopTraining"],
)
def test_a_callback_ends_training_with_the_best_weights_and_a_finished_run(on_epoch, data, tmp_path):
    vae = small("vae")
    options = {"epochs": 9, "batch_size": 32, "folder": tmp_path, "progress": False}
    history = gpin.fit(vae, data, data[:60], on_epoch=on_epoch, **options)
    assert len(history.epochs) == 2
    assert history.stopped
    assert not vae.training
    assert (tmp_path / "metrics.parquet").is_file()
    assert validate(vae, Batches(data[:60], 32), 0, Processes("cpu"))[0] == pytest.approx(max(history.scores))
    again = small("vae")
    assert gpin.fit(again, data, data[:60], on_epoch=_never, **options) == history  # nothing is trained again
    assert all(torch.equal(a, b) for a, b in zip(vae.state_dict().values(), again.state_dict().values(), strict=True))


def test_a_callback_that_says_nothing_or_speaks_too_late_stops_nothing(data):
    for on_epoch in (lambda number, epoch: None, lambda number, epoch: 0, lambda number, epoch: number < 3):
        history = gpin.fit(small("vae"), data, data[:60], epochs=3, on_epoch=on_epoch, progress=False)
        assert len(history.epochs) == 3
        assert not history.stopped


def test_another_error_of_the_callback_is_the_users_own(data, tmp_path):
    def fail(number, epoch):
        raise KeyError("mine")

    options = {"epochs": 2, "folder": tmp_path, "progress": False}
    with pytest.raises(KeyError, match="mine"):
        gpin.fit(small("vae"), data, data[:60], on_epoch=fail, **options)
    assert len(gpin.fit(small("vae"), data, data[:60], **options).epochs) == 2


def test_precision_and_device_are_chosen_when_building_training_or_loading(data, tmp_path):
    vae = small("vae", dtype="float64", device="cpu")
    assert {p.dtype for p in vae.parameters()} == {torch.float64}
    vae = small("vae")
    gpin.fit(vae, data, data[:60], epochs=1, dtype=torch.float64, folder=tmp_path / "run", progress=False)
    assert {p.dtype for p in vae.parameters()} == {torch.float64}
    with pytest.raises(gpin.InputError, match="holds another run"):  # which was in another precision
        gpin.fit(small("vae"), data, data[:60], epochs=1, folder=tmp_path / "run", progress=False)
    vae.save(tmp_path / "model")
    assert next(gpin.load(tmp_path / "model").parameters()).dtype == torch.float64
    assert next(gpin.load(tmp_path / "model", dtype="float32", device="cpu").parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"dtype": "float16"}, "dtype must be torch.float32 or torch.float64, got 'float16'"),
        ({"dtype": torch.int64}, "dtype must be"),
        ({"device": "gpu"}, "there is no device 'gpu' here"),
        ({"device": "meta"}, "there is no device 'meta' here"),
        ({"device": [1]}, "there is no device"),
    ],
)
def test_a_precision_or_a_device_that_is_none_is_refused(arguments, said, data):
    for call in (lambda: small("vae", **arguments), lambda: gpin.fit(small("vae"), data, **arguments)):
        with pytest.raises(gpin.InputError, match=said):
            call()


def test_on_epoch_must_be_callable():
    with pytest.raises(gpin.InputError, match="on_epoch"):
        gpin.fit(gpin.build((5,), "vae", latent_dim=2), torch.rand(8, 5), epochs=1, on_epoch=3, progress=False)
