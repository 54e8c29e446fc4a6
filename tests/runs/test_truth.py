"""The split of the gap on test and training data."""

from types import SimpleNamespace

import pytest
import torch

from gpin._core.seeding import seeded
from gpin.evaluation.gaps import Gaps
from gpin.runs.rows import random_rows, spread_rows
from gpin.runs.truth import GapSplit, split_gaps


def known(test, train):
    """Gaps with the given approximation and amortization of each instance."""
    return GapSplit(
        {
            name: Gaps(torch.tensor(a) + torch.tensor(b), torch.tensor(a), torch.tensor(b))
            for name, (a, b) in (("test", test), ("train", train))
        }
    )


def test_generalisation_is_the_difference_of_the_means():
    split = known(([10.0, 14.0], [1.0, 3.0]), ([5.0, 5.0], [1.0, 1.0]))
    assert split.generalisation("inference") == pytest.approx((14 - 6, 3.0))
    record = split.record()
    assert record["test"]["amortization"] == {"mean": 12.0, "stderr": 2.0}
    assert record["generalisation"]["approximation"]["mean"] == 1.0
    table = split.table()
    assert table.head == ["", "test, 2 instances", "train, 2 instances", "generalisation"]
    assert table.rows[0] == ["inference gap", "14.00 ± 3.00", "6.00 ± 0.00", "8.00 ± 3.00"]
    assert [row[0] for row in table.rows[1:]] == ["· amortization gap", "· approximation gap"]


def test_the_split_of_a_model_is_its_own(rows, small_model):
    vae = small_model("vae")
    data = SimpleNamespace(test=spread_rows(rows, 9), train=rows)
    found = split_gaps(vae, data, limit=5, seed=3, samples=4, temperatures=3, chains=2)
    for name in ("test", "train"):
        with seeded(3):
            chosen = random_rows(getattr(data, name), 5, 3)
            expected = vae.gaps(chosen[:], samples=4, temperatures=3, chains=2)
        assert torch.equal(found.parts[name].inference, expected.inference)
    alone = split_gaps(vae, data, part="train", limit=5, samples=4, temperatures=1, chains=2)
    assert list(alone.parts) == ["train"]
    assert "generalisation" not in alone.record()
    assert alone.table().head == ["", "train, 5 instances"]
