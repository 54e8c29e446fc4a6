"""The latent space of a run: the codes of test instances, which dimensions carry information, and paths through it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gpin.data import DataSet, Rows
from gpin.runs.report.scored_run import ScoredRun
from gpin.runs.rows import example_conditions, map_batches, spread_rows
from gpin.vae import VAE

__all__ = ["ACTIVE", "UNUSED", "Codes", "Neighbours", "codes_of", "interpolation", "neighbours", "plane", "traversal"]

ACTIVE = 0.01
"""The variance of the posterior means over instances above which a dimension is active (Burda et al. 2016, Importance
weighted autoencoders)."""
UNUSED = 0.1
"""The KL to the prior in nats, over all dimensions, below which the latent code is not used. The mean KL is at least
the information that the code has about an instance."""
MAPPED = 400
"""The largest number of test instances on the map."""
SEARCHED = 500
"""The largest number of training instances among which neighbours are sought."""
REACH = 2.5
"""How far a traversal goes to both sides, in standard deviations of the prior."""


@dataclass(frozen=True, eq=False)
class Codes:
    """The posterior means and standard deviations of instances.

    Attributes:
        index: The indices of the instances in the test part, `(n,)`.
        mean: The posterior means, `(n, d)`.
        std: The posterior standard deviations, `(n, d)`.
    """

    index: np.ndarray
    mean: np.ndarray
    std: np.ndarray

    @cached_property
    def variance(self) -> np.ndarray:
        """The variance of the posterior means over instances, `(d,)`."""
        return self.mean.var(axis=0)

    @cached_property
    def kl(self) -> np.ndarray:
        """The mean KL of each dimension to the prior in nats, `(d,)`: ½ (μ² + σ² − 1 − log σ²)."""
        variance = np.maximum(self.std**2, 1e-12)
        return 0.5 * (self.mean**2 + variance - 1 - np.log(variance)).mean(axis=0)

    @property
    def active(self) -> int:
        """The number of active dimensions."""
        return int((self.variance > ACTIVE).sum())

    @property
    def collapsed(self) -> bool:
        """Whether the posteriors are nearly the prior, so that the latent code is not used."""
        return not self.active or float(self.kl.sum()) < UNUSED

    @cached_property
    def order(self) -> np.ndarray:
        """The dimensions, the one with the largest variance of the posterior means first."""
        return np.argsort(-self.variance, kind="stable")

    @cached_property
    def projection(self) -> tuple[np.ndarray, np.ndarray]:
        """The principal components of the posterior means: the first two coordinates `(n, 2)` and their shares of the
        variance `(2,)`; for two dimensions or fewer, the means themselves."""
        if self.mean.shape[1] <= 2:
            points = np.column_stack([self.mean, np.zeros((len(self.mean), 2 - self.mean.shape[1]))])
            return points, np.array([1.0, 1.0])
        centred = self.mean - self.mean.mean(axis=0)
        _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
        axes = axes[:2] * np.where(axes[:2].sum(axis=1, keepdims=True) < 0, -1, 1)  # the sign of an axis is arbitrary
        return centred @ axes.T, sizes[:2] ** 2 / max(float((sizes**2).sum()), 1e-12)


def codes_of(one: ScoredRun, data: DataSet, seed: int) -> Codes:
    """The codes of at most `MAPPED` of the instances that have refined scores."""
    some = np.linspace(0, len(one.chosen) - 1, min(MAPPED, len(one.chosen))).astype(np.int64)
    index = one.chosen.numpy()[some]
    mean, std = _encoded(one.vae, data.test.chosen(index), seed)
    return Codes(index, mean, std)


def _encoded(vae: VAE, rows: Rows, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The posterior means and standard deviations of rows, each `(n, d)`."""

    def moments(_: np.ndarray, x: Tensor) -> tuple[Tensor, Tensor]:
        q = vae.encode(x)
        return q.mean, q.stddev

    parts = list(map_batches(moments, rows, seed=seed))
    mean, std = (torch.cat([part[k] for part in parts]).double().cpu().numpy() for k in range(2))
    return mean, std


# Paths -----------------------------------------------------------------------------------------------


def traversal(vae: VAE, dimension: int, steps: int) -> Tensor:
    """E[x|z] while one dimension goes from −REACH to REACH and the others stay at zero."""
    z = torch.zeros(steps, vae.latent_dim)
    z[:, dimension] = torch.linspace(-REACH, REACH, steps)
    return _decoded(vae, z)


def plane(vae: VAE, steps: int) -> Tensor:
    """E[x|z] on a grid over two latent dimensions, `(steps · steps, *shape)`; the first row has the largest z2."""
    line = torch.linspace(-REACH, REACH, steps)
    second, first = torch.meshgrid(line.flip(0), line, indexing="ij")
    return _decoded(vae, torch.stack([first.flatten(), second.flatten()], dim=1))


def interpolation(
    vae: VAE, start: Sequence[float], end: Sequence[float], steps: int, y: Mapping[str, np.ndarray] | None = None
) -> Tensor:
    """E[x|z] on the straight line between two codes, both ends included, with one condition for all, if any."""
    share = torch.linspace(0, 1, steps)[:, None]
    first, last = (torch.tensor(np.asarray(code), dtype=torch.float32) for code in (start, end))
    return _decoded(vae, (1 - share) * first + share * last, y)


def _decoded(vae: VAE, z: Tensor, y: Mapping[str, np.ndarray] | None = None) -> Tensor:
    """E[x|z], for a conditional model with the same condition for all, by default the first example of one."""
    return vae.decode(z, y=example_conditions(vae, 1) if y is None else y)


# Neighbours ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Test instances and the training instances with the nearest codes.

    Attributes:
        index: The indices of the test instances, `(n,)`.
        nearest: The indices of their neighbours in the training part, `(n, k)`, the nearest first.
        searched: The number of training instances that were searched.
    """

    index: np.ndarray
    nearest: np.ndarray
    searched: int


def neighbours(one: ScoredRun, data: DataSet, codes: Codes, count: int, nearest: int, seed: int) -> Neighbours:
    """The nearest training instances of `count` test instances, by the distance of the posterior means."""
    places = spread_rows(data.train, min(SEARCHED, len(data.train)))
    mean, _ = _encoded(one.vae, places, seed)
    some = np.linspace(0, len(codes.index) - 1, min(count, len(codes.index))).astype(np.int64)
    distance = np.linalg.norm(codes.mean[some, None] - mean[None], axis=2)
    order = np.argsort(distance, axis=1, kind="stable")[:, :nearest]
    within = np.linspace(0, len(data.train) - 1, len(places)).astype(np.int64)
    return Neighbours(codes.index[some], within[order], len(places))
