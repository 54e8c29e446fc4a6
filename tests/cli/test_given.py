"""Conditional models from the command line: `--given` names what is given in training, and says its value later."""

import json

import numpy as np
import pyarrow.csv
import pytest
import torch
from PIL import Image

from gpin._core.seeding import seeded
from gpin.data import DataConfig, SourceConfig, open_source, split_and_scale
from gpin.runs import open_run

SMALL = ["--method", "vae", "--epochs", "2", "--latent-dim", "1", "--set", "architecture.width=8"]
SPECIES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with table.csv, plain.csv without the conditions, labelled.npz and pictures/ in two subfolders."""
    folder, rng = tmp_path_factory.mktemp("given"), np.random.default_rng(0)
    species, dose = np.arange(90) % 3, rng.normal(size=90)
    values = np.stack([4 * species + rng.normal(size=90), dose + 0.1 * rng.normal(size=90)], 1)
    lines = [
        f"{a!r},{SPECIES[s]},{d!r},{b!r}" for (a, b), s, d in zip(values.tolist(), species, dose.tolist(), strict=True)
    ]
    (folder / "table.csv").write_text("\n".join(["a,species,dose,b", *lines]))
    np.savetxt(folder / "plain.csv", values, delimiter=",", header="a,b", comments="", fmt="%.17g")
    np.savez(folder / "labelled.npz", x=rng.integers(0, 256, (40, 8, 8), dtype=np.uint8), y=np.arange(40) % 2)
    for name in ("left", "right"):
        (folder / "pictures" / name).mkdir(parents=True)
        for i, pixels in enumerate(rng.integers(0, 256, (12, 8, 8), dtype=np.uint8)):
            Image.fromarray(pixels).save(folder / "pictures" / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def runs(gpin, folder, tmp_path_factory):
    """The runs on the table, given species and dose, on the archive, given y, and on the plain table; and `said`, what
    the first said about its conditions."""
    out, found = tmp_path_factory.mktemp("runs"), {}
    for name, options in (
        ("table.csv", ["--given", "species,dose"]),
        ("labelled.npz", ["--given", "y"]),
        ("plain.csv", []),
    ):
        said = gpin("train", folder / name, *SMALL, *options, "--out", out, "--json")
        assert said.code == 0, said.err
        record = json.loads(said.out)
        found[name] = record["run"]
        found.setdefault("said", record["understood"].get("given"))
    return found


def read(path):
    table = pyarrow.csv.read_csv(path)
    return {name: column.to_numpy() for name, column in zip(table.column_names, table.columns, strict=True)}


def test_training_says_what_is_given(runs):
    assert runs["said"].startswith("species (3 labels, ant, bee, cat), dose (")
    run = open_run(runs["table.csv"])
    assert run.columns == ("a", "b")
    assert run.model.shape == (2,)
    assert run.model.condition.names == ("species", "dose")


def test_evaluate_takes_every_instance_with_its_condition(gpin, runs):
    said = gpin("evaluate", runs["table.csv"], "--samples", 30, "--sandwich", 3, "--temperatures", 3, "--json")
    assert said.code == 0, said.err
    record = json.loads(said.out)
    run = open_run(runs["table.csv"])
    vae, data = run.load(), run.data()
    rows = data.test.rows
    y = {name: values[rows] for name, values in data.source.given.items()}
    x = data.scaling.apply(data.source.values[rows])
    with seeded(0):
        expected = vae.log_likelihood(x, 30, y=y)
    assert record["log_likelihood"]["mean"] == pytest.approx(expected.mean, rel=1e-4)
    assert record["bits_per_dim"]["mean"] == pytest.approx(
        -(expected.mean - run.log_volume) / (2 * np.log(2)), rel=1e-4
    )


def test_encode_reads_conditions_with_the_data_or_takes_one_for_all(gpin, runs, folder, tmp_path):
    run = open_run(runs["table.csv"])
    vae, source = run.load(), run.data().source
    x = run.scaling.apply(source.values)
    quick = ("--samples", 0, "--gap", "none", "--out")
    assert gpin("encode", run.folder, folder / "table.csv", *quick, tmp_path / "own.csv").code == 0
    np.testing.assert_allclose(
        read(tmp_path / "own.csv")["mean_0"], vae.encode(x, y=source.given).mean[:, 0].detach(), rtol=1e-4, atol=1e-5
    )
    fixed = ("--given", "species=bee", "--given", "dose=0.5")
    assert gpin("encode", run.folder, folder / "plain.csv", *quick, tmp_path / "one.csv", *fixed).code == 0
    expected = vae.encode(x, y={"species": "bee", "dose": 0.5}).mean[:, 0].detach()
    np.testing.assert_allclose(read(tmp_path / "one.csv")["mean_0"], expected, rtol=1e-4, atol=1e-5)


def test_new_data_is_evaluated_with_one_condition_for_all(gpin, runs, folder):
    fixed = ("--given", "species=bee", "--given", "dose=0.5")
    said = gpin("evaluate", runs["table.csv"], folder / "plain.csv", "--samples", 5, "--limit", 20, *fixed, "--json")
    assert said.code == 0, said.err
    assert " ".join(fixed) in json.loads(said.out)["closer_estimate"]


def test_conditional_models_are_compared(gpin, folder, tmp_path):
    small = ("--latent-dim", 1, "--seeds", 1, "--epochs", 1, "--samples", 25, "--limit", 10)
    said = gpin(
        *("compare", folder / "table.csv", "--given", "species", "--columns", "a,b", "--methods", "vae,hf", *small),
        *("--set", "architecture.width=4", "--executor", "serial", "--out", tmp_path, "--json"),
    )
    assert said.code == 0, said.err
    folders = [path.parent for path in tmp_path.rglob("run.json")]
    assert [open_run(path).model.condition.names for path in folders] == [("species",)] * 2


def test_samples_have_the_condition_that_is_given(gpin, runs, tmp_path):
    out = tmp_path / "samples.csv"
    said = gpin("sample", runs["table.csv"], "-o", out, "--count", 5, "--given", "species=cat, dose=2")
    assert said.code == 0, said.err
    found, run = read(out), open_run(runs["table.csv"])
    assert list(found) == ["a", "b", "species", "dose"]
    assert found["species"].tolist() == ["cat"] * 5
    np.testing.assert_allclose(found["dose"], 2.0)
    z = torch.zeros(1, 1)
    at = [run.load().decode(z, y={"species": species, "dose": 2.0}) for species in SPECIES]
    assert not torch.allclose(at[0], at[2])


def test_reconstructions_and_the_page_need_no_more(gpin, runs, folder, tmp_path):
    pairs, page = tmp_path / "pairs.png", tmp_path / "page.html"
    assert gpin("reconstruct", runs["labelled.npz"], "-o", pairs, "--count", 3).code == 0
    with Image.open(pairs) as picture:
        assert picture.width > 8
    assert gpin("reconstruct", runs["table.csv"], folder / "table.csv", "-o", tmp_path / "again.csv").code == 0
    assert list(read(tmp_path / "again.csv")) == ["row", "a", "b"]
    for name, sentences in (
        ("labelled.npz", ["Their conditions are the levels of y in turn.", "for the condition of the first"]),
        ("table.csv", ["drawn for the conditions of test rows", "for one condition: species ant, dose "]),
    ):
        said = gpin("report", runs[name], "-o", page, "--samples", 3, "--limit", 5)
        assert said.code == 0, said.err
        assert all(sentence in page.read_text() for sentence in sentences)
    said = gpin("report", runs["table.csv"], runs["plain.csv"], "-o", tmp_path / "both.html")
    assert said.one_line
    assert "are not conditional on the same: make one page for each" in said.err


def test_the_subfolder_of_a_picture_can_be_given(gpin, folder, tmp_path):
    data = split_and_scale(open_source(folder / "pictures", SourceConfig(given=("folder",))), DataConfig())
    assert data.condition.columns[0].levels == ("left", "right")
    assert data.train[:3].shape == (3, 64 + 2)
    Image.new("L", (8, 8)).save(folder / "pictures" / "alone.png")
    said = gpin("train", folder / "pictures", "--given", "folder", "--out", tmp_path)
    (folder / "pictures" / "alone.png").unlink()
    assert said.one_line
    assert "alone.png is in no subfolder" in said.err


def test_the_label_of_a_benchmark_can_be_given():
    data = split_and_scale(open_source("digits", SourceConfig(given=("label",))), DataConfig(limit=50))
    assert data.condition.columns[0].levels == tuple(range(10))
    row = int(data.train.rows[0])
    assert data.train[0][64:].argmax() == data.source.given["label"][row]
    assert torch.equal(data.train.plain[0].flatten(), data.train[0][:64])


def test_whole_numbers_with_many_values_are_quantities(tmp_path):
    path = tmp_path / "ages.csv"
    path.write_text("\n".join(["age,kind,x", *(f"{20 + i},{i % 2},{i / 7}" for i in range(60))]))
    source = open_source(path, SourceConfig(given=("age", "kind")))
    condition = split_and_scale(source, DataConfig()).condition
    assert condition.columns[0].levels is None
    assert condition.columns[1].levels == (0, 1)
    assert source.fingerprint() != open_source(path, SourceConfig(columns=("x",))).fingerprint()


def test_options_that_are_not_used_are_not_recorded():
    assert "given" not in SourceConfig().model_dump(mode="json")
    assert SourceConfig(given=("y",)).model_dump(mode="json")["given"] == ["y"]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("table.csv", "specie", "has no column 'specie': did you mean 'species'?"),
        ("table.csv", "species,species", "the condition 'species' is given 2 times"),
        ("table.csv", "a,species,dose,b", "has no columns besides those that are given"),
        ("labelled.npz", "z", "has no array 'z'"),
        ("labelled.npz", "x", "must hold one label or number per instance"),
        ("pictures", "label", "has only the condition 'folder' to give"),
    ],
)
def test_what_cannot_be_given_is_refused(gpin, folder, tmp_path, name, given, message):
    said = gpin("train", folder / name, "--given", given, "--out", tmp_path / "runs")
    assert said.code == 2
    assert said.one_line
    assert message in said.err
    assert not (tmp_path / "runs").exists()


def test_a_missing_condition_is_refused_with_its_row(gpin, tmp_path):
    (tmp_path / "table.csv").write_text("x,species\n1,ant\n2,\n3,bee\n")
    said = gpin("train", tmp_path / "table.csv", "--given", "species", "--out", tmp_path / "runs")
    assert said.one_line
    assert "column 'species', which is given as a condition, has no value in row 1" in said.err


@pytest.mark.parametrize(
    ("run", "arguments", "message"),
    [
        (
            "table.csv",
            [],
            "on species and dose: give --given species=VALUE, one of ant, bee, cat; and --given dose=VALUE, a number",
        ),
        ("table.csv", ["--given", "species=dog", "--given", "dose=1"], "'species' has no level 'dog'"),
        ("table.csv", ["--given", "species=ant"], "give --given dose=VALUE, a number"),
        ("table.csv", ["--given", "species=ant", "--given", "dose=high"], "'dose' must be numbers, got 'high'"),
        ("table.csv", ["--given", "colour=red"], "has no condition 'colour'"),
        ("table.csv", ["--given", "species"], "expected --given as name=value"),
        ("table.csv", ["--given", "dose=1", "--given", "dose=2"], "'dose' is given twice"),
        ("table.csv", ["--given", "dose=1,dose=2"], "'dose' is given twice"),
        ("table.csv", ["--given", "species=ant,dose="], "expected --given as name=value, such as species=setosa, got"),
        ("table.csv", ["--given", "species=ant, bee", "--given", "dose=1"], "'species' has no level 'ant, bee'"),
        ("plain.csv", ["--given", "species=ant"], "is not conditional on anything: leave out --given"),
    ],
)
def test_samples_with_conditions_that_do_not_fit_are_refused(gpin, runs, tmp_path, run, arguments, message):
    said = gpin("sample", runs[run], "-o", tmp_path / "samples.csv", *arguments)
    assert said.one_line
    assert message in said.err
    assert not (tmp_path / "samples.csv").exists()


def test_data_without_the_conditions_is_refused(gpin, runs, folder, tmp_path):
    said = gpin("encode", runs["table.csv"], folder / "plain.csv", "-o", tmp_path / "codes.csv")
    assert said.one_line
    assert "has no column 'species'" in said.err
    np.save(tmp_path / "images.npy", np.zeros((3, 8, 8), np.uint8))
    said = gpin("encode", runs["labelled.npz"], tmp_path / "images.npy", "-o", tmp_path / "codes.csv")
    assert said.one_line
    assert "does not come with the condition 'y' of the model" in said.err
    assert "give one value for all instances with --given y=VALUE" in said.err


def test_instances_are_ranked_given_their_own_labels_or_another(gpin, folder, runs, tmp_path):
    gaps = {}
    for name, options in (("own", []), ("other", ["--given", "species=cat"])):
        file = tmp_path / f"{name}.csv"
        said = gpin("rank", runs["table.csv"], folder / "table.csv", *options, "--samples", 5, "--top", 0, "-o", file)
        assert said.code == 0, said.err
        table = read(file)
        assert {"contribution_a", "contribution_b", "code_contribution"} <= set(table)
        gaps[name] = table["gap"][np.argsort(table["row"])]  # without noise
    same = np.isclose(gaps["own"], gaps["other"], rtol=1e-6)
    assert same.tolist() == [SPECIES[i % 3] == "cat" for i in range(90)]


def test_pictures_of_a_conditional_run_are_ranked_with_maps(gpin, folder, runs, tmp_path):
    maps = tmp_path / "maps.png"
    command = ["rank", runs["labelled.npz"], folder / "labelled.npz", "--by", "complexity", "--samples", 5]
    said = gpin(*command, "--contributions", maps)
    assert (said.code, said.err) == (0, "")
    assert maps.stat().st_size > 100
