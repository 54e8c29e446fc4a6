"""`gpin rank`: what is planted is found, files, and what is refused."""

import json
import re
import shutil

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from gpin._core.seeding import seeded
from gpin.runs import open_run, rank_run
from gpin.runs.rows import batch_seed
from gpin.vae import VAE

FEW = ["--samples", 20]


@pytest.fixture(scope="module")
def odd(files, tmp_path_factory):
    """A folder with odd.csv, which has an odd value in row 3, and pictures/, noise with one plain grey picture."""
    folder = tmp_path_factory.mktemp("odd")
    lines = (files / "table.csv").read_text().splitlines()[:31]
    a, _, c = lines[4].split(",")
    lines[4] = f"{a},2000.0,{c}"
    (folder / "odd.csv").write_text("\n".join(lines))
    shutil.copytree(files / "pictures", folder / "pictures")
    Image.new("RGB", (10, 12), (128, 128, 128)).save(folder / "pictures" / "plain.png")
    return folder


def read(path):
    table = pyarrow.csv.read_csv(path) if path.suffix == ".csv" else pyarrow.parquet.read_table(path)
    return {name: column.to_numpy() for name, column in zip(table.column_names, table.columns, strict=True)}


def test_what_is_planted_comes_first_and_its_column_is_the_reason(gpin, runs, odd, tmp_path):
    said = gpin("rank", runs["table"], odd / "odd.csv", "--top", 2, *FEW, "-o", tmp_path / "ranking.csv")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "The 2 most unusual of 30 instances by log-likelihood"
    assert lines[3].split()[0] == "3"
    assert "b is 2000, expected" in lines[3]
    assert "the percentage of 64 training instances" in " ".join(lines)
    assert lines[-1] == f"wrote {tmp_path / 'ranking.csv'}"
    table = read(tmp_path / "ranking.csv")
    assert table["row"][0] == 3
    assert table["rank"].tolist() == list(range(1, 31))
    assert sorted(table["row"]) == list(range(30))
    assert (np.diff(table["log_likelihood"]) <= 0).sum() == 0
    assert table["percentile"][0] == 100
    assert (np.diff(table["percentile"]) <= 0).all()
    contributions = {name: table[name][0] for name in table if name.startswith("contribution_")}
    assert set(contributions) == {"contribution_a", "contribution_b", "contribution_c"}
    assert max(contributions, key=contributions.get) == "contribution_b"


def test_the_data_of_the_run_and_an_empty_table_are_mentioned(gpin, runs, files, odd):
    trained = len(open_run(runs["table"]).data().train)
    said = " ".join(gpin("rank", runs["table"], files / "table.csv", "--top", 1, *FEW).out.split())
    assert f"This is the data of the run: the model was trained on {trained} of these instances" in said
    said = gpin("rank", runs["table"], odd / "odd.csv", "--top", 0, *FEW)
    assert "30 instances are ranked: write the ranking to a file with -o" in said.out
    assert "the data of the run" not in gpin("rank", runs["table"], odd / "odd.csv", "--top", 1, *FEW).out
    assert "--contributions maps.png" in gpin("rank", runs["images"], files / "images.npy", "--top", 1, *FEW).out


def test_contributions_sum_to_the_difference_of_the_elbo_from_its_mean(runs, files):
    run = open_run(runs["table"])
    found = rank_run(run, files / "table.csv", samples=2000, against="train", gap="none").columns
    total = found["code_contribution"] + sum(found[f"contribution_{name}"] for name in "abc")
    training = np.isin(found["row"], run.data().train.rows)
    excess = -found["elbo"] + found["elbo"][training].mean()
    np.testing.assert_allclose(total, excess, atol=0.25 * np.ptp(excess))
    assert abs(total[training].mean()) < 0.2
    assert np.corrcoef(total, excess)[0, 1] > 0.97


def test_scores_are_those_of_the_model(runs, files):
    run = open_run(runs["images"])
    found = rank_run(run, files / "images.npy", samples=10, seed=4).columns
    vae = run.load(print)
    x = torch.from_numpy(np.load(files / "images.npy")[:, None] / 255).float()
    with seeded(batch_seed(4, 0)), torch.no_grad():
        expected = vae.log_likelihood(x, 10)
    rows = found["row"]
    np.testing.assert_allclose(found["log_likelihood"], expected.values[rows], rtol=1e-5)
    np.testing.assert_allclose(found["elbo"], expected.elbo[rows], rtol=1e-5)
    errors = (x - vae.reconstruct(x)).square().flatten(1).mean(1)[rows]
    np.testing.assert_allclose(found["reconstruction_error"], errors, rtol=1e-5)
    np.testing.assert_allclose(found["gap"], vae.gap(x).values[rows], rtol=1e-4)
    in_units = found["log_likelihood"] - 64 * np.log(255)  # densities of bytes instead of [0, 1]
    np.testing.assert_allclose(found["corrected_log_likelihood"], in_units + found["complexity"], rtol=1e-5)


def test_a_plain_picture_is_the_most_likely_but_unusual_for_its_simplicity(gpin, runs, odd):
    ranking = {}
    for by in ("log_likelihood", "complexity"):
        said = gpin("rank", runs["pictures"], odd / "pictures", "--by", by, "--top", 31, *FEW, "--json")
        assert (said.code, said.err) == (0, "")
        record = json.loads(said.out)
        assert (record["by"], record["against"], record["instances"]) == (by, "train", 31)
        ranking[by] = [row["file"] for row in record["ranking"]]
    assert ranking["complexity"][0] == "plain.png"
    assert ranking["log_likelihood"][-1] == "plain.png"


def test_contributions_of_pixels_go_to_an_array_or_a_picture(gpin, runs, files, tmp_path):
    for name in ("maps.npy", "maps.png"):
        said = gpin("rank", runs["images"], files / "images.npy", *FEW, "--contributions", tmp_path / name)
        assert (said.code, said.err) == (0, "")
        assert re.search(r"rows \d–\d, columns \d–\d \(\+\d", said.out)
    maps = np.load(tmp_path / "maps.npy")
    assert maps.shape == (60, 1, 8, 8)
    found = rank_run(runs["images"], files / "images.npy", samples=20).columns
    corner = maps[:, 0, :2, :2].sum((1, 2))[found["row"]]
    np.testing.assert_allclose(found["contribution_rows 0–1, columns 0–1"], corner, rtol=1e-4, atol=1e-4)
    with Image.open(tmp_path / "maps.png") as image:
        assert image.size[0] > image.size[1] > 64  # 16 pictures above their maps


def test_every_kind_of_file_holds_the_same_ranking(gpin, runs, odd, tmp_path):
    for ending in ("csv", "parquet", "json"):
        options = ["--top", 0, *FEW, "--by", "reconstruction", "-o", tmp_path / f"ranking.{ending}"]
        assert gpin("rank", runs["table"], odd / "odd.csv", *options).out == f"wrote {tmp_path / 'ranking'}.{ending}\n"
    csv, parquet = read(tmp_path / "ranking.csv"), read(tmp_path / "ranking.parquet")
    record = json.loads((tmp_path / "ranking.json").read_text())
    assert list(csv) == list(parquet) == list(record["ranking"][0])
    assert csv["row"].tolist() == parquet["row"].tolist() == [row["row"] for row in record["ranking"]]
    assert csv["reason"].tolist() == parquet["reason"].tolist()
    np.testing.assert_allclose(csv["gap"], [row["gap"] for row in record["ranking"]])


def test_to_rank_by_the_gap_it_is_measured_by_refinement(runs, files, monkeypatch):
    measured, asked = VAE.gap, []

    def gap(self, x, how, **options):
        asked.append(how)
        return measured(self, x, how, **options)

    monkeypatch.setattr(VAE, "gap", gap)
    for options, how in (
        ({"by": "gap"}, "refined"),
        ({"by": "gap", "gap": "estimated"}, "estimated"),
        ({}, "estimated"),
    ):
        asked.clear()
        found = rank_run(runs["table"], files / "table.csv", samples=2, reference=8, **options).columns
        assert set(asked) == {how}
        assert (np.diff(found["gap"]) <= 0).all() == ("by" in options)


def test_the_reference_is_chosen_by_its_size(runs, files, monkeypatch):
    from gpin.runs import reference

    quick = {"samples": 2, "gap": "none"}
    assert rank_run(runs["plain"], files / "table.npy", **quick).part == "train"
    found = rank_run(runs["plain"], files / "table.npy", reference=5, **quick)
    assert (found.part, found.reference) == ("train", 5)
    monkeypatch.setattr(reference, "ENOUGH", 8)
    found = rank_run(runs["plain"], files / "table.npy", **quick)
    assert (found.part, found.reference) == ("validation", 8)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--by", "complexity"], "--by complexity compares the compressed sizes of pictures: rank a table by another"),
        (["--by", "gap", "--gap", "none"], "--by gap ranks by the gap, which --gap none leaves out"),
        (["--contributions", "maps.png"], "--contributions are those of the pixels of pictures"),
        (["--samples", "0"], "samples must be a whole number of at least 1, got 0"),
        (["--reference", "0"], "--reference must be a whole number of at least 1, got 0"),
        (["--top", "-1"], "--top must be a whole number of at least 0, got -1"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
        (
            ["-o", "ranking.txt"],
            "cannot write a ranking to ranking.txt: its name must end in .csv or .parquet or .json",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(gpin, runs, odd, options, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = gpin("rank", runs["table"], odd / "odd.csv", *options)
    assert said.code == 2
    assert said.one_line
    assert sentence in said.err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_unless_it_is_asked_for(gpin, runs, odd, tmp_path):
    file = tmp_path / "ranking.csv"
    file.write_text("precious")
    command = ["rank", runs["table"], odd / "odd.csv", "--samples", 2, "-o", file]
    said = gpin(*command)
    assert (said.code, said.one_line) == (2, True)
    assert "exists already: choose another name, or replace it with --overwrite" in said.err
    assert file.read_text() == "precious"
    assert gpin(*command, "--overwrite").code == 0
    assert "precious" not in file.read_text()
    said = gpin("rank", runs["table"], odd / "odd.csv", "-o", odd / "odd.csv", "--overwrite")
    assert "it is the data itself" in said.err


def test_encode_writes_the_same_columns_on_request(gpin, runs, odd, tmp_path):
    run = runs["table"]
    said = gpin("encode", run, odd / "odd.csv", *FEW, "--anomalies", "-o", tmp_path / "codes.csv")
    assert (said.code, said.err) == (0, "")
    codes = read(tmp_path / "codes.csv")
    ranking = rank_run(run, odd / "odd.csv", samples=20).columns
    assert set(ranking) - set(codes) == {"rank"}
    assert codes["log_likelihood"].argmin() == codes["percentile"].argmax() == 3
    assert codes["reason"][3].startswith("b is 2000, expected")
    order = ranking["row"]
    np.testing.assert_allclose(codes["reconstruction_error"][order], ranking["reconstruction_error"], rtol=1e-5)
    assert np.corrcoef(codes["elbo"][order], ranking["elbo"])[0, 1] > 0.99


def test_encode_refuses_what_cannot_be_compared(gpin, runs, odd, tmp_path):
    for option in (["--samples", 0], ["--steps", 1], ["--tolerance", 1.0]):
        said = gpin("encode", runs["table"], odd / "odd.csv", "--anomalies", *option, "-o", tmp_path / "codes.csv")
        assert (said.code, said.one_line) == (2, True)
        assert "--anomalies compares log-likelihoods of the encoder" in said.err
    said = gpin("encode", runs["table"], odd / "odd.csv", "--data", "elsewhere.csv", "-o", tmp_path / "codes.csv")
    assert (said.code, said.one_line) == (2, True)
    assert list(tmp_path.iterdir()) == []
