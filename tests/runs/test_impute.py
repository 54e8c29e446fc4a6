"""Imputed files: types, conditions, and cells that must stay as they are."""

import csv

import numpy as np
import pyarrow.parquet
import pytest

import gpin
from gpin.data import DataConfig, open_source, split_and_scale
from gpin.runs import impute_to_file, open_run, run_settings, sample_to_file, train
from gpin.runs.impute import _as_type

RNG = np.random.default_rng(0)


def quiet(said):
    pass


def trained(path, epochs=1, **options):
    settings = {"method": "vae", "latent_dim": 2, "epochs": epochs, "batch_size": 32, "architecture.width": 16}
    return train(path, run_settings(settings | options), out=path.parent / "runs", progress=False, tell=quiet)[0]


def imputed(run, path, ending=".csv", **options):
    out = path.with_name(f"filled{ending}")
    impute_to_file(run, path, out, samples=10, tell=quiet, **options)
    if ending == ".npy":
        return np.load(out)
    with open(out, newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("uint8", [0, 0, 1, 3, 255]),
        ("int8", [-2, 0, 1, 3, 127]),
        ("int64", [-2, 0, 1, 3, 1000]),
        ("bool", [False, False, True, True, True]),
        ("float64", [-1.6, 0.4, 0.6, 2.9, 1000.0]),
    ],
)
def test_values_are_rounded_to_the_type_of_the_data(kind, expected):
    found = _as_type(np.array([-1.6, 0.4, 0.6, 2.9, 1000.0]), np.dtype(kind))
    assert found.dtype == kind
    assert found.tolist() == expected


def test_the_limits_of_wide_types_are_kept():
    assert _as_type(np.array([1e30, -1e30]), np.dtype("int64")).tolist() == [2**63 - 1024, -(2**63)]


@pytest.mark.parametrize("kind", [np.uint8, bool])
def test_binary_pixels_are_imputed_by_the_more_probable_value(tmp_path, kind):
    x = np.zeros((60, 4, 4), kind)
    x[:, :2] = 1
    np.save(tmp_path / "x.npy", x)
    mask = np.zeros((4, 4), bool)
    mask[0, 0] = mask[3, 3] = True
    np.save(tmp_path / "mask.npy", mask)
    run = trained(tmp_path / "x.npy", epochs=40, learning_rate=1e-2)
    filled = imputed(run, tmp_path / "x.npy", ".npy", mask=tmp_path / "mask.npy")
    assert filled.dtype == kind
    assert np.array_equal(filled.reshape(x.shape), x)


def test_a_conditional_run_imputes_a_table(tmp_path):
    rows = RNG.normal(size=(60, 2)).round(3).tolist()
    lines = [f"{a},{'' if i % 5 == 0 else b},{'uv'[i % 2]}" for i, (a, b) in enumerate(rows)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["a,b,kind", *lines]) + "\n")
    found = imputed(trained(path, given=("kind",)), path)
    for i, (given, cells) in enumerate(zip(lines, found[1:], strict=True)):
        assert all(old in ("", new) for old, new in zip(given.split(","), cells, strict=True))
        assert np.isfinite(float(cells[1])), i


def test_a_fitted_folder_of_mixed_rows_has_one_name_per_column(tmp_path):
    path = tmp_path / "m.csv"
    lines = [f"{'xyz'[i % 3]},{value:.3f}" for i, value in enumerate(RNG.normal(size=60))]
    path.write_text("\n".join(["s,a", *lines]) + "\n")
    data = split_and_scale(open_source(path), DataConfig())
    likelihood = {"kind": "mixed", "columns": [column.likelihood for column in data.scaling.columns]}
    vae = gpin.build(data.shape, "vae", 2, likelihood=likelihood, architecture={"width": 8})
    fitted = tmp_path / "fitted"
    gpin.fit(vae, data.train, data.validation, epochs=1, folder=fitted, progress=False, tell=quiet, calibrate=False)
    assert open_run(fitted).column_names == ["x_0", "x_1"]
    assert sample_to_file(fitted, tmp_path / "s.csv", count=3, tell=quiet).columns == ("x_0", "x_1")


def test_cells_that_are_not_filled_keep_their_text(tmp_path):
    path = tmp_path / "a.csv"
    known = [("", "?") if i % 7 == 0 else (f"{i}.50", f"0731{i % 2}") for i in range(60)]
    lines = [f"{i:05d},{a},{code},NA" for i, (a, code) in enumerate(known)]
    path.write_text("\n".join(["id, a,code,note", *lines]) + "\n")
    run = trained(path, exclude=("id", "note"), kinds={"code": "categorical"})
    found = imputed(run, path)
    assert found[0] == ["id", " a", "code", "note"]
    for line, cells in zip(lines, found[1:], strict=True):
        given = line.split(",")
        assert (cells[0], cells[3]) == (given[0], "NA")
        assert cells[1:3] == given[1:3] if given[1] else np.isfinite(float(cells[1]))
        assert cells[2] in ("07310", "07311")
    impute_to_file(run, path, tmp_path / "a.parquet", samples=5, tell=quiet)
    assert pyarrow.parquet.read_table(tmp_path / "a.parquet")["id"].to_pylist()[:2] == ["00000", "00001"]


def test_a_table_of_zeros_and_ones_stays_so(tmp_path):
    path = tmp_path / "a.csv"
    rows = [["" if RNG.random() < 0.1 else str(value) for value in row] for row in RNG.integers(0, 2, (60, 3))]
    path.write_text("\n".join(["a,b,c", *map(",".join, rows)]) + "\n")
    run = trained(path)
    assert run.scaling.kind == "binary"
    assert {cell for row in imputed(run, path)[1:] for cell in row} == {"0", "1"}
    sample_to_file(run, tmp_path / "s.csv", count=20, tell=quiet)
    with open(tmp_path / "s.csv", newline="") as file:
        assert {cell for row in list(csv.reader(file))[1:] for cell in row} <= {"0", "1"}
    np.save(tmp_path / "a.npy", np.array([[float(cell or "nan") for cell in row] for row in rows]))
    assert set(np.unique(imputed(run, tmp_path / "a.npy", ".npy"))) == {0, 1}
