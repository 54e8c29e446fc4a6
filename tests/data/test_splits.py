import numpy as np
import pytest

import gpin
from gpin.data import Images, split


def numbered(count):
    return np.arange(count).reshape(count, 1)


def test_a_tenth_of_the_training_part_is_held_out_and_the_test_part_left_alone():
    parts = split(Images(train=numbered(57), test=numbered(9)), seed=3)
    assert (len(parts.train), len(parts.validation)) == (52, 5)
    assert np.array_equal(parts.test, numbered(9))
    together = np.concatenate([parts.train, parts.validation]).ravel()
    assert sorted(together) == list(range(57))
    assert np.array_equal(parts.train.ravel(), parts.train_rows)


def test_a_set_without_a_test_part_is_split_eighty_ten_ten():
    parts = split(Images(train=numbered(1000)), seed=0)
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [800, 100, 100]
    together = np.concatenate([parts.train, parts.validation, parts.test]).ravel()
    assert sorted(together) == list(range(1000))


def test_the_seed_chooses_the_rows():
    images = Images(train=numbered(100), test=numbered(1))
    first, same, other = (split(images, seed).validation_rows for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_too_few_instances_are_refused():
    with pytest.raises(gpin.InputError, match="at least ten"):
        split(Images(train=numbered(9)))
