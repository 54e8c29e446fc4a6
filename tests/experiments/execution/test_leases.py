"""Leases: one holder at a time, whoever dies, and whoever comes at once."""

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest

from gpin.experiments.execution import leases
from gpin.experiments.execution.leases import NAME, lease, leased

LONG_AGO = 1000.0


def never():
    raise AssertionError("the lease was lost")


def left_behind(folder, age=0.0, **content):
    """A lease that somebody made."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    path.write_text(json.dumps({"holder": "somebody", "machine": "elsewhere", "process": 1, "started": "1", **content}))
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def at_once(count, call):
    """What many threads find that call at one moment."""
    found, start = [], threading.Barrier(count)

    def run():
        start.wait()
        found.append(call())

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def takers(folder, count, **options):
    """How many of so many threads hold the folder at one moment, and how often one was told that it lost it."""
    tried, lost = threading.Barrier(count), []

    def take():
        with lease(folder, lambda: lost.append(1), **options) as ours:
            tried.wait()
            if ours:
                time.sleep(2 * options.get("beat", 0))
            return ours

    return sum(at_once(count, take)), len(lost)


def test_a_folder_is_held_until_the_end_and_then_free(tmp_path):
    folder = tmp_path / "new" / "folder"
    with lease(folder, never) as ours:
        assert ours
        assert leased(folder)
        with lease(folder, never) as again:
            assert not again
        assert leased(folder)
    assert not leased(folder)
    assert list(folder.iterdir()) == []
    with pytest.raises(KeyboardInterrupt), lease(folder, never):
        raise KeyboardInterrupt
    with lease(folder, never) as ours:
        assert ours


def test_of_many_threads_one_gets_it(tmp_path):
    for _ in range(20):
        assert takers(tmp_path, 12) == (1, 0)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("age", [LONG_AGO, 0.0], ids=["silent for long", "its process is no more"])
def test_of_many_who_take_over_one_gets_it_and_keeps_it(age, tmp_path):
    for i in range(25):
        machine = {"machine": "elsewhere"} if age else {"machine": leases._machine(), "process": 2**30}
        left_behind(tmp_path / str(i), age, **machine)
        assert takers(tmp_path / str(i), 12, beat=0.002) == (1, 0)
        assert list((tmp_path / str(i)).iterdir()) == []


def test_who_is_slow_to_take_over_does_not_disturb_who_was_faster(tmp_path, monkeypatch):
    """Between the judgement and the deed another has taken over; and a third one comes at every step."""
    left_behind(tmp_path, LONG_AGO)
    dead, read = leases._dead, leases._read
    faster, third = ExitStack(), []

    def slow(*arguments):
        monkeypatch.setattr(leases, "_dead", dead)
        verdict = dead(*arguments)
        assert faster.enter_context(lease(tmp_path, never, beat=0.001))
        monkeypatch.setattr(leases, "_read", try_and_read)
        return verdict

    def try_and_read(path):
        if threading.current_thread() is threading.main_thread():
            monkeypatch.setattr(leases, "_read", read)
            with lease(tmp_path, never) as ours:
                third.append(ours)
            time.sleep(0.01)
            monkeypatch.setattr(leases, "_read", try_and_read)
        return read(path)

    monkeypatch.setattr(leases, "_dead", slow)
    with faster, lease(tmp_path, never) as ours:
        monkeypatch.setattr(leases, "_read", read)
        assert not ours
        assert third
        assert not any(third)
        assert leased(tmp_path)


class Stopped(BaseException):
    """As sudden as a kill: nothing is done on the way out."""


class DiesAfterALink:
    def __getattr__(self, name):
        return getattr(os, name)

    def link(self, *arguments):
        os.link(*arguments)
        raise Stopped


def test_who_dies_while_taking_over_leaves_what_others_can_take(tmp_path, monkeypatch):
    path = left_behind(tmp_path, LONG_AGO)
    with monkeypatch.context() as patch:
        patch.setattr(leases, "os", DiesAfterALink())
        with pytest.raises(Stopped), lease(tmp_path, never):
            pass
    assert path.exists()
    assert len(list(tmp_path.iterdir())) == 2
    with lease(tmp_path, never, stale=60) as ours:  # for all that is known, the other one goes on
        assert not ours
    time.sleep(0.3)
    with lease(tmp_path, never, stale=0.2) as ours:
        assert ours
    assert list(tmp_path.iterdir()) == []


PROCESSES = """
import os, signal, sys, time
from pathlib import Path
from gpin.experiments.execution.leases import NAME, lease

folder, count, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for i in range(rounds):
    held = folder / str(i)
    held.mkdir(parents=True)
    if i % 2:  # every other one was left behind
        (held / NAME).write_text('{"holder": "somebody", "machine": "elsewhere", "process": 1, "started": "1"}')
        os.utime(held / NAME, (1, 1))
    start = time.time() + 0.02
    ready, tell = os.pipe()
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            os.close(tell)
            time.sleep(max(0, start - time.time()))
            with lease(held, lambda: os._exit(9), beat=0.002) as ours:
                os.write(1, b"1" if ours else b"0")
                if ours:
                    os.read(ready, 1)  # until the others have tried
            os._exit(0)
        children.append(child)
    for _ in range(count - 1):
        _, status = os.wait()
        assert status == 0
    os.close(tell)
    _, status = os.wait()
    assert status == 0
    os.close(ready)
    assert not list(held.iterdir()), list(held.iterdir())
    os.write(1, b" ")
"""


def test_of_many_processes_one_gets_it(tmp_path):
    count, rounds = 6, 30
    done = subprocess.run(
        [sys.executable, "-c", PROCESSES, tmp_path, str(count), str(rounds)],
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    assert [sorted(said) for said in done.stdout.split()] == [["0"] * (count - 1) + ["1"]] * rounds


HOLDER = """
import sys, time
from pathlib import Path
from gpin.experiments.execution.leases import lease
with lease(Path(sys.argv[1]), lambda: None) as ours:
    print(ours, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("reaped", [True, False])
def test_what_a_killed_process_of_this_machine_held_is_free_at_once(reaped, tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "True\n"
            assert leased(tmp_path)
            with lease(tmp_path, never) as ours:
                assert not ours
        finally:
            os.kill(process.pid, signal.SIGKILL)
        if reaped:
            process.wait()
        else:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not leased(tmp_path)
        with lease(tmp_path, never) as ours:
            assert ours


def test_another_process_with_the_number_of_a_dead_one_is_not_mistaken_for_it(tmp_path):
    left_behind(tmp_path, machine=leases._machine(), process=os.getpid(), started="1")
    assert not leased(tmp_path)
    with lease(tmp_path, never) as ours:
        assert ours


@pytest.mark.parametrize("machine", ["elsewhere", platform.node(), None], ids=["elsewhere", "of our name", "unknown"])
def test_another_machines_lease_is_taken_over_when_it_is_stale_and_not_before(machine, tmp_path):
    path = left_behind(tmp_path, age=30, machine=machine, process=2**30)
    assert leased(tmp_path)
    before = path.read_bytes()
    with lease(tmp_path, never) as ours:
        assert not ours
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == [NAME]
    left_behind(tmp_path, age=90)
    assert not leased(tmp_path)
    with lease(tmp_path, never) as ours:
        assert ours
        assert leased(tmp_path)


@pytest.mark.parametrize("content", ["", "nonsense", "[]", '{"machine": null}'])
def test_a_damaged_lease_is_a_lease_until_it_is_stale(content, tmp_path):
    path = left_behind(tmp_path)
    path.write_text(content)
    assert leased(tmp_path)
    with lease(tmp_path, never) as ours:
        assert not ours
    os.utime(path, (1, 1))
    with lease(tmp_path, never) as ours:
        assert ours


def test_a_holder_gives_signs_of_life(tmp_path):
    with lease(tmp_path, never, beat=0.01) as ours:
        assert ours
        os.utime(tmp_path / NAME, (1, 1))
        deadline = time.monotonic() + 30
        while not leased(tmp_path) or (tmp_path / NAME).stat().st_mtime < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_holder_is_told_that_somebody_took_over_and_leaves_the_lease_to_them(tmp_path):
    lost = threading.Event()
    with lease(tmp_path, lost.set, beat=0.01) as ours:
        assert ours
        assert not lost.wait(0.1)
        left_behind(tmp_path, holder="another")
        assert lost.wait(30)
    assert json.loads((tmp_path / NAME).read_text())["holder"] == "another"


BAD_MOMENTS = pytest.mark.parametrize(
    "number", [errno.ESTALE, errno.EMFILE, errno.EIO, errno.EACCES], ids=errno.errorcode.get
)


def unreadable(number):
    def read(*_, **__):
        raise OSError(number, os.strerror(number))

    return read


@BAD_MOMENTS
def test_a_lease_that_cannot_be_read_for_a_moment_is_not_lost(number, tmp_path, monkeypatch):
    lost = threading.Event()
    with lease(tmp_path, lost.set, beat=0.01) as ours:
        assert ours
        with monkeypatch.context() as patch:
            patch.setattr(leases.Path, "read_text", unreadable(number))
            assert not lost.wait(0.1)
            assert leased(tmp_path)
        (tmp_path / NAME).write_text("nonsense")
        assert not lost.wait(0.1)
        (tmp_path / NAME).unlink()
        assert lost.wait(30)


@BAD_MOMENTS
def test_a_lease_that_cannot_be_read_is_not_taken_over(number, tmp_path, monkeypatch):
    path = left_behind(tmp_path, LONG_AGO)
    with monkeypatch.context() as patch:
        patch.setattr(leases.Path, "read_text", unreadable(number))
        with lease(tmp_path, never) as ours:
            assert not ours
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    with lease(tmp_path, never) as ours:
        assert ours


@pytest.mark.parametrize(("age", "held"), [(0.0, True), (LONG_AGO, False)])
def test_where_nothing_can_be_written_this_machines_clock_tells_the_age(age, held, tmp_path, monkeypatch):
    left_behind(tmp_path, age)

    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("pathlib.Path.touch", refuse)
    assert leased(tmp_path) is held
