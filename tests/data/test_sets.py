import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import gpin
from gpin.data import (
    Batches,
    DataConfig,
    Rows,
    Scaling,
    Source,
    SourceConfig,
    as_model_data,
    split_and_scale,
    split_rows,
)

RNG = np.random.default_rng(0)
NONE = Scaling(kind="none")


def source(values, test=None, columns=None):
    kind = "table" if values.ndim == 2 else "images"
    return Source("some", "some.npy", SourceConfig(), values, kind, test, columns)


# Rows ----------------------------------------------------------------------------------------------


def test_rows_are_scaled_when_they_are_read_in_any_order():
    values, rows = RNG.integers(0, 256, (20, 1, 2, 3), dtype=np.uint8), np.array([3, 19, 0, 7])
    data = Rows(values, rows, Scaling(kind="pixels", scale=(255.0,)))
    expected = torch.from_numpy(values[rows].astype(np.float32) / 255)
    assert (len(data), data.shape) == (4, (1, 2, 3))
    torch.testing.assert_close(torch.stack([data[i] for i in range(4)]), expected)
    for order in ([2, 0, 3, 1], [0, 0, -1], torch.tensor([3, 1]), []):
        torch.testing.assert_close(data.__getitems__(order), expected[np.asarray(order, int)])
    for part in (slice(2), slice(1, 3), slice(None), slice(None, None, -1), slice(9), slice(4, 9)):
        torch.testing.assert_close(data[part], expected[list(range(4))[part]])
    with pytest.raises(IndexError):
        data[4]
    loader = DataLoader(data, batch_size=3, collate_fn=torch.as_tensor)
    torch.testing.assert_close(torch.cat(list(loader)), expected)


def test_parts_keep_the_names_of_their_instances():
    values, names = RNG.normal(size=(20, 2)), tuple(f"{i}.png" for i in range(20))
    data = split_and_scale(replace(source(values), names=names), DataConfig())
    for part in (data.train, data.validation, data.test, as_model_data(data.source, (2,), data.scaling)):
        assert part.names == part.chosen(np.array([1, 0])).names == names
    chosen = data.test.chosen(np.array([1, 0]))
    assert chosen.rows.tolist() == data.test.rows[[1, 0]].tolist()
    torch.testing.assert_close(chosen[:], data.test[:2].flip(0))


class _Counting(Rows):
    reads = 0

    def __getitems__(self, indices):
        self.reads += 1
        return super().__getitems__(indices)


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(data, list(range(10)))])
def test_batches_read_rows_together(wrap):
    data = _Counting(RNG.normal(size=(10, 2)), np.arange(10), NONE)
    batches = list(Batches(wrap(data), 4, torch.Generator().manual_seed(0)))
    assert data.reads == 3
    for x, rows in batches:
        torch.testing.assert_close(x, torch.from_numpy(data.values[rows].astype(np.float32)))
    assert sorted(torch.cat([rows for _, rows in batches]).tolist()) == list(range(10))


# Parts ---------------------------------------------------------------------------------------------


def test_a_source_is_split_eighty_ten_ten_without_a_copy():
    values = RNG.normal(size=(100, 3))
    data = split_and_scale(source(values), DataConfig(seed=2))
    parts = (data.train, data.validation, data.test)
    assert [len(part) for part in parts] == [80, 10, 10]
    assert sorted(np.concatenate([part.rows for part in parts])) == list(range(100))
    assert all(part.values is values for part in parts)
    np.testing.assert_allclose(data.scaling.offset, values[data.train.rows].mean(0))
    other = split_and_scale(source(values), DataConfig(seed=3))
    assert not np.array_equal(other.train.rows, data.train.rows)


def test_a_test_part_of_its_own_is_kept():
    values, test = RNG.normal(size=(100, 3)), RNG.normal(size=(7, 3))
    data = split_and_scale(source(values, test), DataConfig())
    assert [len(part) for part in (data.train, data.validation, data.test)] == [90, 10, 7]
    assert data.test.values is test
    assert np.array_equal(split_rows(100, True, 0).train, data.train.rows)


def test_a_limit_takes_training_rows_at_random_and_leaves_the_other_parts_alone():
    values = RNG.normal(size=(1000, 3))
    all_, some, same, other = (
        split_and_scale(source(values), DataConfig(seed=seed, limit=limit))
        for seed, limit in ((0, None), (0, 50), (0, 50), (1, 50))
    )
    assert len(some.train) == 50
    assert set(some.train.rows) < set(all_.train.rows)
    assert some.train.rows.max() > 500
    assert np.array_equal(some.train.rows, same.train.rows)
    assert not np.array_equal(some.train.rows, other.train.rows)
    assert np.array_equal(some.validation.rows, all_.validation.rows)
    np.testing.assert_allclose(some.scaling.offset, values[some.train.rows].mean(0))
    assert len(split_and_scale(source(values), DataConfig(limit=10**6)).train) == 800


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_every_part_is_checked(part):
    values = RNG.normal(size=(50, 3))
    row = getattr(split_rows(50, False), part)[0]
    values[row, 1] = np.inf
    for scaling in (None, NONE):
        with pytest.raises(gpin.InputError, match=f"some holds inf in row {row}, column 'b'"):
            split_and_scale(source(values, columns=("a", "b", "c")), DataConfig(), scaling)


def test_a_scaling_that_is_given_is_used_and_must_fit():
    values = RNG.normal(size=(50, 3))
    given = Scaling(kind="standardised", offset=(1.0, 2.0, 3.0), scale=(4.0, 5.0, 6.0))
    data = split_and_scale(source(values), DataConfig(), given)
    torch.testing.assert_close(
        data.train[0].double(),
        torch.from_numpy((values[data.train.rows[0]] - [1, 2, 3]) / [4, 5, 6]),
        rtol=1e-6,
        atol=1e-6,
    )
    with pytest.raises(gpin.InputError, match="binary data must be 0 or 1"):
        split_and_scale(source(values), DataConfig(), Scaling(kind="binary"))
    with pytest.raises(gpin.InputError, match="the data has 2 columns, but the scaling is for 3"):
        split_and_scale(source(values[:, :2]), DataConfig(), given)


@pytest.mark.parametrize("count", [1, 9])
def test_too_few_instances_are_refused(count):
    with pytest.raises(gpin.InputError, match=f"only {count} instances?: at least ten are needed for training, val"):
        split_and_scale(source(RNG.normal(size=(count, 3))), DataConfig())


def test_the_config_checks_itself():
    for wrong in ({"limit": 0}, {"seed": -1}, {"scaling": "other"}, {"source": {"keys": 3}}):
        with pytest.raises(gpin.InputError):
            DataConfig.parse(wrong, "data")
    config = DataConfig(source=SourceConfig(columns=("a",)), limit=5)
    assert DataConfig.model_validate_json(config.model_dump_json()) == config


# Data for a model ----------------------------------------------------------------------------------


def test_columns_are_matched_by_name():
    values = RNG.normal(size=(5, 3))
    data = as_model_data(source(values, columns=("a", "b", "c")), (2,), NONE, ("c", "a"))
    torch.testing.assert_close(data[:], torch.from_numpy(values[:, [2, 0]].astype(np.float32)))
    with pytest.raises(gpin.InputError, match=r"some has no column 'bb', which .*: did you mean 'b'\?"):
        as_model_data(source(values, columns=("a", "b", "c")), (2,), NONE, ("a", "bb"))
    same = source(values, columns=("a", "b", "c"))
    assert as_model_data(same, (3,), NONE, ("a", "b", "c")).values is values
    assert len(as_model_data(source(values), (3,), NONE, ("x", "y", "z"))) == 5  # it has no names to match


def test_a_test_part_follows_the_rest():
    values, test = RNG.normal(size=(5, 3)), RNG.normal(size=(2, 3))
    data = as_model_data(source(values, test), (3,), NONE)
    assert np.array_equal(data.values, np.concatenate([values, test]))


@pytest.mark.parametrize(
    ("values", "shape", "scaling", "said"),
    [
        (np.zeros((3, 4)), (5,), NONE, "holds instances of 4 numbers, but the model was trained on instances of 5"),
        (np.zeros((3, 3, 8, 8)), (1, 8, 8), NONE, r"images of 3×8×8 .*trained on images of 1×8×8 .*of that shape$"),
        (np.zeros((3, 4)), (1, 2, 2), NONE, "instances of 4 numbers, but .*images of 1×2×2"),
        (np.full((3, 4), np.nan), (4,), NONE, "has missing values .the first is nan in row 0, column 1"),
        (np.full((3, 1, 2, 2), 300), (1, 2, 2), Scaling(kind="pixels", scale=(255.0,)), "holds 300 .*0 to 255"),
        (np.full((3, 4), 0.5), (4,), Scaling(kind="binary"), r"holds 0\.5 in row 0.*0 or 1"),
    ],
)
def test_data_that_does_not_fit_the_model_is_refused(values, shape, scaling, said):
    with pytest.raises(gpin.InputError, match=said) as caught:
        as_model_data(source(values), shape, scaling)
    assert "\n" not in str(caught.value)


# Memory --------------------------------------------------------------------------------------------

LARGE = """
import resource, sys
import numpy as np
from gpin.data import Batches, DataConfig, open_source, split_and_scale
import torch

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10

before = peak()
source = open_source(sys.argv[1])
data = split_and_scale(source, DataConfig(limit=2000))
source.fingerprint()
count = sum(len(x) for x, _ in Batches(data.train, 100, torch.Generator().manual_seed(0)))
print(data.scaling.kind, count, before, peak())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux tells it")
def test_an_array_of_three_gigabytes_stays_on_disk(tmp_path):
    path = tmp_path / "large.npy"
    values = np.lib.format.open_memmap(path, "w+", np.uint8, (3 * 2**20, 1, 32, 32))  # zeros, without room on disk
    values[:: 2**18] = 200
    del values
    done = subprocess.run([sys.executable, "-c", LARGE, str(path)], capture_output=True, text=True, check=True)
    kind, count, before, peak = done.stdout.split()
    assert (kind, int(count)) == ("pixels", 2000)
    assert float(peak) - float(before) < 500  # MiB, of 3,072
