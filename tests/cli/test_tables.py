"""Tables as they are: text, counts and missing values, from training to samples and imputation."""

import json
import re
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from PIL import Image

from gpin.cli.base import with_flags
from gpin.data.io import listed
from gpin.runs import open_run
from gpin.runs.settings import column_kinds, column_list

SMALL = ["--method", "vae", "--epochs", 2, "--latent-dim", 2, "architecture.width=16", "batch_size=32"]
COLOURS = {"red", "green", "dark blue"}


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A folder with people.csv, people.parquet and a run: text, 0/1, counts, numbers, skewed numbers, holes."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=120)
    columns = {
        "id": np.arange(120),
        "colour": np.array(["red", "green", "dark blue"])[np.digitize(z, (-0.5, 0.5))].astype(object),
        "size": np.round(30 + 10 * z + rng.normal(size=120), 1),
        "visits": rng.poisson(np.exp(1 + 0.5 * z)).astype(object),
        "member": (rng.random(120) < 1 / (1 + np.exp(-2 * z))).astype(int).astype(object),
        "income": np.exp(8 + z + 0.3 * rng.normal(size=120)),
        "full name": [f"person {i}" for i in range(120)],
    }
    for name in ("colour", "size", "visits", "member"):
        gone = rng.random(120) < 0.15
        columns[name] = [None if out else value for out, value in zip(gone, columns[name], strict=True)]
    folder = tmp_path_factory.mktemp("people")
    table = pa.table(columns)
    pyarrow.csv.write_csv(table, folder / "people.csv")
    pyarrow.parquet.write_table(table, folder / "people.parquet")
    return folder


@pytest.fixture(scope="module")
def trained(gpin, people):
    said = gpin(
        "train", people / "people.csv", *SMALL, "--exclude", "full name, id", "--out", people / "runs", "--json"
    )
    assert said.code == 0, said.err
    return json.loads(said.out)


@pytest.fixture(scope="module")
def run(trained):
    return trained["run"]


def read(path):
    table = pyarrow.csv.read_csv(path, convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True))
    return {name: table[name].to_pylist() for name in table.column_names}


def test_only_commands_that_choose_columns_advise_to_choose_them(gpin, people, run, tmp_path):
    numbers = "".join(f"red,{size},1,1,2.5\n" for size in range(5))
    (tmp_path / "new.csv").write_text(f"colour,size,visits,member,income\n{numbers}red,soon,1,1,2.5\n")
    commands = (["rank"], ["encode", "-o", tmp_path / "x.csv"], ["evaluate"], ["impute", "-o", tmp_path / "y.csv"])
    for name, *options in commands:
        said = gpin(name, run, tmp_path / "new.csv", *options)
        assert said.one_line, said.err
        assert "but mostly numbers: the model needs its columns as they were in training, so correct" in said.err
        assert "--" not in said.err
    said = gpin("train", tmp_path / "new.csv", "--out", tmp_path)
    assert "leave the column out with --exclude size, or take its values as levels with --kinds size=c" in said.err


def test_what_was_understood_of_the_columns_is_said(trained, run):
    said = dict(trained["understood"])
    assert said["columns"] == "5"
    assert said["· categorical"] == "colour (dark blue, green, red)"
    assert said["· bernoulli"] == "member"
    assert said["· lognormal"] == "income"
    assert {said.get("· poisson"), said.get("· negative_binomial")} == {"visits", None}
    assert re.match(r"\d+ of 600 values \(\d+\.\d %\) are not known, in colour \(\d+\), size ", said["missing"])
    opened = open_run(run)
    assert opened.model.missing
    assert opened.model.likelihood.kind == "mixed"
    assert opened.record()["settings"]["data"]["source"]["exclude"] == ["full name", "id"]


def test_samples_contain_only_values_of_the_kinds(gpin, run, tmp_path):
    for noise in (["--noise"], []):
        said = gpin("sample", run, "-o", tmp_path / "a.csv", "--count", 60, *noise)
        assert said.code == 0, said.err
        assert ("vary less than the data; --noise draws them instead" in said.err) == (not noise)
        found = read(tmp_path / "a.csv")
        assert list(found) == ["colour", "size", "visits", "member", "income"]
        assert set(found["colour"]) <= COLOURS
        assert set(found["member"]) <= {0, 1}
        assert all(type(value) is int and value >= 0 for value in found["visits"])
        assert all(value > 0 for value in found["income"])
    assert gpin("reconstruct", run, "-o", tmp_path / "b.parquet").code == 0
    assert set(pyarrow.parquet.read_table(tmp_path / "b.parquet")["colour"].to_pylist()) <= COLOURS


def test_such_runs_can_be_evaluated_encoded_and_ranked(gpin, run, people, tmp_path):
    found = json.loads(gpin("evaluate", run, "--samples", 10, "--json").out)
    assert np.isfinite(found["log_likelihood"]["mean"])
    assert 0 < found["bits_per_dim"]["mean"] < 20
    assert gpin("encode", run, people / "people.parquet", "-o", tmp_path / "a.csv", "--samples", 5).code == 0
    assert np.isfinite(read(tmp_path / "a.csv")["log_likelihood"]).all()
    said = gpin("rank", run, people / "people.csv", "--samples", 5, "--top", 3)
    assert said.code == 0, said.err
    refused = gpin("export", run, "-o", tmp_path / "a.onnx")
    assert (refused.code, refused.one_line) == (2, True)


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_missing_values_are_filled_and_all_else_is_kept(gpin, run, people, tmp_path, ending):
    out = tmp_path / f"filled{ending}"
    said = gpin("impute", run, people / f"people{ending}", "-o", out, "--samples", 20)
    assert said.code == 0, said.err
    given = pyarrow.parquet.read_table(people / "people.parquet").to_pydict()
    filled = read(out) if ending == ".csv" else pyarrow.parquet.read_table(out).to_pydict()
    assert list(filled) == list(given)
    count = 0
    for name, values in given.items():
        assert None not in filled[name]
        count += values.count(None)
        assert all(old is None or old == new for old, new in zip(values, filled[name], strict=True))
    assert said.out == f"wrote {out}: 120 instances, {count} values imputed\n"
    assert set(filled["colour"]) == set(given["colour"]) - {None}
    assert {type(value) for value in filled["visits"]} == {int}
    assert set(filled["member"]) == {0, 1}
    again = gpin("impute", run, people / f"people{ending}", "-o", out)
    assert (again.code, again.one_line) == (2, True)
    assert "exists already: choose another name, or replace it with --overwrite" in again.err
    assert gpin("impute", run, people / f"people{ending}", "-o", out, "--overwrite", "--samples", 5).code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing.csv", "-o", "a.csv"], "missing.csv does not exist"),
        (["people.csv", "-o", "a.txt"], "must end in .parquet or .csv"),
        (["people.csv", "-o", "people.csv"], "it is the data itself"),
        (["people.csv", "-o", "a.csv", "--mask", "people.csv"], "--mask is for arrays and pictures"),
        (["people.csv", "-o", "a.csv", "--samples", 0], "samples must be a whole number"),
        (["complete.csv", "-o", "a.csv"], "no missing values, so that there is nothing to impute"),
        (["pink.csv", "-o", "a.csv"], "'pink', which the model has not seen"),
    ],
)
def test_what_cannot_be_imputed_is_refused_in_one_line(gpin, run, people, monkeypatch, arguments, says):
    monkeypatch.chdir(people)
    head = "colour,size,visits,member,income\n"
    (people / "complete.csv").write_text(head + "red,30,1,0,10\n")
    (people / "pink.csv").write_text(head + "pink,30,1,,10\n")
    before = (people / "people.csv").read_bytes()
    said = gpin("impute", run, *arguments)
    assert (said.code, said.one_line) == (2, True), said.err
    assert says in said.err
    assert not (people / "a.csv").exists()
    assert (people / "people.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "column 'full name' holds text, all different, which are too many for a categorical column: leave it out"),
        (["--exclude", "nam"], "no column 'nam'"),
        (["--exclude", "full name", "--kinds", "size=poisson"], "the kind 'poisson' needs whole numbers from 0"),
        (["--exclude", "full name", "--kinds", "size=poison"], "--kinds has 'size=poison': did you mean 'poisson'"),
        (["--exclude", "full name", "--kinds", "size"], "expected column=kind, such as age=gaussian"),
        (["--exclude", "full name", "--kinds", "sise=poisson"], "no column 'sise', whose kind is given"),
        (["--exclude", "full name", "--scaling", "none"], "column 'colour' has a kind of its own"),
        (["--exclude", "full name", "likelihood=gaussian"], "column 'colour' has a kind of its own"),
    ],
)
def test_tables_that_need_a_choice_are_refused_in_one_line(gpin, people, tmp_path, arguments, says):
    said = gpin("train", people / "people.csv", *SMALL, "--out", tmp_path / "runs", *arguments)
    assert (said.code, said.one_line) == (2, True), said.err
    assert says in said.err
    assert not (tmp_path / "runs").exists()


def test_identifiers_are_pointed_out_and_kinds_corrected(gpin, people, tmp_path):
    arguments = ["--exclude", "full name", "--kinds", "visits=gaussian,income=gaussian", "--json"]
    said = gpin("train", people / "people.csv", *SMALL, "--out", tmp_path, *arguments)
    assert said.code == 0, said.err
    assert "gpin: column 'id' looks like an identifier" in said.err
    assert "--exclude 'full name,id'" in said.err
    assert dict(json.loads(said.out)["understood"])["· gaussian"] == "id, size, visits, income"


@pytest.mark.parametrize("names", [["a", "b c"], ["it's", 'say "x"', "a,b"], [""]])
def test_suggested_columns_can_be_pasted(names):
    said = with_flags(f"leave it out with `exclude={listed(names)}`")
    words = shlex.split(said.replace("leave it out", ""))
    assert words[1] == "--exclude"
    assert column_list(words[2]) == names
    assert column_kinds(listed([f"{name}=poisson" for name in names])) == dict.fromkeys(names, "poisson")


def test_pictures_are_completed_where_a_mask_covers_them(gpin, runs, files, tmp_path):
    images = np.load(files / "images.npy")
    half = np.zeros((8, 8), bool)
    half[4:] = True
    np.save(tmp_path / "half.npy", half)
    Image.fromarray(np.where(half, 255, 0).astype(np.uint8)).save(tmp_path / "half.png")
    command, results = ["impute", runs["images"], files / "images.npy", "--samples", 5], []
    for mask in ("half.npy", "half.png"):
        out = tmp_path / f"{mask}.npy"
        said = gpin(*command, "-o", out, "--mask", tmp_path / mask)
        assert said.code == 0, said.err
        assert said.out == f"wrote {out}: 60 instances, {60 * 32:,} values imputed\n"
        results.append(np.load(out))
    assert np.array_equal(*results)
    filled = results[0].reshape(60, 8, 8)
    assert filled.dtype == np.uint8
    assert np.array_equal(filled[:, :4], images[:, :4])
    assert not np.array_equal(filled, images)
    seen = gpin(*command, "-o", tmp_path / "a.png", "--mask", tmp_path / "half.png")
    assert seen.code == 0, seen.err
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] > 8
    np.save(tmp_path / "odd.npy", np.zeros((3, 3)))
    for mask, says in (("odd.npy", "the mask .* has shape"), ("half.txt", "must be an .npy file")):
        said = gpin(*command, "-o", tmp_path / "b.npy", "--mask", tmp_path / mask)
        assert (said.code, said.one_line) == (2, True)
        assert re.search(says, said.err)
    complete = gpin(*command, "-o", tmp_path / "b.npy")
    assert "has no missing values" in complete.err
