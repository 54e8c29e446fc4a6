r"""Regression of the amortization gap on validation instances, some of which were refined to measure it.

The gap Δ of an instance is regressed on features φ by a Gaussian process in closed form, on a scale that is linear near
zero and logarithmic for many nats,

.. math:: t(\Delta) = \mathrm{sign}(\Delta) \log(1 + |\Delta|) = f(\varphi) + \varepsilon, \qquad
    f \sim \mathcal{GP}(\mu, a^2 k), \quad \varepsilon \sim \mathcal{N}(0, a^2 \lambda)

after standardisation of the features. The length scale of the squared exponential kernel k and λ are those of a grid
that maximise the marginal likelihood, for which a² has a closed form. There are two regressions:

| gap | features |
|---|---|
| estimated | t(½ gᵀΣg), the Newton decrement, what the last step has shown, and others, see :func:`estimate_features` |
| predicted | what the encoder knows about x, see `gpin.inference.InferenceModel.features` |

The predicted gap needs more instances than the estimated one. Instances that were not refined enter its regression with
their estimated gap. If training instances are given, a small network is fitted to their estimated gaps first, see
:class:`GapNetwork`, and the Gaussian process describes by how much validation instances differ from its prediction. The
gaps of training instances are smaller, but much the same makes an instance hard. The output of this network is then a
further feature of the estimated gap.

An interval is t⁻¹(mean + quantile · predictive standard deviation), where the quantiles are those of the standardised
leave-one-out residuals of the refined instances. It does not rely on the noise being Gaussian.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from safetensors.torch import load as load_tensors
from torch import Tensor, nn
from torch.distributions import Distribution

from gpin._core.errors import InputError
from gpin._core.tensors import pack_tensors
from gpin.distributions import as_normal
from gpin.evaluation.gaps import Gap
from gpin.generative import Generative
from gpin.refinement.natural import Objective, newton_decrement

__all__ = [
    "COVERAGE",
    "LEAST",
    "LEAST_TRAINING",
    "MOST",
    "MOST_TRAINING",
    "Calibration",
    "Calibrations",
    "GapNetwork",
    "GapRegression",
    "Temperatures",
    "check_count",
    "estimate_features",
    "evenly_spaced",
    "pack_calibrations",
    "unpack_calibrations",
]

COVERAGE = 0.8
"""The share of instances whose gap the intervals are meant to cover."""

LEAST, MOST = 50, 1000
"""The smallest number of instances that a calibration needs, and the largest number that it uses."""

LEAST_TRAINING, MOST_TRAINING = 2000, 10_000
"""The smallest number of training instances to which a network is fitted, and the largest number that is used."""

LENGTHS = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
"""The candidates for the length scale of the predicted gap, relative to the root mean square of the standardised
features."""

LONGER = (1.0, 1.4, 2.0, 2.8, 4.0)
"""Those of the estimated gap, which depends on its few features more smoothly."""

NOISES = 10.0 ** torch.arange(-2, 3.25, 0.25, dtype=torch.float64)
"""The candidates for λ, the variance of the noise relative to that of f."""

OWN = "own"
"""The name, in files, of the calibration for the number of steps that the method itself takes."""

NETWORK = "network"
"""The name, in files, of the network of a calibration."""

TEMPERATURE = "temperature"
"""The name, in files, of a posterior's temperature."""


def check_count(count: int) -> None:
    """Raise InputError if this number of instances is too small for a calibration."""
    if count < LEAST:
        raise InputError(f"calibration needs at least {LEAST} instances, got {count}")


def evenly_spaced(count: int, most: int) -> Int[Tensor, " m"]:
    """The numbers of at most `most` of `count` instances, evenly spaced from the first to the last."""
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()


def compressed(gap: Tensor) -> Tensor:
    """t(Δ) = sign(Δ) log(1 + |Δ|)."""
    return gap.sign() * gap.abs().log1p()


def expanded(value: Tensor) -> Tensor:
    """The inverse of :func:`compressed`."""
    return value.sign() * value.abs().expm1()


def estimate_features(model: Generative, x: Tensor, q: Distribution, draws: int = 0) -> Float[Tensor, "n features"]:
    """The features of the estimated gap, which take one gradient of the decoder.

    There are five: the compressed Newton decrement t(½ gᵀΣg); the sum of the log standard deviations of q; the squared
    norm of its mean m; log p(x, m); and the standard deviation of the observed values of x, because the typical size of
    log p(x, m) depends on it. If natural-gradient steps led to m, three more tell how well the last of them worked: the
    decrement before it, by how much it raised log p(x, m), and gᵀΣg′ with the gradient g′ before it, each compressed.
    Calibrations saved by older versions use the first five or three only.
    """
    normal, ascent = as_normal(q), getattr(q, "ascent", None)
    log_joint, gradient = Objective.of(x, normal, model, draws).value_and_gradient(normal.mean.detach())
    direction = normal.covariance_times(gradient)
    values = model.values(x).flatten(1).double()
    spread = (values - values.nanmean(1, keepdim=True)).square().nanmean(1).nan_to_num().sqrt()
    width, square = q.stddev.log().sum(-1), q.mean.square().sum(-1)
    columns = [compressed(newton_decrement(gradient, direction)), width, square, log_joint, spread.to(square)]
    if ascent is not None and ascent.before is not None:
        value_before, before = ascent.before
        changes = (
            newton_decrement(before, normal.covariance_times(before)),
            log_joint - value_before,
            (before * direction).sum(-1),
        )
        columns += [compressed(change) for change in changes]
    return torch.stack(columns, dim=-1)


@dataclass(frozen=True)
class GapRegression:
    """A Gaussian-process regression of the gap on p features, with calibrated intervals.

    All else follows in closed form from the data to which the regression was fitted and a few numbers.

    Attributes:
        features: The features of the instances, `(n, p)`, in float32.
        targets: t(Δ) of the instances, `(n,)`, in float64.
        length: The length scale of the kernel, a scalar; infinite for the linear kernel, which older versions used for
            the estimated gap.
        noise: λ, a scalar.
        quantiles: The lower and the upper quantile of the standardised residuals, `(2,)`.
    """

    features: Tensor
    targets: Tensor
    length: Tensor
    noise: Tensor
    quantiles: Tensor

    @classmethod
    def fit(
        cls,
        features: Float[Tensor, "n p"],
        targets: Float[Tensor, " n"],
        refined: Int[Tensor, " m"],
        lengths: Sequence[float],
    ) -> "GapRegression":
        """Fit the regression.

        Arguments:
            features: The features of the instances.
            targets: t(Δ) of the instances.
            refined: The numbers of the instances whose gap was measured by refinement.
            lengths: The candidates for the length scale.
        """
        features, targets = features.detach().cpu().float(), targets.detach().cpu().double()
        if not (features.isfinite().all() and targets.isfinite().all()):
            raise InputError("the gap cannot be calibrated: the model returns values that are not finite")
        quantiles = torch.zeros(2, dtype=torch.float64)
        found = []
        for length in torch.tensor(lengths, dtype=torch.float64):
            one = cls(features, targets, length, torch.ones(()), quantiles)
            values, vectors = torch.linalg.eigh(one._kernel(one._inputs))
            spectrum = values.clamp(min=0) + NOISES[:, None]
            squares = (vectors.T @ (targets - one._offset)).square()
            amplitudes = (squares / spectrum).mean(1).clamp(min=1e-12)
            evidence = -0.5 * (len(targets) * amplitudes.log() + spectrum.log().sum(1))
            best = int(evidence.argmax())
            found.append((evidence[best].item(), length, NOISES[best]))
        _, length, noise = max(found, key=lambda one: one[0])
        chosen = cls(features, targets, length, noise, quantiles)
        return cls(features, targets, length, noise, _outer_quantiles(chosen._residuals()[refined]))

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """The means of the features, and their standard deviations times √p; 1 for a feature that is constant."""
        features = self.features.double()
        centre, spread = features.mean(0), features.std(0)
        constant = spread <= 1e-6 * (1 + centre.abs())
        return centre, torch.where(constant, 1.0, spread) * math.sqrt(features.shape[1])

    def _standard(self, features: Tensor) -> Tensor:
        centre, scale = self._moments
        return (features.detach().cpu().double() - centre) / scale

    @cached_property
    def _inputs(self) -> Tensor:
        return self._standard(self.features)

    @property
    def _offset(self) -> Tensor:
        return self.targets.mean()

    def _kernel(self, inputs: Tensor) -> Tensor:
        """k between any inputs `(m, p)` and those of the regression: `(m, n)`."""
        if self.length.isinf():
            return inputs @ self._inputs.T
        return torch.exp(-0.5 * (torch.cdist(inputs, self._inputs) / self.length).square())

    @cached_property
    def _solution(self) -> tuple[Tensor, Tensor, Tensor]:
        """(K + λI)⁻¹, (K + λI)⁻¹(targets − offset) and a²."""
        kernel = self._kernel(self._inputs)
        kernel.diagonal().add_(self.noise)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(kernel))
        centred = self.targets - self._offset
        weights = inverse @ centred
        return inverse, weights, ((weights @ centred) / len(centred)).clamp(min=1e-12)

    def _residuals(self) -> Tensor:
        """Each target minus its prediction from all others, in predictive standard deviations, `(n,)`."""
        inverse, weights, amplitude = self._solution
        return weights / (amplitude * inverse.diagonal()).sqrt()

    def mean_and_deviation(self, features: Float[Tensor, "m p"]) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """The mean and the standard deviation of t(Δ) of new instances, on the CPU in float64."""
        inverse, weights, amplitude = self._solution
        inputs = self._standard(features)
        kernel = self._kernel(inputs)
        own = inputs.square().sum(-1) if self.length.isinf() else 1.0
        variance = (own - ((kernel @ inverse) * kernel).sum(-1)).clamp(min=0) + self.noise
        return self._offset + kernel @ weights, (amplitude * variance).sqrt()

    def __call__(self, features: Float[Tensor, "m p"], how: str, shift: Tensor | float = 0.0) -> Gap:
        """The gap of new instances with its interval, after `shift` `(m,)` was added to t(Δ)."""
        mean, deviation = self.mean_and_deviation(features)
        mean = mean + shift
        ends = [mean, *(mean + quantile * deviation for quantile in self.quantiles)]
        values, low, high = (expanded(end).to(features.device) for end in ends)
        return Gap(values, low, high, how)


def _outer_quantiles(residuals: Tensor) -> Tensor:
    """The quantiles between which a new residual lies with probability `COVERAGE`, `(2,)`.

    A new residual is below the k-th smallest of n exchangeable ones with probability k/(n + 1).
    """
    ordered, tail = residuals.sort().values, (1 - COVERAGE) / 2
    rank = max(1, round(tail * (len(ordered) + 1)))
    return torch.stack([ordered[rank - 1], ordered[-rank]])


@dataclass(frozen=True)
class GapNetwork:
    """A network with one hidden layer that maps p features to t(Δ).

    Attributes:
        centre: The means of the features, `(p,)`.
        scale: Their standard deviations, `(p,)`; 1 for a feature that is constant.
        weight: The weights of the hidden layer, `(units, p)`.
        bias: Its biases, `(units,)`.
        output: The weights of the output, `(units,)`.
        offset: Its bias, a scalar.
        bounds: The smallest and the largest target to which it was fitted, `(2,)`, between which its output stays.
    """

    centre: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor
    output: Tensor
    offset: Tensor
    bounds: Tensor

    UNITS: ClassVar[int] = 128
    UPDATES: ClassVar[int] = 2400
    BATCH: ClassVar[int] = 128

    @classmethod
    def fit(cls, features: Float[Tensor, "n p"], targets: Float[Tensor, " n"]) -> "GapNetwork":
        """Fit the network to features and t(Δ), by AdamW with dropout; the noise is that of torch's generator."""
        features, targets = features.detach().cpu().float(), targets.detach().cpu().float()
        deviations, spread = features.std(0), targets.std().clamp(min=1e-6)
        scale = torch.where(deviations <= 1e-6 * (1 + features.mean(0).abs()), 1.0, deviations)
        inputs, wanted = (features - features.mean(0)) / scale, (targets - targets.mean()) / spread
        plain: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever torch's defaults are
        hidden = nn.Linear(features.shape[1], cls.UNITS, **plain)
        last = nn.Linear(cls.UNITS, 1, **plain)
        network = nn.Sequential(hidden, nn.ReLU(), nn.Dropout(0.2), last)
        optimiser = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, cls.UPDATES)
        with torch.enable_grad():
            for _ in range(cls.UPDATES):
                rows = torch.randint(len(inputs), (cls.BATCH,), device="cpu")
                loss = (network(inputs[rows]).squeeze(-1) - wanted[rows]).square().mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
        output, offset = spread * last.weight[0], targets.mean() + spread * last.bias[0]
        bounds = torch.stack([targets.min(), targets.max()])
        found = (features.mean(0), scale, hidden.weight, hidden.bias, output, offset, bounds)
        return cls(*(tensor.detach().clone() for tensor in found))

    def __call__(self, features: Float[Tensor, "m p"]) -> Float[Tensor, " m"]:
        """The predicted t(Δ), on the CPU in float64."""
        inputs = (features.detach().cpu().float() - self.centre) / self.scale
        values = torch.relu(inputs @ self.weight.T + self.bias) @ self.output + self.offset
        return values.clamp(*self.bounds.tolist()).double()


@dataclass(frozen=True)
class Calibration:
    """The regressions of the gap of a model.

    Attributes:
        predicted: The regression on features of the encoder: of the gap, or of what the network leaves.
        estimated: The regression on the Newton decrement and others.
        network: The network that was fitted to training instances, if there were any.
    """

    predicted: GapRegression
    estimated: GapRegression
    network: GapNetwork | None = None

    @classmethod
    def fit(
        cls,
        features: Float[Tensor, "n p"],
        estimates: Float[Tensor, "n features"],
        refined: Int[Tensor, " m"],
        gaps: Float[Tensor, " m"],
        training: tuple[Float[Tensor, "k p"], Float[Tensor, "k features"]] | None = None,
        network: GapNetwork | None = None,
    ) -> "Calibration":
        """Fit both regressions, and the network if there are training instances.

        Arguments:
            features: The features of the encoder, see `gpin.inference.InferenceModel.features`.
            estimates: The features of the estimated gap, see :func:`estimate_features`.
            refined: The numbers of the instances that were refined, at least 50.
            gaps: The refined gaps of these instances in nats.
            training: The same two kinds of features for at least 2,000 instances of the training data. Those that are
                not finite are left out.
            network: Without training instances, a network that was fitted before.
        """
        check_count(len(refined))
        measured = compressed(gaps.detach().cpu().double())

        def fit_estimated() -> GapRegression:
            return GapRegression.fit(estimates[refined], measured, torch.arange(len(refined)), LONGER)

        estimated = fit_estimated()
        if training is not None:
            network = _trained(*training, estimated)
        if network is not None:
            estimates = _with_output(estimates, network, features)
            estimated = fit_estimated()
        targets = _estimated_targets(estimates, estimated)
        targets[refined] = measured
        if network is not None:
            targets = targets - network(features)
        return cls(GapRegression.fit(features, targets, refined, LENGTHS), estimated, network)

    def predict(self, features: Float[Tensor, "m p"], how: str) -> Gap:
        """The predicted gap of new instances from the features of the encoder."""
        return self.predicted(features, how, 0.0 if self.network is None else self.network(features))

    def estimate(self, estimates: Float[Tensor, "m features"], features: Float[Tensor, "m p"], how: str) -> Gap:
        """The estimated gap of new instances, from the features of :func:`estimate_features` and of the encoder.

        The regression must not extrapolate: features are limited to the range of the calibration. Beyond the largest
        decrement in it, the gap grows in proportion to the decrement.
        """
        if self.network is not None:
            estimates = _with_output(estimates, self.network, features)
        inside, beyond = _within(estimates, self.estimated)
        return self.estimated(inside, how, beyond)


def _estimated_targets(estimates: Float[Tensor, "m features"], estimated: GapRegression) -> Float[Tensor, " m"]:
    """t(Δ) of the estimated gap, which takes the place of the measured one for instances that were not refined."""
    inside, beyond = _within(estimates, estimated)
    return estimated.mean_and_deviation(inside)[0] + beyond


def _with_output(
    estimates: Float[Tensor, "m features"], network: GapNetwork, features: Float[Tensor, "m p"]
) -> Float[Tensor, "m all"]:
    """The features of the estimated gap, and the output of the network as one more."""
    return torch.cat([estimates, network(features).to(estimates).unsqueeze(-1)], dim=-1)


def _trained(
    features: Float[Tensor, "k p"], estimates: Float[Tensor, "k features"], estimated: GapRegression
) -> GapNetwork | None:
    """The network fitted to the estimated gaps of training instances; None if too few of them are finite."""
    targets = _estimated_targets(estimates, estimated)
    finite = features.cpu().isfinite().all(-1) & estimates.cpu().isfinite().all(-1) & targets.isfinite()
    if finite.sum() < LEAST_TRAINING:
        return None
    return GapNetwork.fit(features.cpu()[finite], targets[finite])


def _within(
    features: Float[Tensor, "m features"], regression: GapRegression
) -> tuple[Float[Tensor, "m used"], Float[Tensor, " m"]]:
    """The features of the estimated gap, limited to the range of a regression, and by how much the first exceeds it, on
    the CPU."""
    known = regression.features.to(features.device, torch.float64)
    features = features[:, : known.shape[1]].double()
    inside = features.clamp(known.amin(0), known.amax(0))
    return inside, (features - inside)[:, 0].clamp(min=0).nan_to_num(nan=0.0).cpu()


Calibrations = Mapping[int | None, Calibration]
"""The calibrations of a model by the number of steps; None stands for the number that the method itself takes."""


Temperatures = Mapping[int | str | None, float]
"""The temperatures of a model's posteriors, see `gpin.evaluation.calibration`, by the number of steps as in
`Calibrations`; "refined" stands for the refined posterior."""


def pack_calibrations(calibrations: Calibrations, temperatures: Temperatures) -> bytes:
    """The content of a safetensors file with calibrations and temperatures."""
    regressions = {
        f"{OWN if steps is None else steps}/{part.name}/{field.name}": getattr(regression, field.name)
        for steps, calibration in calibrations.items()
        for part in fields(calibration)
        for regression in [getattr(calibration, part.name)]
        if regression is not None
        for field in fields(regression)
    }
    scalars = {
        f"{OWN if steps is None else steps}/{TEMPERATURE}": torch.tensor(value, dtype=torch.float64)
        for steps, value in temperatures.items()
    }
    return pack_tensors({**regressions, **scalars})


def unpack_calibrations(content: bytes) -> tuple[dict[int | None, Calibration], dict[int | str | None, float]]:
    """The calibrations and the temperatures in a safetensors file; files of older versions have no temperatures."""
    found: dict[str, dict[str, dict[str, Tensor]]] = {}
    temperatures: dict[int | str | None, float] = {}
    for key, tensor in load_tensors(content).items():
        steps, part, *name = key.split("/")
        if part == TEMPERATURE:
            temperatures[None if steps == OWN else int(steps) if steps.isdigit() else steps] = tensor.item()
        else:
            found.setdefault(steps, {}).setdefault(part, {})[name[0]] = tensor
    calibrations = {
        None if steps == OWN else int(steps): Calibration(
            GapRegression(**parts["predicted"]),
            GapRegression(**parts["estimated"]),
            GapNetwork(**parts[NETWORK]) if NETWORK in parts else None,
        )
        for steps, parts in found.items()
    }
    return calibrations, temperatures
