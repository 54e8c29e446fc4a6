"""The demo from end to end: what is in its folder, and the command."""

import json
from dataclasses import replace

import pytest
import torch

import gpin
from gpin import demo
from gpin.cli import main


def test_all_files_are_there(result):
    names = {str(path.relative_to(result.folder)) for path in result.folder.rglob("*") if path.is_file()}
    figures = {"curves", "gap", "reconstructions", "samples-gp", "samples-vae", "uncertainty"}
    models = {f"models/{name}/{file}" for name in ("vae", "gp") for file in ("config.json", "model.safetensors")}
    assert names == {"report.html", "results.json", *(f"figures/{name}.png" for name in figures), *models}


def test_the_saved_models_are_the_ones_reported(result):
    for contender in result.contenders.values():
        again = gpin.load(result.folder / "models" / contender.name)
        assert torch.equal(again.reconstruct(result.digits.test), contender.vae.reconstruct(result.digits.test))


def test_the_readme_picture_is_small(result):
    png = (result.folder / "figures" / "uncertainty.png").read_bytes()
    assert len(png) < 150_000
    assert int.from_bytes(png[16:20], "big") == 1000  # the width, in PNG's header


def test_the_same_seed_gives_the_same_numbers_and_leaves_torch_alone(result, small, tmp_path):
    torch.manual_seed(123)
    expected, threads = torch.rand(1), torch.get_num_threads()
    torch.manual_seed(123)
    again = demo.run(tmp_path, small)
    assert torch.equal(torch.rand(1), expected)
    assert torch.get_num_threads() == threads
    for name, contender in result.contenders.items():
        for proposal, score in contender.scores.items():
            assert torch.equal(again.contenders[name].scores[proposal].values, score.values)
    assert torch.equal(again.uncertainty, result.uncertainty)


def test_the_command_prints_json_and_no_bar(capsys, monkeypatch, small, tmp_path):
    monkeypatch.setattr(demo, "Settings", lambda **given: replace(small, **given))
    assert main(["demo", "--out", str(tmp_path), "--epochs", "1", "--seed", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    record = json.loads(out)
    assert (record["settings"]["epochs"], record["settings"]["seed"]) == (1, 3)
    assert (tmp_path / "report.html").is_file()


@pytest.mark.slow
def test_the_command_as_it_comes(capsys, tmp_path):
    assert main(["demo", "--out", str(tmp_path), "--epochs", "3"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "400 to test" in out
    assert out.endswith("report.html\n")
