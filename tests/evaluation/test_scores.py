"""The registry of scores: what each computes, against the definitions, and how a new one is added."""

import math

import numpy as np
import pytest
import torch

import gpin
from gpin._core.errors import InputError
from gpin.evaluation.grid import grid_scores
from gpin.evaluation.scores import (
    MEDIAN,
    SCORES,
    Measurement,
    Score,
    join_columns,
    mean_and_error,
    register,
    share_above,
    with_derived,
)


@pytest.fixture
def registry():
    """The registry, which is as before after the test."""
    before = dict(SCORES)
    yield SCORES
    SCORES.clear()
    SCORES.update(before)


@pytest.fixture(scope="module")
def model():
    vae, x = gpin.build((4,), "gp", 2, seed=0).eval(), torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    vae.prepare(x)
    return vae, x


@pytest.fixture(scope="module")
def measurement(model):
    vae, x = model
    torch.manual_seed(0)
    with torch.no_grad():
        return Measurement(
            vae=vae,
            x=x,
            encoder=vae.log_likelihood(x, 50),
            refined=vae.log_likelihood(x, 50, "refined"),
            elbo=vae.elbo(x, 10),
            uncertainty=vae.uncertainty(x),
            log_volume=1.5,
        )


def test_columns_are_what_was_measured_one_value_per_instance(measurement):
    found = with_derived(measurement.columns())
    encoder, refined = measurement.encoder, measurement.refined
    expected = {
        "log_likelihood": encoder.values,
        "refined_log_likelihood": refined.values,
        "elbo": encoder.elbo,
        "refined_elbo": refined.elbo,
        "ess": encoder.ess,
        "refined_ess": refined.ess,
        "khat": encoder.khat,
        "refined_khat": refined.khat,
        "mc_error": encoder.mc_error,
        "refined_mc_error": refined.mc_error,
        "uncertainty": measurement.uncertainty.mean_part + measurement.uncertainty.std_part,
        "uncertainty_f": measurement.uncertainty.mean_part,
        "uncertainty_h": measurement.uncertainty.std_part,
        "training_elbo": measurement.elbo.reconstruction - measurement.elbo.kl - measurement.elbo.weight_kl,
        "reconstruction": measurement.elbo.reconstruction,
        "kl_to_prior": measurement.elbo.kl,
        "weight_kl": measurement.elbo.weight_kl,
        "bits_per_dim": -(encoder.values - 1.5) / (4 * math.log(2)),
        "refined_bits_per_dim": -(refined.values - 1.5) / (4 * math.log(2)),
        "inference_gap": refined.values - encoder.elbo,
        "amortization_gap": refined.elbo - encoder.elbo,
        "approximation_gap": refined.values - refined.elbo,
    }
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name].dtype == torch.float64
        torch.testing.assert_close(found[name], values.double(), msg=name)


def test_what_was_not_measured_has_no_column(model):
    vae, x = model
    assert with_derived(Measurement(vae=vae, x=x, encoder=vae.log_likelihood(x, 5)).columns()).keys() == {
        "log_likelihood",
        "elbo",
        "ess",
        "khat",
        "mc_error",
    }


def test_the_grid_gives_the_exact_gaps(model):
    vae, x = model
    scores = grid_scores(vae, x[:2])
    found = with_derived(Measurement(vae=vae, x=x[:2], grid=scores).columns())
    assert set(found) == {"log_evidence", "kl", "best_kl", "grid_amortization_gap"}
    assert torch.equal(found["grid_amortization_gap"], scores["kl"] - scores["best_kl"])


def test_numbers_over_instances_agree_with_the_estimate_itself(measurement):
    found, columns = measurement.encoder, measurement.columns()
    records = {name: SCORES[name].record(values) for name, values in columns.items()}
    assert records["log_likelihood"] == pytest.approx({"mean": found.mean, "stderr": found.stderr})
    assert records["mc_error"]["error_of_mean"] == pytest.approx(found.mean_mc_error)
    ess, khat = found.ess.numpy(), found.khat.numpy()
    assert records["ess"]["mean"] == pytest.approx(ess.mean())
    assert records["ess"]["median"] == sorted(ess)[14]  # torch's median of thirty is the lower of the middle two
    assert records["khat"]["share_above_0.7"] == pytest.approx(np.mean(khat > 0.7))
    assert SCORES["khat"].value(torch.tensor([0.9, 0.1, math.nan])) == 0.5
    assert math.isnan(SCORES["khat"].value(torch.tensor([math.nan])))


def test_the_error_of_one_instance_is_not_known():
    mean, error = mean_and_error(torch.tensor([1.0, 3.0]))
    assert (mean, error) == (2.0, pytest.approx(1.0))
    assert math.isnan(mean_and_error(torch.tensor([3]))[1])


def test_a_share_is_of_what_is_known():
    assert share_above(torch.tensor([0.8, 0.1, math.nan, 0.2, math.inf])) == 0.5
    assert math.isnan(share_above(torch.full((3,), math.nan)))


def test_batches_are_joined(measurement):
    columns = measurement.columns()
    joined = join_columns([columns, columns])
    assert joined.keys() == columns.keys()
    assert torch.equal(joined["ess"], torch.cat([columns["ess"], columns["ess"]]))


def test_every_score_describes_itself():
    for name, score in SCORES.items():
        assert name == score.name
        assert score.symbol, name
        assert score.title, name
        assert len(score.explanation.split()) > 2, name
        assert not score.explanation.endswith("."), name
        assert set(score.inputs) <= set(SCORES), name
        assert score.under is None or SCORES[score.under].under is None, name  # details have no details


def test_reading_names_the_unit_and_the_better_direction():
    assert SCORES["inference_gap"].reading.endswith("; nats; lower is better")
    assert "better" not in SCORES["kl_to_prior"].reading


def test_a_collapsed_posterior_and_an_unknown_khat_are_remarked_on():
    assert "collapsed" in SCORES["kl_to_prior"].remark(0.01)
    assert SCORES["kl_to_prior"].remark(3.0) == ""
    assert "25 samples" in SCORES["khat"].remark(math.nan)
    assert SCORES["log_likelihood"].remark(1.0) == ""


def test_a_score_from_outside_is_measured_with_the_others(registry, model):
    vae, x = model
    norm = Score(
        name="norm",
        symbol="‖x‖",
        title="norm",
        explanation="the length of an instance as a vector",
        reductions=(MEDIAN,),
        measure=lambda measurement: measurement.x.flatten(1).norm(dim=1),
    )
    assert register(norm) is norm
    found = Measurement(vae=vae, x=x).columns()
    torch.testing.assert_close(found["norm"], x.square().sum(1).sqrt().double())
    assert norm.text(found["norm"]) == f"{found['norm'].median():.2f}"


def test_scores_that_cannot_be_are_refused(registry, model):
    vae, x = model
    words = {"symbol": "s", "title": "t", "explanation": "e"}
    with pytest.raises(InputError, match="either measure or derive"):
        Score(name="neither", **words)
    with pytest.raises(InputError, match="a score named 'ess' is already registered"):
        register(Score(name="ess", **words, measure=lambda _: None))
    for name in ("data", "split", "method", "Instance"):
        with pytest.raises(InputError, match=f"a score cannot be named '{name}'"):
            register(Score(name=name, **words, measure=lambda _: None))
    with pytest.raises(InputError, match="refers to 'nothing', which is not a registered score"):
        register(Score(name="new", **words, derive=torch.abs, inputs=("nothing",)))
    register(Score(name="scalar", **words, measure=lambda measurement: measurement.x.sum()))
    with pytest.raises(InputError, match=r"score 'scalar' has shape \(\) for 30 instances"):
        Measurement(vae=vae, x=x).columns()
