"""The split of the digits, and how the models are timed."""

import torch

from gpin.demo import Settings, load_digits
from gpin.demo.experiment import encoding_times


def test_the_split_is_seeded_and_has_no_overlap():
    first, again = load_digits(Settings()), load_digits(Settings())
    other = load_digits(Settings(seed=1))
    parts = (first.train, first.validation, first.test)
    assert [len(part) for part in parts] == [1197, 200, 400]
    assert all(part.shape[1:] == (1, 8, 8) and part.min() == 0 and part.max() == 1 for part in parts)
    assert torch.equal(first.test, again.test)
    assert not torch.equal(first.test, other.test)
    assert sorted(set(first.labels)) == list(range(10))
    everything = torch.cat(parts).flatten(1)
    assert len(everything.unique(dim=0)) == len(everything)


def test_the_models_take_turns_when_timed():
    calls = []

    class Fake:
        def __init__(self, name):
            self.name = name

        def encode(self, x):
            calls.append(self.name)

    times = encoding_times({"a": Fake("a"), "b": Fake("b")}, torch.zeros(1), repeats=3, calls=2)
    assert "".join(calls) == "aabb" * 4
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}
