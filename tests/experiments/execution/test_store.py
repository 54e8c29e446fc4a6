"""The store: what is done, failed or begun, and what is damaged."""

import errno
import json
import os
import random

import numpy as np
import pytest
from experiments.grids import columns, job, pretend
from pyarrow import parquet

from gpin._core.errors import InputError
from gpin._core.files import write_record
from gpin.experiments.execution.store import Store


def damages(content):
    """The content, truncated in several places and with one bit changed in many others."""
    places = random.Random(len(content))
    yield from (content[:cut] for cut in (0, 1, len(content) // 2, len(content) - 1))
    for place in {0, len(content) - 1, *(places.randrange(len(content)) for _ in range(40))}:
        changed = bytearray(content)
        changed[place] ^= 1 << places.randrange(8)
        yield bytes(changed)
    yield content + b"\0"


def test_a_result_comes_back_as_it_was_written(tmp_path):
    store, one, scores = Store(tmp_path / "new"), job(), columns(uncertain=True)
    assert store.result(one) is None
    assert store.state(one) == "waiting"
    assert store.missing([one]) == [one]
    assert not store.root.exists()
    pretend(store, one, scores, validation=-3.25)
    for reader in (store, Store(tmp_path / "new")):
        assert reader.result(one)["validation_elbo"] == -3.25
        assert reader.state(one) == "done"
        assert reader.missing([one, job(split=1)]) == [job(split=1)]
    table = parquet.read_table(store.scores(one)).to_pydict()
    assert table.keys() == scores.keys()
    assert all(np.array_equal(table[name], column) for name, column in scores.items())
    content = json.loads((store.folder(one) / "job.json").read_text())
    assert type(one).model_validate({name: content[name] for name in ("data", "settings", "scoring")}) == one


@pytest.mark.parametrize("name", ["result.json", "instances.parquet"])
def test_a_damaged_result_is_none(name, tmp_path):
    store, one = Store(tmp_path), job()
    pretend(store, one, columns())
    path = store.folder(one) / name
    content = path.read_bytes()
    for damaged in damages(content):
        path.write_bytes(damaged)
        assert Store(tmp_path).result(one) is None
        assert Store(tmp_path).state(one) == "waiting"
    path.unlink()
    assert Store(tmp_path).result(one) is None
    path.mkdir()
    assert Store(tmp_path).result(one) is None
    path.rmdir()
    path.write_bytes(content)
    assert Store(tmp_path).state(one) == "done"


def test_a_result_is_its_own_jobs(tmp_path):
    store = Store(tmp_path)
    pretend(store, job(split=0), columns(0))
    pretend(store, job(split=1), columns(1))
    other = (store.folder(job(split=1)) / "instances.parquet").read_bytes()
    (store.folder(job(split=0)) / "instances.parquet").write_bytes(other)
    assert Store(tmp_path).result(job(split=0)) is None
    assert Store(tmp_path).result(job(split=1)) is not None


def test_a_failure_is_kept_until_it_is_forgotten(tmp_path):
    store, one = Store(tmp_path), job()
    assert store.failure(one) is None
    store.begin(one)
    store.fail(one, "no luck — ä")
    assert store.failure(one) == "no luck — ä"
    assert store.state(one) == "failed"
    assert store.failure(job(split=1)) is None
    path = store.folder(one) / "failure.json"
    content = path.read_bytes()
    for damaged in damages(content):
        path.write_bytes(damaged)
        assert store.failure(one) is None
        assert store.state(one) == "waiting"
    path.write_bytes(content)
    store.forget_failure(one)
    store.forget_failure(one)
    assert store.failure(one) is None
    assert store.state(one) == "waiting"


def test_attempts_are_noted_until_one_comes_to_an_end(tmp_path):
    store, one = Store(tmp_path), job()
    assert store.attempts(one) == []
    store.begin(one)
    dead = []  # in whose processes nothing happens any more
    for number in range(2):
        dead.append(store.attempt(one, f"worker {number}"))
        assert dead[-1].__enter__() == [f"worker {i}" for i in range(number)]
    assert Store(tmp_path).attempts(one) == ["worker 0", "worker 1"]
    with pytest.raises(KeyboardInterrupt), store.attempt(one, "interrupted"):
        raise KeyboardInterrupt
    assert store.attempts(one) == ["worker 0", "worker 1"]
    path = store.folder(one) / "attempts.json"
    content = path.read_bytes()
    for damaged in damages(content):
        path.write_bytes(damaged)
        assert store.attempts(one) == []
    path.write_bytes(content)
    with store.attempt(one, "the last"):
        pass
    assert store.attempts(one) == []
    path.write_bytes(content)
    store.forget_failure(one)
    assert store.attempts(one) == []
    assert not path.exists()


def test_what_is_left_is_neither_done_nor_failed(tmp_path):
    store, jobs = Store(tmp_path), [job(split=split) for split in range(3)]
    pretend(store, jobs[0], columns())
    store.begin(jobs[1])
    store.fail(jobs[1], "before")
    assert store.missing(jobs) == jobs[1:]
    assert store.left(jobs) == jobs[2:]


def test_the_state_is_what_matters_most(tmp_path):
    store, one = Store(tmp_path), job()
    with store.lease(one, lambda: None) as ours:
        assert ours
        assert store.state(one) == "running"
        store.fail(one, "before")
        assert store.state(one) == "running"
        with Store(tmp_path).lease(one, lambda: None) as theirs:
            assert not theirs
        pretend(store, one, columns())
        assert store.state(one) == "done"
    assert store.state(one) == "done"
    assert not store.running(one)


def test_a_file_is_no_store(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file, but the store must be a folder"):
        Store(tmp_path / "file")
    with pytest.raises(InputError, match="the store must be a path, got 3"):
        Store(3)


def test_a_job_that_somebody_is_at_keeps_its_attempts(tmp_path):
    store, one = Store(tmp_path), job()
    with store.lease(one, lambda: None), store.attempt(one, "me"):
        store.forget_failure(one)
        assert store.attempts(one) == ["me"]


def test_a_result_of_another_version_is_neither_read_nor_done_again(tmp_path):
    store, one = Store(tmp_path), job()
    pretend(store, one, columns())
    write_record(store.folder(one) / "result.json", "gpin-result", 2, {"what": "else"})
    for ask in (Store(tmp_path).result, Store(tmp_path).state, lambda one: Store(tmp_path).missing([one])):
        with pytest.raises(InputError, match="has format version 2; this gpin reads 1"):
            ask(one)


def test_a_result_that_cannot_be_read_is_not_taken_for_missing(tmp_path, monkeypatch):
    store, one = Store(tmp_path), job()
    pretend(store, one, columns())

    def refuse(path, **more):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    with pytest.raises(PermissionError):
        Store(tmp_path).result(one)
