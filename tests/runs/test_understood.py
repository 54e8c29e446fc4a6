"""What is said before training about data, model and training."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from gpin.data import DataConfig, Scaling, SourceConfig, open_source, split_and_scale
from gpin.runs import open_run, run_settings, train
from gpin.runs.understood import skipped_files, understood

SMALL = {"latent_dim": 2, "epochs": 3, "batch_size": 16, "architecture": {"kind": "dense", "width": 4}}
RNG = np.random.default_rng(0)


@pytest.fixture
def lines(tmp_path):
    """What is understood of a file or folder, by name."""

    def found(data, **options):
        said = {}

        def enough(run, data, vae):
            said.update(understood(run, data, vae, seconds=90))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(data, run_settings({**SMALL, **options}), out=tmp_path / "runs", on_start=enough)
        return said

    return found


def test_one_coloured_picture_among_grey_ones_is_named(lines, tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    for i in range(20):
        Image.effect_noise((8 + i % 2, 9), 50).save(folder / f"{i:02}.png")
    Image.merge("RGB", [Image.effect_noise((9, 9), 50) for _ in range(3)]).save(folder / "07.png")
    (folder / "no.png").write_bytes(b"nothing")
    said = lines(folder, size=[4, 5], skip_damaged=True)
    assert said["data"] == "mixed: 16 pictures for training, 2 for validation, 2 for testing"
    assert said["shape"] == "3×4×5 (channels×height×width)"
    assert said["colours"] == (
        "1 of 20 pictures is coloured (07.png), so the 19 grey ones have three channels, too; `grey` reads all in grey"
    )
    assert said["sizes"] == "2 sizes (10 of 9×8, 10 of 9×9; height×width), resized to 4×5 and cropped at the centre"
    assert said["scaling"] == "pixels: 0 to 255 become 0 to 1"
    assert said["likelihood"].startswith("Gaussian")
    assert said["model"].startswith("method gp, 2 latent dimensions, dense networks, ")
    assert said["training"] == "3 epochs of 1 step each, with batches of 16 and a learning rate of 0.0005"
    assert said["time"] == "about 1.5 min, estimated from a few steps"
    (run,) = (tmp_path / "runs").iterdir()
    assert open_run(run).skipped == (("no.png", "is not a picture, or it is damaged: cannot identify image file"),)
    assert len(open_run(run).data().train) == 16
    (folder / "07.png").unlink()
    assert lines(folder, size=[9, 9], skip_damaged=True)["colours"] == "all pictures are grey"
    for i in range(1, 20, 2):
        (folder / f"{i:02}.png").unlink(missing_ok=True)
    said = lines(folder, size=[18, 16], skip_damaged=True)
    assert said["sizes"] == "all pictures have 9×8 pixels (height×width), resized to 18×16"


def test_the_channels_of_series_are_told_with_their_scales(lines, tmp_path):
    values = RNG.normal(size=(40, 2, 30)) * [[1], [50]] + [[0], [1000]]
    np.save(tmp_path / "waves.npy", values)
    said = lines(tmp_path / "waves.npy")
    assert said["data"] == "waves: 32 series for training, 4 for validation, 4 for testing"
    assert said["shape"] == "2 channels of length 30, read as images of 1×2×30 pixels"
    data = split_and_scale(open_source(tmp_path / "waves.npy"), DataConfig())
    mean, std = data.train.values[data.train.rows].mean((0, 1, 3)), data.train.values[data.train.rows].std((0, 1, 3))
    assert said["scaling"] == (
        "standardised per channel, from mean ± standard deviation to 0 ± 1: "
        f"{mean[0]:.3f} ± {std[0]:.3f}, {mean[1]:.1f} ± {std[1]:.1f}".replace("-", "−")
    )


def test_values_that_are_not_scaled(lines, tmp_path):
    np.save(tmp_path / "binary.npy", RNG.integers(0, 2, (30, 5)))
    np.save(tmp_path / "unit.npy", RNG.uniform(size=(30, 4, 4)))
    np.save(tmp_path / "one.npy", RNG.normal(5, 2, size=(30, 4, 4)))
    binary = lines(tmp_path / "binary.npy", patience=2)
    assert (binary["columns"], binary["scaling"]) == ("5", "none: every value is 0 or 1")
    assert binary["likelihood"].startswith("Bernoulli")
    assert binary["training"].endswith("; it stops after 2 epochs without a better validation score")
    assert lines(tmp_path / "unit.npy")["scaling"] == "none: the values are used as they are"
    assert "(mean ± standard deviation of all values) becomes 0 ± 1" in lines(tmp_path / "one.npy")["scaling"]


def test_a_run_keeps_the_scaling_it_began_with(tmp_path):
    np.save(tmp_path / "waves.npy", RNG.normal(size=(40, 2, 30)) * [[1], [50]])
    settings = run_settings(SMALL)
    seen = []

    def begin(run, data, vae):
        seen.append((run.scaling, data.scaling, data.train.scaling))

    run, _, _ = train(tmp_path / "waves.npy", settings, out=tmp_path / "runs", on_start=begin)
    assert run.scaling.axis == 1
    former = Scaling(kind="standardised", offset=(0.5,), scale=(30.0,))  # as versions before chose it
    replace(run, scaling=former).write()
    again, _, _ = train(tmp_path / "waves.npy", settings, out=tmp_path / "runs", on_start=begin)
    assert again.folder == run.folder
    assert seen[1] == (former, former, former)
    assert open_run(run.folder).data().scaling == former


def test_many_skipped_files_are_counted(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    for i in range(12):
        (tmp_path / f"b{i:02}.png").touch()
    said = skipped_files(open_source(tmp_path, SourceConfig(skip_damaged=True)))
    assert said.startswith(f"12 files are left out of {tmp_path}: b00.png is not a picture, or it is damaged: ")
    assert said.endswith("; and 2 more")
    (tmp_path / "c").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "c" / "a.png")
    assert skipped_files(open_source(tmp_path / "c")) is None


def pictures(folder, make, count=10):
    folder.mkdir()
    for i in range(count):
        Image.fromarray(make()).save(folder / f"{i}.png")
    return folder


def test_what_is_odd_about_pictures_is_said(lines, tmp_path):
    def noise(highest, dtype, *channels):
        return lambda: RNG.integers(0, highest, (6, 6, *channels), dtype=dtype)

    grey = pictures(tmp_path / "grey", lambda: noise(256, np.uint8, 1)().repeat(3, 2))
    (grey / "notes.txt").touch()
    said = lines(grey)
    assert said["colours"] == (
        "10 of 10 pictures are stored in colour, but all have only shades of grey; `grey` reads them with one channel"
    )
    assert said["ignored"] == "1 file that is not a picture (notes.txt)"
    assert not {"depth", "transparent", "warning"} & set(said)
    assert lines(pictures(tmp_path / "colour", noise(256, np.uint8, 3)))["colours"] == "all pictures are coloured"
    deep = "10 of 10 pictures have 16 bits per pixel, reduced to 8"
    assert lines(pictures(tmp_path / "deep", noise(65536, np.uint16)))["depth"] == deep
    assert lines(pictures(tmp_path / "dark", noise(500, np.uint16)))["depth"] == (
        f"{deep}, of which only the values 0 to 2 are used: one .npy array of all pictures keeps the others"
    )
    clear = lines(pictures(tmp_path / "clear", noise(256, np.uint8, 4)))["transparent"]
    assert clear == "10 of 10 pictures can be transparent; transparent parts are read as black"
    black = lines(pictures(tmp_path / "black", noise(1, np.uint8)))
    assert black["warning"] == "all instances for training are the same: is this the right data?"
