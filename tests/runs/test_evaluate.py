"""Scores of a run's model, against those of one call of the model."""

import math

import numpy as np
import pytest
import torch

import gpin
from gpin._core.seeding import seeded
from gpin.data import Rows, Scaling
from gpin.inference import ELBO
from gpin.runs.decode import sample_rows
from gpin.runs.encode import encode_rows
from gpin.runs.evaluate import evaluate, evaluate_run
from gpin.runs.rows import spread_rows


@pytest.mark.parametrize("method", ["gp", "vae", "sa", "iaf"])
def test_evaluation_in_batches_is_that_of_one_call(rows, small_model, method):
    vae, done = small_model(method), []
    found = evaluate(vae, rows, samples=7, seed=5, on_batch=lambda *given: done.append(given))
    with seeded(5):
        expected = vae.log_likelihood(rows.values, 7)
    torch.testing.assert_close(found.log_likelihood.values, expected.values)
    with seeded(5), torch.no_grad():
        bounds = [vae.elbo(rows[start : start + 128], 10).value for start in (0, 128, 256)]
    torch.testing.assert_close(found.elbo.value, torch.cat(bounds))
    assert done == [(128, 300), (256, 300), (300, 300)]


def test_evaluation_after_steps_is_that_of_the_model(rows, small_model):
    vae, few = small_model("natural"), spread_rows(rows, 20)
    found = evaluate(vae, few, samples=7, seed=5, tolerance=0.5, max_steps=4)
    with seeded(5):
        expected = vae.log_likelihood(few.values[few.rows], 7, tolerance=0.5, max_steps=4)
    torch.testing.assert_close(found.log_likelihood.values, expected.values)
    assert torch.equal(found.columns["steps_taken"].long(), expected.ascent.steps)
    assert found.record()["scores"]["remaining_gap"]["mean"] == pytest.approx(
        expected.ascent.remaining_gap.mean().item()
    )


def test_a_batch_is_told_of_when_all_is_done_and_read_once(rows, small_model, monkeypatch):
    vae, done, read = small_model(), [], Rows.__getitems__
    monkeypatch.setattr(Rows, "__getitems__", lambda self, indices: done.append("read") or read(self, indices))
    for name in ("log_likelihood", "elbo"):
        call = getattr(vae, name)
        monkeypatch.setattr(vae, name, lambda *given, name=name, call=call, **limits: done.append(name) or call(*given))
    evaluate(vae, rows, samples=2, on_batch=lambda *given: done.append(given))
    steps = ["read", "log_likelihood", "elbo"]
    assert done == [*steps, (128, 300), *steps, (256, 300), *steps, (300, 300)]


def test_evaluation_leaves_the_random_state_alone(rows, small_model):
    vae, before = small_model(), torch.get_rng_state()
    evaluate(vae, rows, samples=2)
    list(encode_rows(vae, rows, samples=2))
    list(sample_rows(vae, 5))
    assert torch.equal(before, torch.get_rng_state())


def test_the_terms_of_the_bound_are_means_over_instances(rows, small_model):
    vae = small_model("vae")
    found = evaluate(vae, rows, samples=2).record()["elbo"]
    with seeded(99), torch.no_grad():
        many: ELBO = vae.elbo(rows.values, 1000)
    assert found["kl"] == pytest.approx(many.kl.mean().item(), rel=1e-5)
    # Ten draws for each of 300 instances: a standard error of far less than that of one draw.
    assert found["reconstruction"] == pytest.approx(many.reconstruction.mean().item(), abs=0.1)
    assert found["weight_kl"] == 0


def test_bits_per_dimension_do_not_depend_on_the_units(rows, small_model):
    vae, units = small_model(), np.array([2.0, 0.5, 10.0])
    own = evaluate(vae, rows, samples=3)
    scaling = Scaling(kind="standardised", offset=(1.0, 2.0, 3.0), scale=tuple(units))
    other = Rows(rows.values * units + [1, 2, 3], rows.rows, scaling)
    found = evaluate(vae, other, samples=3, log_volume=scaling.log_volume(3))
    assert own.bits_per_dim == pytest.approx(-own.log_likelihood.mean / (3 * math.log(2)))
    assert found.bits_per_dim == pytest.approx(own.bits_per_dim + np.log2(units).sum() / 3, rel=1e-5)


def test_one_instance_and_one_sample_leave_much_unknown(rows, small_model):
    record = evaluate(small_model(), spread_rows(rows, 1), samples=1).record()
    assert record["log_likelihood"]["stderr"] is record["log_likelihood"]["mc_error"] is None
    assert record["bits_per_dim"]["stderr"] is record["elbo"]["stderr"] is record["khat"]["median"] is None


def test_a_part_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(gpin.InputError, match="part must be train, validation or test, got 'rest'"):
        evaluate_run(tmp_path, part="rest")


def test_an_annealed_evaluation_is_that_of_the_model(rows, small_model):
    vae, few = small_model("vae"), spread_rows(rows, 10)
    found = evaluate(vae, few, seed=5, estimator="annealed", temperatures=3, chains=4)
    with seeded(5):
        expected = vae.log_likelihood(few.values[few.rows], estimator="annealed", temperatures=3, chains=4)
    torch.testing.assert_close(found.log_likelihood.values, expected.values)
    torch.testing.assert_close(found.columns["acceptance"].float(), expected.annealing.acceptance)
    record = found.record()
    assert record["log_likelihood"]["mean"] == pytest.approx(expected.mean)
    assert (record["proposal"], record["temperatures"], record["start"]) == ("annealed", 3, "refined")
    assert not {"log_likelihood", "refined_log_likelihood", "inference_gap"} & set(found.columns)
