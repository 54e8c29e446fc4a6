"""Files appear whole or not at all, whatever happens on the way."""

import os

import pytest

from gpin.files import write_whole, written_whole


def test_a_file_appears_when_all_is_written(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with written_whole(path) as file:
        file.write(b"ne")
        assert path.read_text() == "old"
        file.write(b"w")
    assert {found.name: found.read_text() for found in tmp_path.iterdir()} == {"a.txt": "new"}


@pytest.mark.parametrize("error", [OSError, ZeroDivisionError, KeyboardInterrupt])
def test_what_fails_leaves_the_old_file_and_no_other(tmp_path, error):
    def fail(path):
        with written_whole(path) as file:
            file.write(b"new")
            raise error

    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(error):
        fail(tmp_path / "a.txt")
    assert {found.name: found.read_text() for found in tmp_path.iterdir()} == {"a.txt": "old"}


def test_content_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, call=call: done.append(name) or call(*given))
    write_whole(tmp_path / "a.txt", b"new")
    assert done == ["fsync", "replace"]
    assert (tmp_path / "a.txt").read_bytes() == b"new"


def test_a_file_without_a_place_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "nowhere" / "a.txt", b"new")
