"""A model whose log p(x) and posterior are known: z ~ N(0, I), x = A z + b + σ ε."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

import gpin
from gpin.inference import method_named
from gpin.likelihoods import Gaussian, GaussianOptions
from gpin.networks import Dense, DenseOptions


@dataclass(frozen=True)
class LinearGaussian:
    """p(x) = N(b, AAᵀ + σ²I) and p(z|x) = N(Λ⁻¹Aᵀ(x − b)/σ², Λ⁻¹), Λ = AᵀA/σ² + I."""

    matrix: Tensor  # (D, d)
    offset: Tensor  # (D,)
    variance: float

    @classmethod
    def random(cls, size: int = 8, latent_dim: int = 2, variance: float = 0.1) -> "LinearGaussian":
        """With orthogonal columns of different lengths: then a diagonal posterior is exact."""
        columns = torch.linalg.qr(torch.randn(size, latent_dim)).Q * torch.linspace(2.0, 1.0, latent_dim)
        return cls(columns, torch.randn(size), variance)

    @classmethod
    def of(cls, vae: gpin.VAE) -> "LinearGaussian":
        """The model that a VAE with a linear decoder stands for."""
        layer = vae.decoder
        return cls(layer.weight.detach(), layer.bias.detach(), vae.likelihood.variance.item())

    def sample(self, count: int) -> Tensor:
        z = torch.randn(count, self.matrix.shape[1])
        return z @ self.matrix.T + self.offset + self.variance**0.5 * torch.randn(count, len(self.offset))

    def log_prob(self, x: Tensor) -> Tensor:
        covariance = self.matrix @ self.matrix.T + self.variance * torch.eye(len(self.offset))
        return MultivariateNormal(self.offset, covariance).log_prob(x)

    def posterior(self, x: Tensor) -> MultivariateNormal:
        precision = self.matrix.T @ self.matrix / self.variance + torch.eye(self.matrix.shape[1])
        mean = torch.linalg.solve(precision, self.matrix.T @ (x - self.offset).T / self.variance).T
        return MultivariateNormal(mean, precision_matrix=precision)

    def vae(self, method: str, width: int = 32, known: bool = False, **options) -> gpin.VAE:
        """A VAE for such data with a linear decoder; `known` gives it the true decoder and variance."""
        size, latent_dim = self.matrix.shape
        chosen = method_named(method)
        networks = Dense((size,), DenseOptions(width=width))
        inference = chosen(networks.trunk, latent_dim, chosen.Options.parse(options, method))
        start = GaussianOptions(initial_variance=self.variance) if known else GaussianOptions()
        vae = gpin.VAE(inference, nn.Linear(latent_dim, size), Gaussian((size,), start))
        if known:
            with torch.no_grad():
                vae.decoder.weight.copy_(self.matrix)
                vae.decoder.bias.copy_(self.offset)
        return vae

    def trained(self, method: str, **options) -> gpin.VAE:
        """A VAE trained on 6,000 draws, decoder and variance included."""
        vae, x_train, x_val = self.vae(method, **options), self.sample(6000), self.sample(500)
        for epochs, learning_rate in ((14, 1e-2), (10, 1e-3)):
            gpin.fit(vae, x_train, x_val, epochs=epochs, learning_rate=learning_rate, progress=False)
        return vae
