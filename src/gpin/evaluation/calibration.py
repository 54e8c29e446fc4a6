r"""Simulation-based calibration: whether the intervals of a posterior contain z as often as they claim.

For pairs simulated from the model, z ~ p(z) and x ~ p(x|z), the true z is a draw from the true posterior p(z|x). Let r
be the number of L draws z_k ~ q(z|x) that are below the true z in one latent dimension. If q(z|x) is the posterior, r
is uniform on 0, …, L over such pairs, and so is

.. math:: u = \frac{r + v}{L + 1}, \qquad v \sim \mathcal{U}(0, 1)

on (0, 1), exactly and for every L (Talts et al. 2018, Validating Bayesian inference algorithms with simulation-based
calibration). A histogram of u shows how q is wrong: a U shape if its intervals are too narrow, a hump if they are too
wide, a slope if its mean is biased. A central interval of probability c contains z where |u − ½| ≤ c/2, so that the
share of such pairs is the coverage of these intervals.

The remedy for intervals that are too narrow or too wide is a temperature τ, which replaces the covariance Σ of q by τΣ.
It is chosen such that 80 % intervals, pooled over the latent dimensions, cover 80 % of the simulations.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from gpin._core.errors import InputError
from gpin._core.inputs import as_tensor

if TYPE_CHECKING:
    from gpin.vae import VAE

__all__ = ["LEVELS", "Coverage", "Draws", "binomial_band", "coverage_of", "ranked", "simulated_pairs"]

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""The probabilities of the central intervals whose coverage is reported."""

MATCHED = 0.8
"""The probability of the central intervals whose coverage the temperature corrects."""

LEAST = 50
"""The smallest number of simulations."""

BATCH = 128
"""The number of instances simulated at a time."""

Draws = Distribution | Tensor
"""A posterior of a batch: a distribution with batch shape `(batch,)` and event shape `(d,)`, or draws from one,
`(samples, batch, d)`."""


@dataclass(frozen=True)
class Coverage:
    """How often the intervals of a posterior contain the true z of n simulated instances.

    Attributes:
        values: u, `(n, d)`: uniform on (0, 1) in each latent dimension if the posterior is calibrated.
        scales: The factor by which the deviations of the posterior's draws from its mean must be multiplied such that
            the end of an 80 % interval is at the true z, `(n, d)`.
        samples: L, the number of draws among which the true z is ranked.
        posterior: The name of the posterior.
    """

    values: Tensor
    scales: Tensor
    samples: int
    posterior: str = "encoder"

    @classmethod
    def of(cls, parts: Iterable[tuple[Tensor, Tensor, int]], posterior: str = "encoder") -> "Coverage":
        """The coverage of a posterior from the results of :func:`ranked` for several batches."""
        values, scales, samples = zip(*parts, strict=True)
        return cls(torch.cat(values).cpu(), torch.cat(scales).cpu(), samples[0], posterior)

    @property
    def count(self) -> int:
        """The number of simulated instances."""
        return len(self.values)

    @property
    def ranks(self) -> Tensor:
        """The number of draws below the true z, `(n, d)`, from 0 to `samples`."""
        return (self.values * (self.samples + 1)).floor().long().clamp(0, self.samples)

    def _inside(self, level: float) -> Tensor:
        """Whether the central interval of this probability contains the true z, `(n, d)`, as numbers."""
        if not 0 < level < 1:
            raise InputError(f"level must be between 0 and 1, got {level!r}")
        return ((self.values - 0.5).abs() <= level / 2).double()

    def per_dimension(self, level: float) -> Tensor:
        """The share of simulations whose true z is in the central interval of this probability, `(d,)`."""
        return self._inside(level).mean(0)

    def mean(self, level: float) -> float:
        """The coverage of the central intervals of this probability, averaged over the latent dimensions."""
        return self._inside(level).mean().item()

    def stderr(self, level: float) -> float:
        """The standard error of :meth:`mean`, which allows for the correlation between latent dimensions."""
        return self._inside(level).mean(1).std().item() / math.sqrt(self.count)

    @property
    def bins(self) -> int:
        """The number of bins of :meth:`histogram` in :attr:`chi2`: 20, or fewer such that each expects ten values."""
        return min(20, self.count // 10)

    def histogram(self, bins: int | None = None) -> Tensor:
        """How many of the n values of each latent dimension are in each of `bins` bins of equal width, `(bins, d)`."""
        bins = self.bins if bins is None else bins
        index = (self.values * bins).long().clamp(0, bins - 1)
        return torch.nn.functional.one_hot(index, bins).sum(0).T

    def band(self, bins: int | None = None) -> tuple[int, int]:
        """The smallest and the largest count that a bin of :meth:`histogram` has if the posterior is calibrated.

        All bins of one latent dimension are within this band with a probability of at least 95 %.
        """
        bins = self.bins if bins is None else bins
        return binomial_band(self.count, 1 / bins, 1 - 0.05 / bins)

    @property
    def chi2(self) -> Tensor:
        """χ² = Σ (counted − expected)²/expected over the bins of :meth:`histogram`, `(d,)`."""
        expected = self.count / self.bins
        return (self.histogram().double() - expected).square().sum(0) / expected

    @property
    def p_values(self) -> Tensor:
        """The probability of a χ² at least as large if the posterior is calibrated, `(d,)`."""
        degrees = torch.full_like(self.chi2, self.bins - 1)
        return torch.special.gammaincc(degrees / 2, self.chi2 / 2)

    @property
    def p_value(self) -> float:
        """The smallest of :attr:`p_values`, multiplied by their number (Bonferroni); at most 1."""
        return min(1.0, len(self.p_values) * self.p_values.min().item())

    @property
    def temperature(self) -> float:
        """τ, the factor on the covariance with which 80 % intervals would cover 80 % of these simulations."""
        pooled = self.scales.flatten()
        return pooled.kthvalue(math.ceil(MATCHED * len(pooled))).values.square().item()

    def __str__(self) -> str:
        shares = ", ".join(f"{level:.0%} intervals {self.mean(level):.1%}".replace("%", " %") for level in LEVELS)
        return f"{self.posterior}: coverage of {shares} (± {100 * self.stderr(0.8):.1f} %, n={self.count:,})"

    def record(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        return {
            "posterior": self.posterior,
            "simulations": self.count,
            "draws": self.samples,
            "coverage": [
                {
                    "level": level,
                    "mean": self.mean(level),
                    "stderr": self.stderr(level),
                    "per_dimension": self.per_dimension(level).tolist(),
                }
                for level in LEVELS
            ],
            "temperature": self.temperature,
            "chi2": self.chi2.tolist(),
            "p_values": self.p_values.tolist(),
            "histogram": {"counts": self.histogram().T.tolist(), "band": list(self.band())},
        }


def binomial_band(count: int, share: float, confidence: float) -> tuple[int, int]:
    """The ends of the central interval of a binomial count of `count` trials that has at least this probability."""
    k = torch.arange(count + 1, dtype=torch.float64)
    log_ways = math.lgamma(count + 1) - torch.lgamma(k + 1) - torch.lgamma(count - k + 1)
    distribution = (log_ways + k * math.log(share) + (count - k) * math.log1p(-share)).exp().cumsum(0)
    tails = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)
    low, high = torch.searchsorted(distribution, tails).tolist()
    return low, high


@torch.no_grad()
def simulated_pairs(vae: "VAE", count: int, c: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`count` instances x `(count, *shape)` drawn from the model, with their z `(count, d)`.

    Those of a conditional model have the conditions c `(count, C)` and carry them, see `gpin.conditions`.
    """
    sizes = [min(BATCH, count - start) for start in range(0, count, BATCH)]
    conditions = [None] * len(sizes) if c is None else c.split(BATCH)
    pairs = [vae.simulate(*pair) for pair in zip(sizes, conditions, strict=True)]
    return torch.cat([x for x, _ in pairs]), torch.cat([z for _, z in pairs])


@torch.no_grad()
def coverage_of(
    posterior: Callable[[Tensor], Draws], x: Tensor, z: Float[Tensor, "n d"], samples: int, name: str = "encoder"
) -> Coverage:
    """The coverage of a posterior for pairs of x and z.

    Arguments:
        posterior: x `(batch, *shape)` → the posterior.
        x: `(n, *shape)`.
        z: A draw from the true posterior of each instance.
        samples: L, the number of draws from a posterior that is a distribution.
        name: The name of the posterior in the result.
    """
    size = max(1, min(BATCH, 2**20 // samples))
    batches = zip(x.split(size), z.split(size), strict=True)
    return Coverage.of((ranked(latent, posterior(batch), samples) for batch, latent in batches), name)


def ranked(z: Float[Tensor, "n d"], posterior: Draws, samples: int) -> tuple[Tensor, Tensor, int]:
    """`Coverage.values`, `Coverage.scales` and `Coverage.samples` of a batch with these true z."""
    if isinstance(posterior, Distribution):
        draws, centre = posterior.sample(torch.Size((samples,))), posterior.mean
    else:
        draws = as_tensor(posterior, "the posterior")
        centre = draws.mean(0)
    if draws.dim() != 3 or draws.shape[1:] != z.shape or len(draws) < 1:
        raise InputError(
            "the posterior must be a distribution over z or draws of shape "
            f"(samples, {z.shape[0]}, {z.shape[1]}), got draws of shape {tuple(draws.shape)}"
        )
    if not draws.isfinite().all():
        raise InputError("the coverage is not defined: the posterior has draws that are not finite")
    z, draws, centre = z.double(), draws.double(), centre.double()
    values = ((draws < z).sum(0) + torch.rand_like(z)) / (len(draws) + 1)
    tail = (1 - MATCHED) / 2
    low, high = (_order_statistic(draws, share) - centre for share in (tail, 1 - tail))
    deviation = z - centre
    reach = torch.where(deviation > 0, high, -low)
    # Where no scaling of the interval reaches z, the factor is infinite; the temperature is a quantile.
    scales = torch.where(reach > 0, deviation.abs() / reach, math.inf)
    return values, scales.where(deviation != 0, 0.0), len(draws)


def _order_statistic(draws: Tensor, share: float) -> Tensor:
    """The value below which a new draw is with this probability, by interpolation between draws: `(...)`."""
    place = min(max(share * (len(draws) + 1) - 1, 0.0), len(draws) - 1.0)
    below = math.floor(place)
    ordered = draws.sort(0).values
    return torch.lerp(ordered[below], ordered[min(below + 1, len(draws) - 1)], place - below)
