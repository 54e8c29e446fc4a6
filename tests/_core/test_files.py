"""Files appear whole or not at all, whatever happens on the way."""

import os
import threading
from pathlib import Path

import pytest

from gpin._core.files import check_writable, remove_unfinished, write_whole, written_whole


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


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "a.txt"
    with written_whole(path) as first:
        first.write(b"fir")
        with written_whole(path) as second:
            second.write(b"second")
        assert path.read_text() == "second"
        first.write(b"st")
    assert {found.name: found.read_text() for found in tmp_path.iterdir()} == {"a.txt": "first"}


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "link").symlink_to("a.txt")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a.txt").read_text() == "new"


def test_a_pipe_gets_the_content_and_stays_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = []
    thread = threading.Thread(target=lambda: read.append(path.read_bytes()))
    thread.start()
    write_whole(path, b"new")
    thread.join()
    assert read == [b"new"]
    assert path.is_fifo()


def test_errors_name_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(IsADirectoryError) as caught:
        write_whole(tmp_path, b"new")
    assert caught.value.filename == str(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        write_whole(tmp_path / "nowhere" / "a.txt", b"new")
    assert caught.value.filename == str(tmp_path / "nowhere" / "a.txt")


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    for name in ("a.txt", "a.txt.1234abcd.part"):
        (tmp_path / name).write_text(name)
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    remove_unfinished(tmp_path / "nowhere")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no folder that nobody can write to")
def test_a_folder_that_cannot_be_written_to_is_found_out_at_once(tmp_path):
    check_writable(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="/proc"):
        check_writable(Path("/proc"))
