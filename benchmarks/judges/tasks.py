"""Three tasks of sbibm as generative models of gpin: the simulator is the decoder with its likelihood, and is fixed.

The latent z ~ N(0, I) is mapped to sbibm's parameters θ, whose prior is then sbibm's. Only encoders are trained, on
data drawn from the model. Reference posteriors are read from the files of the package sbibm, without importing it.
"""

import bz2
import csv
import importlib.util
import io
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import gpin
from gpin.inference import METHODS
from gpin.likelihoods import Bernoulli, Gaussian, Likelihood
from gpin.likelihoods.gaussian import GaussianOptions

WIDTH = 128


def installed(package: str) -> bool:
    """Whether a package can be found, without importing it."""
    return importlib.util.find_spec(package) is not None


def files() -> Path:
    """The folder of sbibm's tasks."""
    spec = importlib.util.find_spec("sbibm")
    if spec is None or spec.origin is None:
        raise SystemExit("sbibm is not installed: `make judges` installs it into benchmarks/judges/.venv")
    return Path(spec.origin).parent / "tasks"


def read_csv(path: Path) -> Tensor:
    """The rows of a CSV file, which may be compressed, without its header: `(rows, columns)`."""
    content = path.read_bytes()
    text = (bz2.decompress(content) if path.suffix == ".bz2" else content).decode()
    return torch.tensor([[float(cell) for cell in row] for row in list(csv.reader(io.StringIO(text)))[1:]])


# The generative models ---------------------------------------------------------------------------------


class Linear(nn.Module):
    """z → z Mᵀ, with a constant M."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.matrix.mT


def to_box(z: Tensor) -> Tensor:
    """Standard normal values as uniform ones in [−3, 3]: 6Φ(z) − 3."""
    return 3 * torch.erf(z / math.sqrt(2))


class BivariateMoments(nn.Module):
    """z `(..., 5)` → the mean and covariance (m₁, m₂, S₁₁, S₁₂, S₂₂) of SLCP's normal distribution, `(..., 5)`."""

    FLOOR = 1e-6
    """What sbibm adds to the variances."""

    def forward(self, z: Tensor) -> Tensor:
        first, second, root_1, root_2, angle = to_box(z).unbind(-1)
        scale_1, scale_2 = root_1.square(), root_2.square()
        covariance = [
            scale_1.square() + self.FLOOR,
            angle.tanh() * scale_1 * scale_2,
            scale_2.square() + self.FLOOR,
        ]
        return torch.stack([first, second, *covariance], dim=-1)


class Bivariate(Likelihood):
    """Several points of the plane from one normal distribution, whose moments are the decoder's output.

    x is `(batch, 2n)`, n points one after the other; the output `(..., batch, 5)` is (m₁, m₂, S₁₁, S₁₂, S₂₂).
    """

    name, title = "bivariate", "Points of the plane from one normal distribution"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The mean and the covariance."""
        return (5,)

    @property
    def points(self) -> int:
        """n."""
        return self.shape[0] // 2

    @staticmethod
    def whitened(x: Tensor, output: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The Cholesky factor (a, b; c below) of S, each `(...)`, and L⁻¹(x − m), `(..., n, 2)`."""
        first, second, s_11, s_12, s_22 = output.unbind(-1)
        a = s_11.sqrt()
        c = s_12 / a
        b = (s_22 - c.square()).clamp(min=1e-12).sqrt()
        points = x.unflatten(-1, (-1, 2))
        white_1 = (points[..., 0] - first.unsqueeze(-1)) / a.unsqueeze(-1)
        white_2 = (points[..., 1] - second.unsqueeze(-1) - c.unsqueeze(-1) * white_1) / b.unsqueeze(-1)
        return a, c, b, torch.stack([white_1, white_2], dim=-1)

    def log_prob(self, x: Tensor, output: Tensor) -> Tensor:
        a, _, b, white = self.whitened(x, output)
        log_det = a.log() + b.log() + math.log(2 * math.pi)
        return -0.5 * white.square().sum((-2, -1)) - self.points * log_det

    def mean(self, output: Tensor) -> Tensor:
        return output[..., :2].repeat_interleave(self.points, 0).reshape(*output.shape[:-1], -1)

    def sample(self, output: Tensor) -> Tensor:
        a, c, b, _ = self.whitened(output.new_zeros(*output.shape[:-1], 2), output)
        noise = torch.randn(*output.shape[:-1], self.points, 2, dtype=output.dtype)
        first = output[..., :1] + a.unsqueeze(-1) * noise[..., 0]
        second = output[..., 1:2] + c.unsqueeze(-1) * noise[..., 0] + b.unsqueeze(-1) * noise[..., 1]
        return torch.stack([first, second], dim=-1).flatten(-2)

    def score_and_precision(self, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """The score, `(batch, 5)`, and a factor R `(batch, 6, 5)` of the Fisher information.

        With S = LLᵀ, the information about the mean is nS⁻¹, and that about the entries i and j of S is
        n/2 ⟨A_i, A_j⟩ with A_i = L⁻¹ (∂S/∂S_i) L⁻ᵀ.
        """
        a, c, b, white = self.whitened(x, output)
        zero = torch.zeros_like(a)
        inverse = torch.stack([1 / a, zero, -c / (a * b), 1 / b], dim=-1).unflatten(-1, (2, 2))  # L⁻¹
        units = output.new_tensor([[[1, 0], [0, 0]], [[0, 1], [1, 0]], [[0, 0], [0, 1]]])  # ∂S/∂S_i
        changes = inverse.unsqueeze(-3) @ units @ inverse.mT.unsqueeze(-3)  # A_i, (batch, 3, 2, 2)
        moments = white.mT @ white - self.points * torch.eye(2, dtype=white.dtype)  # (batch, 2, 2)
        score = torch.cat(
            [
                (inverse.mT @ white.sum(-2).unsqueeze(-1)).squeeze(-1),
                0.5 * (changes * moments.unsqueeze(-3)).sum((-2, -1)),
            ],
            dim=-1,
        )
        factor = output.new_zeros(len(output), 6, 5)
        factor[:, :2, :2] = math.sqrt(self.points) * inverse
        factor[:, 2:, 2:] = math.sqrt(self.points / 2) * changes.flatten(-2).mT
        return score, factor


# The encoders ------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """Statistics of x, standardised, and two hidden layers.

    Arguments:
        statistics: x `(batch, *shape)` → sufficient statistics `(batch, k)`.
        examples: Data from which the location and scale of the statistics are taken.
    """

    def __init__(self, statistics: Callable[[Tensor], Tensor], examples: Tensor) -> None:
        super().__init__()
        self.statistics, self.out_features = statistics, WIDTH
        values = statistics(examples)
        self.register_buffer("location", values.mean(0))
        self.register_buffer("scale", values.std(0))
        self.layers = nn.Sequential(
            nn.Linear(values.shape[1], WIDTH),
            nn.SiLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.SiLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.SiLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers((self.statistics(x) - self.location) / self.scale)


def moments(x: Tensor) -> Tensor:
    """The mean, log standard deviations and Fisher-transformed correlation of points of the plane: `(batch, 5)`."""
    points = x.unflatten(-1, (-1, 2))
    mean = points.mean(-2)
    centred = points - mean.unsqueeze(-2)
    std = centred.square().mean(-2).clamp(min=1e-12).sqrt()
    correlation = (centred.prod(-1).mean(-1) / std.prod(-1)).clamp(-0.9999, 0.9999)
    return torch.cat([mean, std.log(), correlation.atanh().unsqueeze(-1)], dim=-1)


# The tasks ---------------------------------------------------------------------------------------------


class Task:
    """A task of sbibm.

    Arguments:
        decoder: z → the output that the likelihood takes.
        likelihood: p(x|output), with constant parameters.
        statistics: Sufficient statistics of x, which the encoder sees.
        to_parameters: z → sbibm's θ.
        latent_dim: d.
        name: The name in sbibm.
        observed: The file of an observation in sbibm.
    """

    OBSERVATIONS = 10

    def __init__(
        self,
        name: str,
        latent_dim: int,
        decoder: nn.Module,
        likelihood: Likelihood,
        to_parameters: Callable[[Tensor], Tensor],
        statistics: Callable[[Tensor], Tensor],
        observed: str = "observation.csv",
    ) -> None:
        self.name, self.latent_dim, self.observed = name, latent_dim, observed
        self.decoder, self.likelihood = decoder.double(), likelihood.double()
        self.to_parameters, self.statistics = to_parameters, statistics

    def simulate(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Latents `(count, d)` from the prior, and data `(count, *shape)` given them."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            z = torch.randn(count, self.latent_dim, dtype=torch.float64)
            return z, self.likelihood.sample(self.decoder(z))

    def vae(self, method: str, seed: int = 0, **options: object) -> gpin.VAE:
        """A model with the task's decoder and likelihood and a new encoder."""
        chosen = METHODS[method]
        _, examples = self.simulate(10_000, seed=10**6)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            inference = chosen(
                lambda: Encoder(self.statistics, examples).double(), self.latent_dim, chosen.Options(**options)
            )
        return gpin.VAE(inference.double(), self.decoder, self.likelihood)

    def _folder(self, number: int) -> Path:
        return files() / self.name / "files" / f"num_observation_{number}"

    def observation(self, number: int) -> Tensor:
        """Observation 1 to 10 of sbibm, `(1, *shape)`."""
        return read_csv(self._folder(number) / self.observed).double()

    def reference(self, number: int) -> Tensor:
        """sbibm's 10,000 draws of the posterior of θ, `(10000, d)`."""
        return read_csv(self._folder(number) / "reference_posterior_samples.csv.bz2")


def gaussian_linear() -> Task:
    """x = θ + noise, both with variance 0.1 in ten dimensions: the posterior is Gaussian."""
    prior = math.sqrt(0.1)
    likelihood = Gaussian((10,), GaussianOptions(variance="fixed", initial_variance=0.1))
    decoder = Linear(prior * torch.eye(10))
    return Task("gaussian_linear", 10, decoder, likelihood, lambda z: prior * z, lambda x: x)


def smooth_prior() -> Tensor:
    """The precision of sbibm's prior of the offset and the nine filter weights of the GLM, `(10, 10)`."""
    size = 9
    difference = torch.eye(size) - torch.diag(torch.ones(size - 1), -1)
    smoothness = difference @ difference + torch.diag(torch.arange(size) / size) ** 0.5
    precision = torch.zeros(10, 10)
    precision[0, 0], precision[1:, 1:] = 0.5, smoothness.mT @ smoothness
    return precision


def bernoulli_glm(design: Tensor | None = None) -> Task:
    """100 spikes or none from a generalised linear model with ten parameters, logits Xθ; the statistics are Xᵀx.

    sbibm observes these statistics, of which the likelihood of θ is a function. We keep the spikes as x, which has the
    same posterior.
    """
    if design is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = files() / "bernoulli_glm" / "files" / "design_matrix.pt"
            design = torch.load(path, map_location="cpu", weights_only=True)
    design = design.double()
    root = torch.linalg.cholesky(torch.linalg.inv(smooth_prior().double()))  # of the prior's covariance
    return Task(
        "bernoulli_glm",
        10,
        Linear(design @ root),
        Bernoulli((len(design),)),
        lambda z: z @ root.mT.to(z.dtype),
        lambda x: x @ design.to(x.dtype),
        "observation_raw.csv",
    )


def slcp() -> Task:
    """Simple likelihood, complex posterior: four points of the plane from a normal distribution whose mean and
    covariance are functions of θ, uniform in [−3, 3]⁵. The signs of θ₃ and θ₄ do not matter: there are four modes."""
    return Task("slcp", 5, BivariateMoments(), Bivariate((8,)), to_box, moments)


TASKS: dict[str, Callable[[], Task]] = {task.__name__: task for task in (gaussian_linear, bernoulli_glm, slcp)}
