"""Codes of instances as a table."""

import os

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from PIL import Image

import gpin
from gpin.data import Scaling, as_model_data, open_source
from gpin.runs.encode import encode_rows
from gpin.runs.outputs import write_table
from gpin.runs.rows import spread_rows


@pytest.mark.parametrize("method", ["gp", "vae", "sa", "iaf", "me", "vlae"])
def test_codes_of_every_kind_of_method(rows, small_model, method):
    batches = list(encode_rows(small_model(method), rows, samples=3))
    assert [len(batch["row"]) for batch in batches] == [128, 128, 44]
    assert ("uncertainty" in batches[0]) == (method == "gp")
    assert all(np.isfinite(batch[name]).all() for batch in batches for name in batch if name != "khat")
    again = list(encode_rows(small_model(method), rows, samples=3))
    assert all(np.array_equal(a[n], b[n], equal_nan=True) for a, b in zip(batches, again, strict=True) for n in a)


@pytest.mark.parametrize("method", ["natural", "vae"])
def test_codes_after_steps_say_how_many_they_took_and_what_is_left(rows, small_model, method):
    few, vae = spread_rows(rows, 20), small_model(method)
    (start,) = encode_rows(vae, few, samples=0, steps=0)
    (after,) = encode_rows(vae, few, samples=3, tolerance=0.003, max_steps=3)
    assert set(after) - set(start) == {"log_likelihood", "ess", "khat", "elbo"}
    assert (start["steps"] == 0).all()
    moved = after["steps"] > 0
    assert moved.any()
    assert (after["steps"] <= 3).all()
    assert np.array_equal(start["mean_0"] != after["mean_0"], moved)
    assert ((after["gap"] <= 0.003) | (after["steps"] == 3)).all() or method == "vae"


def test_with_a_tolerance_only_the_estimated_gap_is_known(rows, small_model):
    with pytest.raises(gpin.InputError, match="gap='refined' does not apply with a tolerance"):
        encode_rows(small_model("vae"), rows, tolerance=1.0, gap="refined")
    (batch,) = encode_rows(small_model("vae"), spread_rows(rows, 5), samples=0, tolerance=1.0, gap="none")
    assert "steps" in batch
    assert "gap" not in batch


def test_senseless_steps_are_refused_before_anything_is_encoded(rows, small_model):
    with pytest.raises(gpin.InputError, match="steps must be a whole number of at least 0, got -2"):
        encode_rows(small_model("vae"), rows, steps=-2)


def test_deterministic_towers_have_no_uncertainty(rows, small_model):
    (batch,) = encode_rows(small_model(towers="deterministic"), spread_rows(rows, 5), samples=0)
    assert list(batch) == ["row", "mean_0", "mean_1", "std_0", "std_1", "gap", "reconstruction_error"]


@pytest.mark.parametrize("gap", ["predicted", "estimated", "refined", "none"])
def test_the_gap_is_written_with_the_interval_of_a_calibrated_model(rows, small_model, gap):
    vae, few = small_model("vae"), spread_rows(rows, 7)
    vae.calibrate(rows[:60])
    (batch,) = encode_rows(vae, few, samples=0, gap=gap)
    names = {"none": [], "refined": ["gap"]}.get(gap, ["gap", "gap_low", "gap_high"])
    assert list(batch) == ["row", "mean_0", "mean_1", "std_0", "std_1", *names, "reconstruction_error"]
    if len(names) == 3:
        found = vae.gap(few[:], gap)
        for name, end in zip(names, (found.values, found.low, found.high), strict=True):
            np.testing.assert_allclose(batch[name], end.numpy())


def test_a_gap_that_cannot_be_determined_is_refused_before_the_first_row(rows, small_model):
    for gap, said in (("predicted", "only after calibration"), ("guessed", "unknown how 'guessed'")):
        with pytest.raises(gpin.InputError, match=said):
            encode_rows(small_model("vae"), rows, gap=gap)


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
        write_table(tmp_path / f"codes{ending}", encode_rows(vae, rows, samples=0))
        table = read(tmp_path / f"codes{ending}")
        assert table.column_names == ["row", "file", "mean_0", "std_0", "gap", "reconstruction_error"]
        assert table["file"].to_pylist() == expected
    (few,) = encode_rows(vae, spread_rows(rows, 3), samples=0)
    assert few["file"].tolist() == [expected[i] for i in few["row"]] == [expected[i] for i in (0, 65, 131)]
