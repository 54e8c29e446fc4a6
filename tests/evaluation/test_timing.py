"""The timer, on a clock that the tasks themselves turn on."""

import pytest
import torch

import gpin
from gpin.evaluation import timing


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is advanced."""

    class Clock:
        now = 0.0
        slowness = 1.0

        def advance(self, seconds):
            self.now += seconds * self.slowness

    found = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: found.now)
    return found


def test_tasks_take_turns_with_the_reference_around_each():
    calls = []
    tasks = {name: lambda name=name: calls.append(name) for name in "abc"}
    found = timing.interleaved_times(tasks, repeats=3, calls=2)
    assert "".join(calls) == "aaaaaabbaaccaa" * 4
    assert {name: (len(one.seconds), len(one.ratios)) for name, one in found.items()} == dict.fromkeys("abc", (3, 3))


def test_a_machine_that_slows_down_does_not_change_the_ratios(clock):
    def slow():
        clock.advance(3.0)
        clock.slowness *= 1.01

    found = timing.interleaved_times({"quick": lambda: clock.advance(2.0), "slow": slow}, repeats=9, calls=1)
    assert found["slow"].mean > 3.1
    assert found["slow"].ratio == pytest.approx(1.5, rel=0.01)
    assert found["quick"].ratio == pytest.approx(1)
    assert found["slow"].fastest == found["slow"].seconds[0]
    least, most = found["slow"].range
    assert least <= found["slow"].ratio <= most


def test_the_warm_up_is_not_counted_and_times_are_of_one_call(clock):
    first = []

    def task():
        clock.advance(1.0 if first else 100.0)
        first.append(True)

    (found,) = timing.interleaved_times({"task": task}, repeats=2, calls=4).values()
    assert found.seconds == (1.0, 1.0)
    assert found.median == found.mean == 1.0


def test_a_slow_task_is_not_repeated_beyond_the_time_allowed(clock):
    (found,) = timing.interleaved_times({"task": lambda: clock.advance(5.0)}, repeats=9, most_seconds=30).values()
    assert len(found.seconds) == 2
    (found,) = timing.interleaved_times({"task": lambda: clock.advance(5.0)}, repeats=9, most_seconds=1).values()
    assert len(found.seconds) == 1


def test_inference_is_timed_without_gradients():
    models = {
        method: gpin.build((3,), method, 2, architecture={"width": 8}, seed=0).eval() for method in ("vae", "gp", "iaf")
    }
    found = timing.inference_times(models, torch.randn(5, 3), repeats=2)
    assert list(found) == ["vae", "gp", "iaf"]
    assert all(seconds > 0 for one in found.values() for seconds in one.seconds)
