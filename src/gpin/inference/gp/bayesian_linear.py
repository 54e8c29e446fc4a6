r"""Gaussian processes in weight space: linear functions of features with Gaussian weights.

For every x, a function f_j(x) = w_jᵀψ(x) with w_j ~ N(μ_j, Σ_j), j = 1…d, has the moments

.. math:: \mathbb{E} f_j = \mu_j^\top \psi, \qquad \mathbb{V} f_j = \psi^\top \Sigma_j \psi.

There is one class per family of covariances. All dimensions j are computed in one batched operation.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = [
    "COVARIANCES",
    "BayesianLinear",
    "CovarianceName",
    "DeterministicLinear",
    "DiagonalLinear",
    "FullLinear",
    "SharedBasisLinear",
]

CovarianceName = Literal["full", "diagonal", "shared_basis"]


class BayesianLinear(nn.Module, ABC):
    """d independent Gaussian weight vectors of length p, with prior N(0, I).

    Arguments:
        features: p, the width of ψ.
        outputs: d, the number of functions.
        std: Every Σ_j is initialised to std²·I, and μ_j to zero.
    """

    mean: nn.Parameter

    learning_rate_factors: ClassVar[dict[str, float]] = {"log_std": 10.0, "log_diagonal": 10.0}
    """Factors of the learning rate by parameter. Adam changes a logarithm by at most the learning rate per step, so at
    the networks' rate the covariances would hardly change."""
    fastest: ClassVar[float] = 5e-3
    """The maximum learning rate of these parameters. Above it they follow the noise of single batches: 2e-2 cost ten
    nats on MNIST."""
    weight_decays: ClassVar[bool] = False
    """Whether weight decay applies; random weights have a prior instead."""

    def __init__(self, features: int, outputs: int, std: float = 0.02) -> None:
        super().__init__()
        self.features, self.outputs = features, outputs
        self.mean = nn.Parameter(torch.empty(outputs, features))
        self._make_parameters()
        self.reset(std)

    @abstractmethod
    def _make_parameters(self) -> None: ...

    @abstractmethod
    def _reset_covariance(self, std: float) -> None: ...

    @abstractmethod
    def variance(self, features: Float[Tensor, "batch p"]) -> Float[Tensor, "batch d"]:
        """ψᵀΣ_jψ: `(batch, p)` → `(batch, d)`."""

    @abstractmethod
    def trace_and_log_det(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Σ_j tr Σ_j and Σ_j log|Σ_j|, two scalars."""

    @abstractmethod
    def _perturbations(self, noise: Float[Tensor, "n d p"]) -> Float[Tensor, "n d p"]:
        """A root of the covariance times standard normal noise: `(n, d, p)` → `(n, d, p)`."""

    @abstractmethod
    def covariance(self) -> Float[Tensor, "d p p"]:
        """All Σ_j as dense matrices, `(d, p, p)`, for inspection and tests."""

    @torch.no_grad()
    def reset(self, std: float) -> None:
        """Reset to μ = 0 and Σ = std²·I; with std = 0 the functions are identically zero."""
        self.mean.zero_()
        self._reset_covariance(std)

    def moments(self, features: Float[Tensor, "batch p"]) -> tuple[Float[Tensor, "batch d"], Float[Tensor, "batch d"]]:
        """Mean and variance of w_jᵀψ for features `(batch, p)`: two tensors `(batch, d)`."""
        return features @ self.mean.T, self.variance(features)

    def kl(self) -> Float[Tensor, ""]:
        r"""KL(q(w_1…w_d) ‖ N(0, I)) = ½ Σ_j (tr Σ_j + ‖μ_j‖² − p − log|Σ_j|), a scalar."""
        trace, log_det = self.trace_and_log_det()
        return 0.5 * (trace + self.mean.square().sum() - self.mean.numel() - log_det)

    def sample_weights(self, samples: int) -> Float[Tensor, "samples d p"]:
        """Reparametrised samples of the weights, `(samples, d, p)`."""
        shape = (samples, self.outputs, self.features)
        noise = torch.randn(shape, dtype=self.mean.dtype, device=self.mean.device)
        return self.mean + self._perturbations(noise)

    def extra_repr(self) -> str:
        """The sizes, for `repr`."""
        return f"features={self.features}, outputs={self.outputs}"


class DiagonalLinear(BayesianLinear):
    """Σ_j = diag(a_j²); the cost is d·p per instance."""

    log_std: nn.Parameter

    def _make_parameters(self) -> None:
        self.log_std = nn.Parameter(torch.empty(self.outputs, self.features))

    def _reset_covariance(self, std: float) -> None:
        self.log_std.fill_(_log(std))

    def variance(self, features: Float[Tensor, "batch p"]) -> Float[Tensor, "batch d"]:
        return features.square() @ (2 * self.log_std).exp().T

    def trace_and_log_det(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        return (2 * self.log_std).exp().sum(), 2 * self.log_std.sum()

    def _perturbations(self, noise: Float[Tensor, "n d p"]) -> Float[Tensor, "n d p"]:
        return self.log_std.exp() * noise

    def covariance(self) -> Float[Tensor, "d p p"]:
        return torch.diag_embed((2 * self.log_std).exp())


class SharedBasisLinear(BayesianLinear):
    """Σ_j = U diag(a_j²) Uᵀ with one U for all j; full rank, at a cost of p² + d·p per instance.

    U is lower triangular with a unit diagonal, so that only a_j determines the scales and
    log|Σ_j| = Σ_i log a_ji². With one output, this family contains every covariance (LDLᵀ).
    """

    log_std: nn.Parameter
    basis: nn.Parameter

    def _make_parameters(self) -> None:
        self.log_std = nn.Parameter(torch.empty(self.outputs, self.features))
        self.basis = nn.Parameter(torch.empty(self.features, self.features))

    def _reset_covariance(self, std: float) -> None:
        self.basis.zero_()
        self.log_std.fill_(_log(std))

    def _unit_triangular(self) -> Tensor:
        eye = torch.eye(self.features, dtype=self.basis.dtype, device=self.basis.device)
        return self.basis.tril(-1) + eye

    def variance(self, features: Float[Tensor, "batch p"]) -> Float[Tensor, "batch d"]:
        return (features @ self._unit_triangular()).square() @ (2 * self.log_std).exp().T

    def trace_and_log_det(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        column_norms = self._unit_triangular().square().sum(0)
        return ((2 * self.log_std).exp() @ column_norms).sum(), 2 * self.log_std.sum()

    def _perturbations(self, noise: Float[Tensor, "n d p"]) -> Float[Tensor, "n d p"]:
        return (self.log_std.exp() * noise) @ self._unit_triangular().T

    def covariance(self) -> Float[Tensor, "d p p"]:
        root = self._unit_triangular() * self.log_std.exp().unsqueeze(1)  # (d, p, p)
        return root @ root.mT


class FullLinear(BayesianLinear):
    """Σ_j = L_j L_jᵀ, L_j lower triangular with a positive diagonal; the cost is about d·p²/2 per instance.

    The L_j of all dimensions are stored in block columns: block c holds rows c·s … p of s columns of
    every L_j, as one matrix of shape (p − c·s, d·s). Lᵀψ is then a handful of large matrix products
    that skip the zeros above the diagonal blocks, and no dense d·p² array is ever built.
    """

    log_diagonal: nn.Parameter
    blocks: nn.ParameterList

    BLOCKS = 8

    def _make_parameters(self) -> None:
        size = math.ceil(self.features / self.BLOCKS)
        self.starts = list(range(0, self.features, size))
        self.log_diagonal = nn.Parameter(torch.empty(self.outputs, self.features))
        self.blocks = nn.ParameterList(
            nn.Parameter(torch.empty(self.features - start, self.outputs, min(size, self.features - start)))
            for start in self.starts
        )

    def _reset_covariance(self, std: float) -> None:
        self.log_diagonal.fill_(_log(std))
        for block in self.blocks:
            block.zero_()

    def _parts(self) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """The start and end of each block column, its triangle on the diagonal, `(s, d, s)`, and the rows below,
        `(p − end, d, s)`.
        """
        diagonal = self.log_diagonal.exp()
        eye = torch.eye(self.blocks[0].shape[2], dtype=diagonal.dtype, device=diagonal.device)
        lower = torch.ones_like(eye).tril(-1)
        for block, start in zip(self.blocks, self.starts, strict=True):
            size = block.shape[2]
            top, below = block.split([size, len(block) - size])
            on, under = eye[:size, None, :size], lower[:size, None, :size]
            triangle = torch.addcmul(on * diagonal[:, start : start + size], top, under)
            yield start, start + size, triangle, below

    def variance(self, features: Float[Tensor, "batch p"]) -> Float[Tensor, "batch d"]:
        total = features.new_zeros(features.shape[0], self.outputs)
        for start, end, triangle, below in self._parts():
            projected = features[:, start:end] @ triangle.flatten(1)  # (batch, d·s)
            projected = torch.addmm(projected, features[:, end:], below.flatten(1))
            total = total + projected.unflatten(1, below.shape[1:]).square().sum(-1)
        return total

    def trace_and_log_det(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        squares = [triangle.square().sum() + below.square().sum() for *_, triangle, below in self._parts()]
        return torch.stack(squares).sum(), 2 * self.log_diagonal.sum()

    def _perturbations(self, noise: Float[Tensor, "n d p"]) -> Float[Tensor, "n d p"]:
        total = torch.zeros_like(noise)
        for start, end, triangle, below in self._parts():
            columns = torch.cat([triangle, below])
            moved = torch.einsum("pds,nds->ndp", columns, noise[:, :, start:end])
            total = total + nn.functional.pad(moved, (start, 0))
        return total

    def covariance(self) -> Float[Tensor, "d p p"]:
        columns = [
            nn.functional.pad(torch.cat([triangle, below]).permute(1, 2, 0), (start, 0))  # (d, s, p)
            for start, _, triangle, below in self._parts()
        ]
        root = torch.cat(columns, dim=1)  # (d, p, p), transposed
        return root.mT @ root

    @torch.no_grad()
    def set_covariance(self, covariance: Tensor) -> None:
        """Set Σ_j from dense, symmetric positive definite matrices `(d, p, p)`."""
        root = torch.linalg.cholesky(covariance)
        self.log_diagonal.copy_(root.diagonal(dim1=1, dim2=2).log())
        for block, start in zip(self.blocks, self.starts, strict=True):
            block.copy_(root[:, start:, start : start + block.shape[2]].permute(1, 0, 2))


class DeterministicLinear(BayesianLinear):
    """Deterministic weights for ablations: Σ_j = 0, and the KL is zero."""

    weight_decays = True

    def _make_parameters(self) -> None:
        pass

    def _reset_covariance(self, std: float) -> None:
        pass

    def variance(self, features: Float[Tensor, "batch p"]) -> Float[Tensor, "batch d"]:
        return features.new_zeros(features.shape[0], self.outputs)

    def trace_and_log_det(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        return self.mean.new_zeros(()), self.mean.new_tensor(-math.inf)

    def kl(self) -> Float[Tensor, ""]:
        """Zero by definition: the ablation has no random weights, so none are penalised."""
        return self.mean.new_zeros(())

    def _perturbations(self, noise: Float[Tensor, "n d p"]) -> Float[Tensor, "n d p"]:
        return torch.zeros_like(noise)

    def covariance(self) -> Float[Tensor, "d p p"]:
        return self.mean.new_zeros(self.outputs, self.features, self.features)


COVARIANCES: dict[CovarianceName, type[BayesianLinear]] = {
    "full": FullLinear,
    "diagonal": DiagonalLinear,
    "shared_basis": SharedBasisLinear,
}


def _log(std: float) -> float:
    return math.log(std) if std > 0 else -math.inf
