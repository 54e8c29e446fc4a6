"""The record, and the sentences that terminal and page share."""

import json
from dataclasses import replace

import pytest
import torch

from gpin.demo.estimates import verdict


def test_the_record_is_json_and_agrees_with_the_models(result):
    record = json.loads((result.folder / "results.json").read_text())
    assert record == json.loads(json.dumps(result.record(), allow_nan=False))
    assert set(record["methods"]) == {"vae", "gp"}
    vae, gp = record["methods"]["vae"], record["methods"]["gp"]
    assert vae["inference_time_ratio"] == 1
    assert vae["elbo_weight_kl"] == 0 < gp["elbo_weight_kl"]
    for proposal in ("encoder", "refined"):
        scores = [method["log_likelihood"][proposal] for method in (vae, gp)]
        assert [score["samples"] for score in scores] == [30, 30]
        assert gp["elbo"] <= scores[1]["mean"]
        difference = record["difference"][proposal]
        assert difference["mean"] == pytest.approx(scores[1]["mean"] - scores[0]["mean"], abs=1e-3)
        assert difference["stderr"] < scores[1]["stderr"]  # paired: the digits' own spread cancels
    certain, uncertain = record["uncertainty"]["most_certain"], record["uncertainty"]["least_certain"]
    assert [d["uncertainty"] for d in certain] == sorted(d["uncertainty"] for d in certain)
    assert max(d["uncertainty"] for d in certain) < min(d["uncertainty"] for d in uncertain)
    assert all(d["label"] == result.digits.labels[d["index"]] for d in certain + uncertain)


def test_the_verdict_is_about_both_proposals(result):
    for proposal in ("encoder", "refined"):
        assert verdict(*result.difference(proposal)) in result.verdict()
    assert "over 60 test digits" in result.verdict()
    assert "another seed can turn the sign" in result.verdict()


def test_a_useless_uncertainty_is_called_so(result):
    assert "no relation is shown" in replace(result, uncertainty=torch.randn(60)).relation()
    assert "strongly higher where the gap is larger" in replace(result, uncertainty=result.gap).relation()
    assert "strongly lower where the gap is larger" in replace(result, uncertainty=-result.gap).relation()


def test_unreliable_estimates_are_called_so(result):
    assert "lower bounds" in with_khat(result, 0.8).caution()
    assert "up to 100% of the digits" in with_khat(result, 0.8).caution()
    assert "can be trusted" in with_khat(result, 0.1).caution()


def with_khat(result, khat):
    """The same result with that k̂ for every digit."""
    contenders = {}
    for name, contender in result.contenders.items():
        scores = {p: replace(score, khat=torch.full((60,), khat)) for p, score in contender.scores.items()}
        contenders[name] = replace(contender, scores=scores)
    return replace(result, contenders=contenders)
