"""Results scores against the same by hand: made-up results, numpy and scipy."""

from dataclasses import replace

import numpy as np
import pytest
from experiments.grids import columns, experiment, pretend, protocol
from scipy import stats

from gpin.evaluation.paired import paired_difference
from gpin.experiments.analysis.results import Results
from gpin.experiments.analysis.statistics import Summary
from gpin.experiments.execution.store import Store

HOW = protocol(splits=3, initialisations=2)


def entries(*rows, dims=(2,), data=("digits",)):
    return experiment(*rows, dims=dims, data=data).entries(HOW)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store with all runs of a VAE and a GP, and the scores of those that should count, by row and split."""
    store, counts = Store(tmp_path_factory.mktemp("made")), {}
    for number, entry in enumerate(entries("vae", "gp"), 1):
        # The start that is best on validation data is another in each split, and is not the best on test data.
        chosen = entry.initialisation == entry.split % 2
        scores = columns(number, uncertain=entry.row == "gp")
        if not chosen:
            scores = {name: column + 100 for name, column in scores.items()} | {"instance": scores["instance"]}
        else:
            counts[entry.row, entry.split] = scores
        pretend(
            store, entry.job, scores, validation=-10.0 if chosen else -11.0, parameters=len(entry.row), seconds=number
        )
    return store, counts


def stacked(counts, row, name):
    """The scores of the runs that count, `(splits, instances)`."""
    return np.stack([counts[row, split][name] for split in range(3)])


@pytest.mark.parametrize("row", ["vae", "gp"])
def test_means_and_deviations_are_those_of_the_best_start_on_validation_data(row, made):
    store, counts = made
    found = Results(store, entries("vae", "gp")).variants("digits", 2)
    line = {line.row: line for line in found}[row]
    for name in ("log_likelihood", "refined_log_likelihood", "elbo"):
        summary = line.scores[name]
        each = stacked(counts, row, name).mean(1)
        assert summary.mean == pytest.approx(each.mean())
        assert summary.std == pytest.approx(each.std(ddof=1))
        assert summary.runs == 3
    assert line.done == line.wanted == 6  # two starts of each split
    gap = stacked(counts, row, "refined_elbo") - stacked(counts, row, "elbo")
    assert line.scores["amortization_gap"].mean == pytest.approx(gap.mean())
    assert line.scores["amortization_gap"].std == pytest.approx(gap.mean(1).std(ddof=1))
    for before in ("", "refined_"):
        assert line.scores[before + "ess"].mean == pytest.approx(stacked(counts, row, before + "ess").mean())
        share = (stacked(counts, row, before + "khat") > 0.7).mean()
        assert line.scores[before + "khat"].mean == pytest.approx(share)


def test_the_difference_is_of_the_same_instances_and_splits(made):
    store, counts = made
    vae, gp = Results(store, entries("vae", "gp")).variants("digits", 2)
    assert vae.differences == {}
    for difference, name in zip(gp.differences["vae"], ("log_likelihood", "refined_log_likelihood"), strict=True):
        ours, theirs = stacked(counts, "gp", name), stacked(counts, "vae", name)
        for found, axis, count in ((difference.instances, 0, 40), (difference.splits, 1, 3)):
            expected = paired_difference(ours.mean(axis), theirs.mean(axis))
            assert (found.mean, found.stderr, found.low, found.high) == pytest.approx(
                (expected.mean, expected.stderr, expected.low, expected.high)
            )
            assert found.instances == count
        assert difference.ahead == (ours.mean(1) > theirs.mean(1)).sum()


def test_every_baseline_is_compared_with_the_others(tmp_path):
    store, wanted = Store(tmp_path), entries("vae", "vae-2x", "natural")
    levels = {"vae": 1.0, "vae-2x": 3.0, "natural": 7.0}
    for entry in wanted:
        value = np.full(40, levels[entry.row])
        pretend(store, entry.job, columns(log_likelihood=value, refined_log_likelihood=value))
    found = {line.row: line for line in Results(store, wanted).variants("digits", 2)}
    means = {
        row: {baseline: both[0].instances.mean for baseline, both in line.differences.items()}
        for row, line in found.items()
    }
    assert means == {"vae": {"vae-2x": -2.0}, "vae-2x": {"vae": 2.0}, "natural": {"vae": 6.0, "vae-2x": 4.0}}
    record = found["natural"].record()
    assert record["differences"] == record["differences_from"]["vae"]
    assert record["differences_from"]["vae-2x"]["refined"]["ahead"] == 3


def test_correlations_are_scipys_mean_over_runs(made):
    store, counts = made
    vae, gp = Results(store, entries("vae", "gp")).variants("digits", 2)

    def rho(row, told):
        gaps = stacked(counts, row, "refined_elbo") - stacked(counts, row, "elbo")
        return np.mean([stats.spearmanr(one, gap).statistic for one, gap in zip(told, gaps, strict=True)])

    assert gp.by_uncertainty.rho == pytest.approx(rho("gp", stacked(counts, "gp", "uncertainty")))
    assert 0.1 < gp.by_uncertainty.stderr < 0.2  # of one run, for all have the same instances
    assert vae.by_uncertainty is None
    for line in (vae, gp):
        assert line.by_elbo.rho == pytest.approx(rho(line.row, -stacked(counts, line.row, "elbo")))


def test_sizes_are_means_over_the_runs_that_count(made):
    store, _ = made
    vae, gp = Results(store, entries("vae", "gp")).variants("digits", 2)
    assert (vae.parameters, gp.parameters) == (3, 2)


def test_the_error_of_a_mean_is_the_root_of_the_sum_of_squares(made):
    store, counts = made
    vae, _ = Results(store, entries("vae", "gp")).variants("digits", 2)
    for before in ("", "refined_"):
        errors = stacked(counts, "vae", before + "mc_error")
        assert vae.scores[before + "mc_error"].mean == pytest.approx(np.mean(np.sqrt((errors**2).sum(1)) / 40))


def test_a_difference_is_only_of_splits_that_have_both(tmp_path):
    store, wanted, scores = Store(tmp_path), entries("vae", "gp"), {}
    for i, entry in enumerate(wanted):
        if (entry.row, entry.split) in (("vae", 0), ("vae", 1), ("gp", 1), ("gp", 2)) and not entry.initialisation:
            scores[entry.row, entry.split] = columns(i)
            pretend(store, entry.job, columns(i))
    gathered = Results(store, wanted)
    assert gathered.done == 4
    vae, gp = gathered.variants("digits", 2)
    for line in (vae, gp):
        assert (line.scores["log_likelihood"].runs, line.done, line.wanted) == (2, 2, 6)
    expected = paired_difference(*(scores[row, 1]["log_likelihood"] for row in ("gp", "vae")))
    found = gp.differences["vae"][0]
    assert found.instances.mean == pytest.approx(expected.mean)
    assert found.instances.low == pytest.approx(expected.low)
    assert found.splits.instances == 1


def test_an_instance_without_a_score_does_not_take_the_rest_with_it(tmp_path):
    store, (entry, *_) = Store(tmp_path), entries("gp")
    scores = columns(3, uncertain=True)
    scores["uncertainty"][5] = np.nan
    pretend(store, entry.job, scores)
    (line,) = Results(store, [entry]).variants("digits", 2)
    rest = np.arange(40) != 5
    gap = (scores["refined_elbo"] - scores["elbo"])[rest]
    assert line.by_uncertainty.rho == pytest.approx(stats.spearmanr(scores["uncertainty"][rest], gap).statistic)


def test_a_job_in_two_rows_counts_once_in_each(tmp_path):
    store, (entry, *_) = Store(tmp_path), entries("gp")
    pretend(store, entry.job, columns(3, uncertain=True))
    found = Results(store, [entry, replace(entry, row="vae")])
    assert [line.by_elbo.stderr for line in found.variants("digits", 2)] == [
        Results(store, [entry]).variants("digits", 2)[0].by_elbo.stderr
    ] * 2


def test_each_column_has_its_own_results(tmp_path):
    store, wanted = Store(tmp_path), entries("vae", dims=(2, 3), data=("digits", "mnist"))
    means = {("digits", 2): 1.0, ("digits", 3): 2.0, ("mnist", 2): 3.0}
    for entry in wanted:
        if (entry.data, entry.latent_dim) in means:
            mean = means[entry.data, entry.latent_dim]
            pretend(store, entry.job, columns(log_likelihood=np.full(40, mean)), fingerprint=f"{mean}")
    gathered = Results(store, wanted)
    assert gathered.columns() == [("digits", 2), ("digits", 3), ("mnist", 2), ("mnist", 3)]
    for column, mean in means.items():
        (line,) = gathered.variants(*column)
        assert line.scores["log_likelihood"] == Summary(mean, 0.0, 3)
    assert gathered.variants("mnist", 3) == []
    assert gathered.fingerprints == {"digits": {"1.0", "2.0"}, "mnist": {"3.0"}}
    assert gathered.environments == [{"machine": "none"}]


def test_nothing_is_nothing(tmp_path):
    gathered = Results(Store(tmp_path), entries("vae"))
    assert gathered.done == 0
    assert gathered.variants("digits", 2) == []
    assert gathered.fingerprints == {}


def test_an_unknown_khat_is_not_counted(tmp_path):
    store, (entry, *_) = Store(tmp_path), entries("vae")
    khat = np.full(40, 0.5)
    khat[:10], khat[10:20] = np.nan, 0.9
    pretend(store, entry.job, columns(khat=khat, refined_khat=np.full(40, np.nan)))
    (line,) = Results(store, [entry]).variants("digits", 2)
    assert line.scores["khat"].mean == pytest.approx(10 / 30)
    assert np.isnan(line.scores["refined_khat"].mean)


def test_any_folder_can_be_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entry = entries("vae")[0]
    for folder in ("plain", "./a/../a b", "results [old]*?", "it's ä"):
        store = Store(folder)
        pretend(store, entry.job, columns(log_likelihood=np.full(40, 7.0)))
        (line,) = Results(store, [entry]).variants("digits", 2)
        assert line.scores["log_likelihood"].mean == 7.0


def test_scores_of_a_part_are_means_over_that_part(tmp_path):
    store, plan = Store(tmp_path), protocol(splits=1)
    plan = plan.model_copy(update={"scoring": plan.scoring.model_copy(update={"closely": 20})})
    entries = experiment("vae", "gp").entries(plan)
    for number, entry in enumerate(entries):
        scores = columns(number)
        scores["refined_log_likelihood"][20:] = np.nan
        scores["refined_ess"][20:] = np.nan
        pretend(store, entry.job, scores)
    _, gp = Results(store, entries).variants("digits", 2)
    ours, theirs = (columns(number)["refined_log_likelihood"][:20] for number in (1, 0))
    assert gp.scores["refined_log_likelihood"].mean == pytest.approx(ours.mean())
    assert gp.scores["log_likelihood"].mean == pytest.approx(columns(1)["log_likelihood"].mean())
    whole, part = gp.differences["vae"]
    assert (whole.instances.instances, part.instances.instances) == (40, 20)
    assert part.instances.mean == pytest.approx((ours - theirs).mean())
