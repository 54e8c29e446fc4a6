"""Pictures that are too large or damaged, and grey ones for a model of coloured ones."""

import numpy as np
import pytest
from PIL import Image

import gpin
from gpin.data import Scaling, SourceConfig, applicable_options, as_model_data, open_source, pictures

PIXELS = Scaling(kind="pixels", scale=(255.0,))


def folder_of(path, mode, count=3):
    path.mkdir()
    for number in range(count):
        Image.new(mode, (4, 6), number if mode == "L" else (number, 0, 0)).save(path / f"{number}.png")
    return path


@pytest.mark.parametrize("limit", [23, 11])  # beyond the limit Pillow warns, beyond its double it refuses
def test_a_picture_that_is_too_large_is_one_sentence(tmp_path, monkeypatch, limit):
    folder = folder_of(tmp_path / "a", "L")
    monkeypatch.setattr(pictures.Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(
        gpin.InputError, match=r"0\.png is too large \(.*24 pixels.*\): make it smaller; `skip_damaged`"
    ):
        open_source(folder)


def test_damaged_pictures_can_be_left_out(tmp_path):
    folder = folder_of(tmp_path / "a", "L")
    whole = open_source(folder)
    Image.effect_noise((4, 6), 50).convert("RGB").save(folder / "cut.png")  # the only coloured one, with a whole header
    (folder / "cut.png").write_bytes((folder / "cut.png").read_bytes()[:-40])
    (folder / "empty.jpg").touch()
    Image.new("L", (4, 6)).save(folder / "moving.gif", save_all=True, append_images=[Image.new("L", (4, 6), 9)])
    for config in (SourceConfig(), SourceConfig(grey=True)):
        with pytest.raises(gpin.InputError, match=r"a picture, or it is damaged: .*; `skip_damaged` leaves out"):
            open_source(folder, config)
    found = open_source(folder, SourceConfig(skip_damaged=True))
    assert found.names == ("0.png", "1.png", "2.png")
    assert found.fingerprint() == whole.fingerprint()
    assert found.survey.coloured == ()
    assert found.survey.sizes == (((6, 4), 3),)
    cut, empty, moving = found.survey.skipped
    assert [name for name, _ in (cut, empty, moving)] == ["cut.png", "empty.jpg", "moving.gif"]
    assert "damaged" in cut[1]
    assert moving[1] == "holds 2 pictures: each file must hold one picture"
    for path in folder.glob("?.png"):
        path.unlink()
    with pytest.raises(gpin.InputError, match=r"none of the 3 pictures in .* can be read: the first is not a picture"):
        open_source(folder, SourceConfig(skip_damaged=True))


def test_leaving_nothing_out_is_no_part_of_a_record():
    assert "skip_damaged" not in SourceConfig().model_dump(mode="json")
    used = SourceConfig(skip_damaged=True)
    assert SourceConfig.parse(used.model_dump(mode="json"), "") == used


def test_grey_pictures_are_coloured_for_a_model_of_coloured_ones(tmp_path):
    rows = as_model_data(open_source(folder_of(tmp_path / "grey", "L")), (3, 6, 4), PIXELS)
    x = rows.__getitems__([2, 0])
    assert x.shape == (2, 3, 6, 4)
    assert (x[0] == 2 / 255).all()
    assert (x[1] == 0).all()


def test_a_column_is_not_coloured(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((5, 1)))
    with pytest.raises(gpin.InputError, match="holds instances of 1 numbers"):
        as_model_data(open_source(tmp_path / "a.npy"), (3,), PIXELS)


def test_coloured_pictures_are_refused_by_a_model_of_grey_ones_with_what_to_do(tmp_path):
    source = open_source(folder_of(tmp_path / "colour", "RGB"))
    with pytest.raises(gpin.InputError, match=r"read the pictures with `grey`$"):
        as_model_data(source, (1, 6, 4), PIXELS)
    with pytest.raises(gpin.InputError, match=r"3×6×4 .* read the pictures with `size=6x5`$"):
        as_model_data(source, (3, 6, 5), PIXELS)
    with pytest.raises(gpin.InputError, match=r"with `size=6x5` and `grey`$"):
        as_model_data(source, (1, 6, 5), PIXELS)
    assert np.asarray(source.values).shape == (3, 3, 6, 4)


def test_the_options_of_data_in_a_home_that_does_not_exist():
    assert applicable_options("~nobody-of-this-name/x.csv") == ("columns", "exclude", "kinds", "given")
