"""Protocols: how many runs there are, that each is another, and that what is running stays what it was."""

import math
from collections import Counter

import pytest

import gpin
from gpin._core.errors import InputError
from gpin.data import BENCHMARKS
from gpin.experiments import PAPER
from gpin.experiments.protocols import (
    EXPERIMENTS,
    PROTOCOLS,
    VARIANTS,
    experiment_named,
    protocol_named,
)

TABLES = [name for name, one in EXPERIMENTS.items() if name in BENCHMARKS]
PAPERS = [name for name in TABLES if name in PAPER.log_likelihood]


def test_the_papers_protocol_has_all_of_its_runs():
    entries = EXPERIMENTS["mnist"].entries(PROTOCOLS["paper"])
    assert len(entries) == 22 * 3 * 10 * 3 == 1980
    assert Counter(entry.latent_dim for entry in entries) == {10: 660, 20: 660, 50: 660}
    assert Counter((entry.split, entry.initialisation) for entry in entries) == {
        (split, start): 66 for split in range(10) for start in range(3)
    }
    one = entries[0].job
    assert one.settings.training.epochs == 2000
    assert one.settings.training.batch_size == 128
    assert one.settings.training.learning_rate == 5e-4
    assert one.settings.data.limit is None
    assert one.scoring.samples == 100
    assert one.scoring.instances is None


def test_the_long_protocol_takes_all_images_and_scores_all_of_the_test_part():
    entries = EXPERIMENTS["mnist"].entries(PROTOCOLS["long"])
    assert {entry.latent_dim for entry in entries} == {10, 20, 50}
    natural = {entry.job.identity for entry in entries if entry.row.startswith("natural") and entry.latent_dim == 10}
    assert len(natural) == 1  # all numbers of steps are scored from one training
    one = entries[0].job
    assert (one.settings.data.limit, one.scoring.instances) == (None, None)
    assert (one.scoring.closely, one.scoring.temperatures) == (250, 200)
    with pytest.raises(InputError, match="celeba has no protocol 'long': choose one of paper, desk"):
        EXPERIMENTS["celeba"].entries(PROTOCOLS["long"])


def test_five_tables_are_the_papers():
    assert sorted(PAPERS) == sorted(PAPER.log_likelihood)


@pytest.mark.parametrize("name", PAPERS)
def test_its_rows_are_those_of_the_paper(name):
    assert EXPERIMENTS[name].latent_dims["paper"] == tuple(PAPER.log_likelihood[name]) == (10, 20, 50)
    for column in PAPER.log_likelihood[name].values():
        assert sorted(EXPERIMENTS[name].rows["paper"]) == sorted(column)


def test_the_rows_of_the_dense_decoder_are_those_of_the_paper():
    one = EXPERIMENTS["fc-decoder"]
    for data in one.data:
        for dim in one.latent_dims["paper"]:
            known = {row for row, value in PAPER.dense_log_likelihood[data][dim].items() if not math.isnan(value)}
            assert known
            assert known <= set(one.rows["paper"])
    assert {entry.job.settings.model.architecture["decoder"] for entry in one.entries(PROTOCOLS["desk"])} == {"dense"}


def test_every_run_is_another_unless_only_the_steps_differ():
    chosen = [(one, "desk") for one in EXPERIMENTS.values()] + [(EXPERIMENTS["mnist"], "paper")]
    entries = [(one.name, how, entry) for one, how in chosen for entry in one.entries(PROTOCOLS[how])]
    trained = [entry.job.identity for *_, entry in entries if entry.steps is None]
    assert len(set(trained)) == len(trained)
    assert {entry.job.identity for *_, entry in entries if entry.steps is not None} <= set(trained)
    assert len({(name, how, str(entry)) for name, how, entry in entries}) == len(entries)


def test_one_split_is_the_same_data_for_all_and_each_start_is_its_own():
    entries = EXPERIMENTS["mnist"].entries(PROTOCOLS["paper"], [10], ["vae", "gp"])
    assert all(entry.job.settings.data.seed == entry.split for entry in entries)
    seeds = {(entry.split, entry.initialisation): entry.job.settings.training.seed for entry in entries}
    assert len(set(seeds.values())) == len(seeds) == 30
    assert all(entry.job.settings.training.seed == seeds[entry.split, entry.initialisation] for entry in entries)


def test_identities_are_what_they_were():
    """Else all that was ever run would be run again."""
    first = {
        name: EXPERIMENTS[name].entries(PROTOCOLS[how])[0] for name, how in (("mnist", "desk"), ("celeba", "paper"))
    }
    last = EXPERIMENTS["fc-decoder"].entries(PROTOCOLS["desk"], rows=["gp"])[-1]
    assert [first["mnist"].job.identity, first["celeba"].job.identity, last.job.identity] == IDENTITIES


IDENTITIES = ["3825fc4fdd604d33", "49a1bcbff9bd4b6f", "ad147cc624bafe31"]


@pytest.mark.parametrize("name", VARIANTS)
def test_the_options_of_every_row_are_the_methods(name):
    row = VARIANTS[name]
    vae = gpin.build((1, 8, 8), row.method, 2, architecture={"width": 8}, seed=0, **row.options)
    assert vae.config.method == row.method
    count = name.rpartition("-")[2]
    if row.steps is not None:
        assert int(count) == row.steps
        assert row.steps in PROTOCOLS["desk"].job("mnist", name, 10, 0, 0, "mirror", False).scoring.steps
    elif count.isdecimal():
        assert int(count) in row.options.values()
        assert f"({count})" in row.title


def test_twice_the_epochs_are_twice_the_epochs():
    vae, longer = (PROTOCOLS["desk"].job("mnist", row, 10, 0, 0, "mirror", False) for row in ("vae", "vae-2x"))
    assert longer.settings.training.epochs == 2 * vae.settings.training.epochs


def test_another_initialisation_is_the_second_of_two():
    again = PROTOCOLS["long"].job("mnist", "gp-again", 50, 0, 0, "mirror", False)
    first, second = (PROTOCOLS["long"].job("mnist", "gp", 50, 0, start, "mirror", False) for start in (0, 1))
    assert again.identity == second.identity != first.identity


def test_other_rows_and_dimensions_can_be_asked_for():
    entries = EXPERIMENTS["digits"].entries(PROTOCOLS["desk"], [2, 3], ["gp", "vae"])
    assert len(entries) == 2 * 2 * 3
    assert [str(entry) for entry in entries[:2]] == [
        "digits d=2 gp, split 0, start 0",
        "digits d=2 vae, split 0, start 0",
    ]
    assert {entry.job.settings.model.latent_dim for entry in entries} == {2, 3}


def test_names_that_there_are_not_are_told_with_those_that_there_are():
    with pytest.raises(InputError, match=r"there is no row 'gpp': .*gp"):
        EXPERIMENTS["digits"].entries(PROTOCOLS["desk"], rows=["vae", "gpp"])
    with pytest.raises(InputError, match=r"there is no experiment 'mnits': .*mnist"):
        experiment_named("mnits")
    with pytest.raises(InputError, match=r"there is no protocol 'dek': .*desk"):
        protocol_named("dek")
    assert experiment_named("mnist").name == "mnist"
    assert protocol_named("desk").name == "desk"
