"""What a run is used for, without a command line: rows, scores and codes."""

import math
import os

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import gpin
from gpin._core.errors import InputError
from gpin._core.seeding import seeded
from gpin.data import Rows, Scaling, as_model_data, open_source
from gpin.inference import ELBO
from gpin.runs import apply as use
from gpin.runs.outputs import write_table

PLAIN = Scaling(kind="none")


@pytest.fixture
def rows():
    values = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    return Rows(values, np.arange(300), PLAIN)


def model(method="gp", **options):
    vae = gpin.build((3,), method, 2, seed=0, architecture={"width": 8}, **options)
    vae.prepare(torch.linspace(-2, 2, 60).reshape(20, 3))
    return vae.eval()


# Rows ------------------------------------------------------------------------------------------------


def test_random_rows_are_chosen_once_each_by_the_seed(rows):
    first, again, other = (use.random_rows(rows, 50, seed) for seed in (0, 0, 1))
    assert len(set(first.rows)) == 50
    assert (np.diff(first.rows) > 0).all()
    np.testing.assert_array_equal(first.rows, again.rows)
    assert (first.rows != other.rows).any()
    assert use.random_rows(rows, None) is use.random_rows(rows, 300) is rows


def test_spread_rows_go_from_the_first_to_the_last(rows):
    assert use.spread_rows(rows, 4).rows.tolist() == [0, 99, 199, 299]
    assert use.spread_rows(rows, 1).rows.tolist() == [0]
    assert use.spread_rows(rows, None) is use.spread_rows(rows, 301) is rows


# Scores ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gp", "vae", "sa", "iaf"])
def test_evaluation_in_batches_is_that_of_one_call(rows, method):
    vae, told = model(method), []
    found = use.evaluate(vae, rows, samples=7, seed=5, told=told.append)
    with seeded(5):
        expected = vae.log_likelihood(rows.values, 7)
    torch.testing.assert_close(found.log_likelihood.values, expected.values)
    with seeded(5), torch.no_grad():
        bounds = [vae.elbo(rows[start : start + 128], 10).value for start in (0, 128, 256)]
    torch.testing.assert_close(found.elbo.value, torch.cat(bounds))
    assert told == [128, 128, 44]


def test_a_batch_is_told_of_when_all_is_done_and_read_once(rows, monkeypatch):
    vae, done, read = model(), [], Rows.__getitems__
    monkeypatch.setattr(Rows, "__getitems__", lambda self, indices: done.append("read") or read(self, indices))
    for name in ("log_likelihood", "elbo"):
        call = getattr(vae, name)
        monkeypatch.setattr(vae, name, lambda *given, name=name, call=call: done.append(name) or call(*given))
    use.evaluate(vae, rows, samples=2, told=done.append)
    steps = ["read", "log_likelihood", "elbo"]
    assert done == [*steps, 128, *steps, 128, *steps, 44]


def test_evaluation_leaves_the_random_state_alone(rows):
    vae, before = model(), torch.get_rng_state()
    use.evaluate(vae, rows, samples=2)
    list(use.encode_rows(vae, rows, samples=2))
    list(use.sample_rows(vae, 5))
    assert torch.equal(before, torch.get_rng_state())


def test_the_terms_of_the_bound_are_means_over_instances(rows):
    vae = model("vae")
    found = use.evaluate(vae, rows, samples=2).record()["elbo"]
    with seeded(99), torch.no_grad():
        many: ELBO = vae.elbo(rows.values, 1000)
    assert found["kl"] == pytest.approx(many.kl.mean().item(), rel=1e-5)
    # Ten draws for each of 300 instances: a standard error of far less than that of one draw.
    assert found["reconstruction"] == pytest.approx(many.reconstruction.mean().item(), abs=0.1)
    assert found["weight_kl"] == 0


def test_bits_per_dimension_do_not_depend_on_the_units(rows):
    vae, units = model(), np.array([2.0, 0.5, 10.0])
    own = use.evaluate(vae, rows, samples=3)
    scaling = Scaling(kind="standardised", offset=(1.0, 2.0, 3.0), scale=tuple(units))
    other = Rows(rows.values * units + [1, 2, 3], rows.rows, scaling)
    found = use.evaluate(vae, other, samples=3, log_volume=scaling.log_volume(3))
    assert own.bits_per_dim == pytest.approx(-own.log_likelihood.mean / (3 * math.log(2)))
    assert found.bits_per_dim == pytest.approx(own.bits_per_dim + np.log2(units).sum() / 3, rel=1e-5)


def test_one_instance_and_one_sample_leave_much_unknown(rows):
    record = use.evaluate(model(), use.spread_rows(rows, 1), samples=1).record()
    assert record["log_likelihood"]["stderr"] is record["log_likelihood"]["mc_error"] is None
    assert record["bits_per_dim"]["stderr"] is record["elbo"]["stderr"] is record["khat"]["median"] is None


# Codes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gp", "vae", "sa", "iaf", "me", "vlae"])
def test_codes_of_every_kind_of_method(rows, method):
    batches = list(use.encode_rows(model(method), rows, samples=3))
    assert [len(batch["row"]) for batch in batches] == [128, 128, 44]
    assert ("uncertainty" in batches[0]) == (method == "gp")
    assert all(np.isfinite(batch[name]).all() for batch in batches for name in batch if name != "khat")
    again = list(use.encode_rows(model(method), rows, samples=3))
    assert all(np.array_equal(a[n], b[n], equal_nan=True) for a, b in zip(batches, again, strict=True) for n in a)


def test_deterministic_towers_have_no_uncertainty(rows):
    (batch,) = use.encode_rows(model(towers="deterministic"), use.spread_rows(rows, 5), samples=0)
    assert list(batch) == ["row", "mean_0", "mean_1", "std_0", "std_1"]


def test_codes_of_pictures_carry_the_names_of_their_files(tmp_path):
    (tmp_path / "pictures" / "more").mkdir(parents=True)
    names = [*(f"{i:03d}.png" for i in range(130)), 'more/ä, "b".png', os.fsdecode(b"more/\xff.png")]
    for number, name in enumerate(names):
        Image.new("L", (4, 4), number).save(tmp_path / "pictures" / name)
    scaling = Scaling(kind="pixels", scale=(255.0,))
    rows = as_model_data(open_source(tmp_path / "pictures"), (1, 4, 4), scaling)
    vae = gpin.build((1, 4, 4), "vae", 1, architecture={"channels": (), "width": 4}, seed=0).eval()
    expected = [*names[:-1], "more/\N{REPLACEMENT CHARACTER}.png"]
    for ending, read in ((".csv", pyarrow.csv.read_csv), (".parquet", pyarrow.parquet.read_table)):
        write_table(tmp_path / f"codes{ending}", use.encode_rows(vae, rows, samples=0))
        table = read(tmp_path / f"codes{ending}")
        assert table.column_names == ["row", "file", "mean_0", "std_0"]
        assert table["file"].to_pylist() == expected
    (few,) = use.encode_rows(vae, use.spread_rows(rows, 3), samples=0)
    assert few["file"].tolist() == [expected[i] for i in few["row"]] == [expected[i] for i in (0, 65, 131)]


def test_a_device_that_is_not_there():
    assert use.device_named("cpu") == torch.device("cpu")
    for name in ("abacus", "cuda:99"):
        with pytest.raises(InputError, match=name):
            use.device_named(name)


def test_neighbouring_seeds_share_no_noise():
    vae = gpin.build((4,), "vae", 2, architecture={"width": 8}, seed=0)
    one, two = (torch.cat(list(use.sample_rows(vae, 300, seed=seed))) for seed in (0, 1))
    drawn = torch.cat([one, two])
    assert len(drawn.unique(dim=0)) == 600
