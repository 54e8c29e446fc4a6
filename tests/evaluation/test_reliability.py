"""Whether the error of a log-likelihood can be believed, against exact log-likelihoods; and what is said of it."""

import math

import pytest
import torch
from linear_gaussian import LinearGaussian

import gpin
from gpin.evaluation.annealed import Sandwich
from gpin.evaluation.importance import LogLikelihood
from gpin.evaluation.reliability import COMMON, Bias, caution, lower_bound, share_above
from gpin.evaluation.scores import SCORES, known_gaps
from gpin.generative import has_gradient


def estimated(narrow: float) -> tuple[float, LogLikelihood]:
    """How far the mean of 200 instances is too low, with proposals of `narrow` times the true scale; the estimates."""
    torch.manual_seed(0)
    model = LinearGaussian.random(8, 4)
    vae, x = model.vae("vae", known=True).eval(), model.sample(200)
    posterior = model.posterior(x)
    scale = narrow * posterior.scale_tril.expand(200, 4, 4)
    found = vae.log_likelihood(x, 400, torch.distributions.MultivariateNormal(posterior.mean, scale_tril=scale))
    return (model.log_prob(x).mean() - found.values.mean()).item(), found


def test_the_monte_carlo_error_is_given_where_it_covers_the_truth_and_only_there():
    low, found = estimated(1.2)
    assert found.lower_bound is False
    assert abs(low) < 4 * found.mean_mc_error
    low, found = estimated(0.4)
    assert found.lower_bound is True
    assert low > 10 * found.mean_mc_error


def test_a_printed_estimate_has_an_error_only_if_it_can_be_believed():
    _, good = estimated(1.2)
    assert str(good).startswith(f"{good.mean:.2f} nats ± {good.stderr:.2f} over instances, Monte-Carlo error 0.0")
    _, bad = estimated(0.4)
    assert str(bad).startswith(f"≥ {bad.mean:.2f} nats ± {bad.stderr:.2f} over instances, a lower bound (K=400")
    assert "Monte-Carlo" not in str(bad)
    assert repr(bad) == f"LogLikelihood({bad})"


def test_a_share_of_large_khats_decides():
    khat = torch.full((100,), 0.3)
    for count, expected in ((0, False), (round(100 * COMMON), False), (round(100 * COMMON) + 1, True), (100, True)):
        khat[:count] = 0.71
        assert lower_bound(share_above(khat)) is expected
    assert lower_bound(share_above(torch.full((5,), math.nan))) is None


def test_what_is_estimated_from_the_weights_is_a_bound_where_they_are_poor():
    columns = {name: torch.tensor([1.0, 3.0]) for name in SCORES}
    good, poor = torch.tensor([0.1, 0.1]), torch.tensor([0.9, 0.9])
    khats = {"khat": poor, "refined_khat": good, "annealed_khat": good}
    shown = {name: SCORES[name].shown({**columns, **khats}, unit=True) for name in SCORES}
    assert shown["log_likelihood"] == "≥ 2.00 ± 1.00 nats"
    assert shown["bits_per_dim"] == "≤ 2.000 ± 1.000"
    assert shown["mc_error"] == "lower bound"
    for name in set(SCORES) - {"log_likelihood", "bits_per_dim", "mc_error"}:
        assert shown[name][0] not in "≥≤l", name
    khats["refined_khat"] = poor
    for name in ("refined_log_likelihood", "inference_gap", "approximation_gap"):
        assert SCORES[name].shown({**columns, **khats}) == "≥ 2.00 ± 1.00"
    assert (
        SCORES["mc_error"].shown({"mc_error": torch.tensor([0.3]), "khat": torch.tensor([math.nan])}) == "lower bound"
    )


def test_what_is_said_of_an_estimate():
    assert caution(0.0, 0.01) == ""
    assert "for 64 % of the rows, so the log-likelihood is a lower bound" in caution(0.64, 0.03, noun="rows")
    assert "fewer than 25 samples" in caution(math.nan, 0.03)
    bias = Bias(3.14, 3.618, 100)
    sentence = "On 100 instances simulated from the model, the mean of such estimates is at least 3.14 and at most 3.62"
    assert caution(0.64, 0.03, bias).endswith(f"{sentence} nats too low.")
    assert caution(0.0, 0.03, bias).startswith(sentence)
    assert str(Bias(-0.16, -0.06, 5)) == "at most 0.00 nats too low"  # by chance, with few chains
    assert str(Bias(0.5, 0.3, 5, error=0.25)) == "about 0.40 nats (± 0.25) too low"


def test_the_error_of_a_bias_is_that_of_a_mean_over_instances():
    lower, upper = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([1.5, 2.5, 5.0])
    bounds = [LogLikelihood.of(values.unsqueeze(0)) for values in (lower, upper)]
    bias = Sandwich(torch.zeros(3, 2), *bounds, {}).bias(torch.tensor([0.0, 1.0, 2.0]))
    assert (bias.at_least, bias.at_most) == (2.0, 2.0)
    assert bias.error == pytest.approx(torch.tensor([1.0, 1.0, 4.0]).std().item() / math.sqrt(3))


# The gradient of log p(x|z), which the estimated gap needs ---------------------------------------------


class Table(torch.nn.Linear):
    """A decoder whose output does not depend on z for torch."""

    def forward(self, z):
        return super().forward(z.detach().round()).detach()


def test_a_decoder_without_a_gradient_has_no_estimated_gap():
    x, z = torch.rand(5, 6), torch.zeros(5, 2)
    vae = gpin.build((6,), "vae", 2, decoder=Table(2, 6), seed=0).eval()
    assert not has_gradient(vae, x, z)
    assert known_gaps(vae, x) == {}
    vae = gpin.build((6,), "vae", 2, seed=0).eval()
    with torch.inference_mode():
        assert has_gradient(vae, x, z)
        assert known_gaps(vae, x).keys() == {"estimated"}


class Broken(torch.nn.Linear):
    """A decoder that fails for all but one instance."""

    def forward(self, z):
        if z[..., 0].numel() > 2:
            raise RuntimeError("out of memory")
        return super().forward(z)


def test_an_error_in_the_gap_is_not_taken_for_a_missing_gradient():
    vae = gpin.build((6,), "vae", 2, decoder=Broken(2, 6), seed=0).eval()
    with pytest.raises(RuntimeError, match="out of memory"):
        known_gaps(vae, torch.rand(5, 6))
