"""The likelihoods p(x|z), one file each, and their registry."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpin._core.config import registered
from gpin._core.errors import InputError
from gpin.likelihoods.base import Curvature, Factorised, Likelihood, LikelihoodConfig
from gpin.likelihoods.bernoulli import Bernoulli, BernoulliOptions
from gpin.likelihoods.categorical import Categorical, CategoricalOptions
from gpin.likelihoods.counts import NegativeBinomial, NegativeBinomialOptions, Poisson, PoissonOptions
from gpin.likelihoods.gaussian import Gaussian, GaussianOptions
from gpin.likelihoods.heteroscedastic import Heteroscedastic, HeteroscedasticOptions
from gpin.likelihoods.mixed import Mixed, MixedOptions

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "BernoulliOptions",
    "Categorical",
    "CategoricalOptions",
    "Curvature",
    "Factorised",
    "Gaussian",
    "GaussianOptions",
    "Heteroscedastic",
    "HeteroscedasticOptions",
    "Likelihood",
    "LikelihoodConfig",
    "Mixed",
    "MixedOptions",
    "NegativeBinomial",
    "NegativeBinomialOptions",
    "Poisson",
    "PoissonOptions",
    "as_likelihood_config",
    "likelihood_named",
    "make_likelihood",
]

LIKELIHOODS: dict[str, type[Likelihood[Any]]] = {
    likelihood.name: likelihood
    for likelihood in (Gaussian, Bernoulli, Heteroscedastic, Poisson, NegativeBinomial, Categorical, Mixed)
}


def likelihood_named(name: str) -> type[Likelihood[Any]]:
    """The likelihood of that name; raises InputError, listing the registered names, if there is none."""
    return registered(LIKELIHOODS, name, "likelihood")


def make_likelihood(shape: Sequence[int], options: LikelihoodConfig) -> Likelihood[Any]:
    """Make the likelihood with these options."""
    return likelihood_named(options.kind)(shape, options)


def as_likelihood_config(value: str | Mapping[str, Any] | LikelihoodConfig) -> LikelihoodConfig:
    """The options of a likelihood, given as its name, a mapping or a config; the default kind is Gaussian."""
    if isinstance(value, LikelihoodConfig):
        return value
    options = {"kind": value} if isinstance(value, str) else value
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise InputError(f"the likelihood must be a name, a mapping of options or a LikelihoodConfig, got {value!r}")
    chosen = likelihood_named(options.get("kind", Gaussian.name))
    return chosen.Options.parse(options, f"the likelihood {chosen.name!r}")
