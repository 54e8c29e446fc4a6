"""The VAE: prior, decoder with likelihood, and an inference model. Users call its methods."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.distributions import Distribution

from gpin._core.config import Config
from gpin._core.devices import device_named
from gpin._core.errors import InputError
from gpin._core.files import as_path, read_record, write_record, write_whole
from gpin._core.inputs import as_dtype, as_tensor, check_seed, positive_number, whole_number
from gpin._core.memory import keep_freed_memory
from gpin._core.seeding import seeded
from gpin.distributions import PrecisionNormal
from gpin.evaluation.importance import LogLikelihood, importance_weighted
from gpin.inference import ELBO, InferenceModel, Uncertainty, method_named
from gpin.likelihoods import (
    GaussianOptions,
    Likelihood,
    LikelihoodConfig,
    as_likelihood_config,
    likelihood_named,
    make_likelihood,
)
from gpin.networks import (
    ArchitectureConfig,
    DenseOptions,
    OwnDecoder,
    OwnNetworks,
    OwnTrunk,
    as_architecture,
    check_shape,
    make_architecture,
    parse_architecture,
)
from gpin.refinement import GaussNewton, GaussNewtonConfig

__all__ = ["VAE", "Reconstruction", "VAEConfig", "build", "from_config", "load"]

ArrayLike = Tensor | np.ndarray
Network = nn.Module | Callable[[], nn.Module]
"""A network of the user's own, or a function that makes one."""

FORMAT = "gpin-vae"
VERSION = 1


class VAEConfig(Config):
    """All that is needed to build a model again: data in, data out.

    `encoder` and `decoder` are the names of the classes of the user's own networks, where there are any.
    """

    shape: tuple[int, ...]
    method: str = "gp"
    latent_dim: int = Field(default=10, ge=1)
    options: dict[str, Any] = Field(default_factory=dict)
    likelihood: LikelihoodConfig = GaussianOptions()
    architecture: ArchitectureConfig = DenseOptions()
    encoder: str | None = None
    decoder: str | None = None

    @field_validator("likelihood", mode="before")
    @classmethod
    def _read_likelihood(cls, value: Any) -> Any:
        return as_likelihood_config(value)

    @field_validator("architecture", mode="before")
    @classmethod
    def _read_architecture(cls, value: Any) -> Any:
        return parse_architecture(value) if isinstance(value, Mapping) else value

    @property
    def own(self) -> bool:
        """Whether there are networks of the user's own in it, which the config only names."""
        return self.encoder is not None or self.decoder is not None

    @property
    def density(self) -> bool:
        """Whether p(x|z) is a density, whose value depends on the units of x, and not a probability."""
        return likelihood_named(self.likelihood.kind).density

    @model_serializer(mode="wrap")
    def _record(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The content of files, whose hash is the identity of a run."""
        own = ("encoder", "decoder")
        return {
            **{name: value for name, value in handler(self).items() if name not in own or value is not None},
            "likelihood": self.likelihood.record(),
            "architecture": self.architecture.record(),
        }


class Reconstruction(NamedTuple):
    """What `vae(x)` returns.

    Attributes:
        reconstruction: E[x|z] at the posterior mean of z, `(batch, *shape)`.
        q: q(z|x), with batch shape `(batch,)` and event shape `(d,)`.
    """

    reconstruction: Tensor
    q: Distribution


class VAE(nn.Module):
    """p(z) = N(0, I), p(x|z) from decoder and likelihood, and q(z|x) from the inference model.

    Most users call :func:`build`; any modules of the right shapes will do:

    Arguments:
        inference: Maps x to q(z|x).
        decoder: z `(..., d)` → output `(..., *shape)`, or `(..., outputs, *shape)` for a likelihood that takes several
            outputs per value.
        likelihood: p(x|output).
        config: The config it was built from, which is saved with its weights.
    """

    prepared: Tensor

    def __init__(
        self,
        inference: InferenceModel[Any],
        decoder: nn.Module,
        likelihood: Likelihood[Any],
        config: VAEConfig | None = None,
    ) -> None:
        super().__init__()
        keep_freed_memory()
        self.inference, self.decoder, self.likelihood, self.config = inference, decoder, likelihood, config
        self.register_buffer("prepared", torch.zeros((), dtype=torch.bool))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one instance."""
        return self.likelihood.shape

    @property
    def latent_dim(self) -> int:
        """The number of latent dimensions."""
        return self.inference.latent_dim

    # The generative model -------------------------------------------------------------------------

    def log_prior(self, z: Tensor) -> Tensor:
        """log N(z; 0, I): `(..., d)` → `(...)`."""
        return -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))

    def log_conditional(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z): x `(batch, *shape)`, z `(..., batch, d)` → `(..., batch)`."""
        return self.likelihood.log_prob(x, self.decoder(z))

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x, z), `(..., batch)`."""
        return self.log_conditional(x, z) + self.log_prior(z)

    def reconstruction(self, x: Tensor, z: Tensor, weights: Tensor | None = None) -> Tensor:
        """log p(x|z) for an objective: in training, the likelihood's running statistics are updated first.

        In these statistics, `weights` `(..., batch)` weight each z.
        """
        output = self.decoder(z)
        if self.training:
            self.likelihood.observe(x, output, weights)
        return self.likelihood.log_prob(x, output)

    # What users ask -------------------------------------------------------------------------------

    def encode(self, x: ArrayLike) -> Distribution:
        """q(z|x), a distribution with batch shape `(batch,)` and event shape `(d,)`."""
        return self.inference(self.check(x), self)

    def forward(self, x: ArrayLike) -> "Reconstruction":
        """Encode and decode x: E[x|z] at the posterior mean of z, and q(z|x); gradients pass through both."""
        q = self.encode(x)
        return Reconstruction(self.likelihood.mean(self.decoder(q.mean)), q)

    def elbo(self, x: ArrayLike, samples: int = 1) -> ELBO:
        """The evidence lower bound with its terms, each `(batch,)`.

        In training mode a likelihood with variance="analytic" counts x as a batch of training.
        """
        return self.inference.elbo(self.check(x), self, whole_number(samples, "samples"))

    def loss(self, x: Tensor, samples: int = 1) -> Tensor:
        """What training minimises, a scalar; for most methods the mean of −ELBO over the batch."""
        return self.inference.objective(x, self, samples)[0]

    @torch.no_grad()
    def log_likelihood(
        self,
        x: ArrayLike,
        samples: int = 100,
        proposal: str | Distribution = "encoder",
        chunk_size: int = 512,
        *,
        steps: int | None = None,
        tolerance: float | None = None,
        return_weights: bool = False,
    ) -> LogLikelihood:
        """Importance-weighted estimates of log p(x), one per instance, with diagnostics.

        Arguments:
            x: `(batch, *shape)`, any number of instances.
            samples: K, the samples used for each instance.
            proposal: "encoder" samples from q(z|x); "refined" from the Gaussian that :meth:`refine` finds for
                each instance, so that the score depends much less on the encoder that happened to be trained. A
                distribution of your own is sampled as it is; it needs batch shape `(batch,)` and event shape `(d,)`.
            chunk_size: How many pairs (x, z) the decoder sees at a time; changes memory, not results.
            steps: For proposal="refined": the maximal number of steps, see :meth:`refine`.
            tolerance: For proposal="refined": nats per step, see :meth:`refine`.
            return_weights: Keep the log weights `(samples, batch)` in the result, as `log_weights`.
        """
        x = self.check(x)
        samples, chunk_size = whole_number(samples, "samples"), whole_number(chunk_size, "chunk_size")
        given = {"steps": steps, "tolerance": tolerance}
        refinement: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if refinement and proposal != "refined":
            raise InputError(f"{next(iter(refinement))} applies to proposal='refined' only")
        if isinstance(proposal, Distribution):
            self._check_proposal(proposal, len(x))
            log_joint = partial(self._log_joint_in_parts, x, chunk_size)
            chunk = max(1, chunk_size // len(x))
            return importance_weighted(log_joint, proposal, samples, chunk, "given", return_weights)
        if proposal not in ("encoder", "refined"):
            raise InputError(f"unknown proposal {proposal!r}: choose 'encoder', 'refined' or a distribution over z")
        parts = []
        for batch in x.split(max(1, min(128, 2**20 // samples))):
            q = self.inference(batch, self) if proposal == "encoder" else self.refine(batch, **refinement)
            log_joint, chunk = partial(self.log_joint, batch), max(1, chunk_size // len(batch))
            parts.append(importance_weighted(log_joint, q, samples, chunk, proposal, return_weights))
        return LogLikelihood.join(parts)

    def _check_proposal(self, q: Distribution, count: int) -> None:
        wanted, found = ((count,), (self.latent_dim,)), (tuple(q.batch_shape), tuple(q.event_shape))
        if found != wanted:
            should, has = (f"batch shape {batch} and event shape {event}" for batch, event in (wanted, found))
            hint = "; wrap it in torch.distributions.Independent" if found == ((count, self.latent_dim), ()) else ""
            raise InputError(f"the proposal must have {should}, got {has}{hint}")

    def _log_joint_in_parts(self, x: Tensor, size: int, z: Tensor) -> Tensor:
        """log p(x, z) for z `(samples, batch, d)`, with so many instances at a time."""
        pairs = zip(x.split(size), self._like_own(z).split(size, dim=1), strict=True)
        return torch.cat([self.log_joint(x_part, z_part) for x_part, z_part in pairs], dim=1)

    @torch.no_grad()
    def refine(self, x: ArrayLike, steps: int = 20, tolerance: float = 0.1) -> PrecisionNormal:
        """The posterior of each instance as a full-covariance Gaussian, by damped Gauss–Newton steps on
        log p(x, z) from the encoder's mean; they never lower it.

        Arguments:
            x: `(batch, *shape)`.
            steps: The maximal number of steps.
            tolerance: Nats; an instance stops when a step raises its log p(x, z) by no more than this. 0.1 nats are
                little compared with the spread of log p(x, z) over draws of the posterior.
        """
        x = self.check(x)
        options = GaussNewtonConfig(
            steps=whole_number(steps, "steps"), tolerance=positive_number(tolerance, "tolerance")
        )
        return GaussNewton(options)(x, self.inference(x, self), self)

    @torch.no_grad()
    def uncertainty(self, x: ArrayLike) -> Uncertainty:
        """How uncertain the encoder is of its own answer; for methods that have an uncertainty (`gp`)."""
        return self.inference.uncertainty(self.check(x))

    @torch.no_grad()
    def decode(self, z: ArrayLike) -> Tensor:
        """E[x|z]: `(..., d)` → `(..., *shape)`."""
        z = self._like_own(as_tensor(z, "z"))
        if z.shape[-1:] != (self.latent_dim,):
            raise InputError(f"z must end in latent_dim={self.latent_dim}, got shape {tuple(z.shape)}")
        if not z.isfinite().all():
            raise InputError("z must be finite, and some of its values are not")
        return self.likelihood.mean(self.decoder(z))

    @torch.no_grad()
    def reconstruct(self, x: ArrayLike) -> Tensor:
        """E[x|z] at the posterior mean of z, `(batch, *shape)`."""
        return self.decode(self.encode(x).mean)

    @overload
    def sample(self, count: int, noise: bool = False, *, return_latents: Literal[False] = False) -> Tensor: ...

    @overload
    def sample(self, count: int, noise: bool = False, *, return_latents: Literal[True]) -> tuple[Tensor, Tensor]: ...

    @torch.no_grad()
    def sample(
        self, count: int, noise: bool = False, *, return_latents: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`count` draws from the model, `(count, *shape)`.

        Arguments:
            count: How many.
            noise: Draw x itself; otherwise E[x|z] is returned.
            return_latents: Return the draws together with their z, `(count, d)`.
        """
        count = whole_number(count, "count")
        like = next(self.parameters())
        z = torch.randn(count, self.latent_dim, dtype=like.dtype, device=like.device)
        output = self.decoder(z)
        x = self.likelihood.sample(output) if noise else self.likelihood.mean(output)
        return (x, z) if return_latents else x

    # Before training ------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(self, x: ArrayLike | Iterable[Tensor]) -> None:
        """Look at the training data, as one array or in batches: its mean, spread, size and scale.

        Sets the networks' centre and the likelihood's first variance unless that was done before, and
        tells the inference model the number of training points. `gpin.fit` calls it.
        """
        batches = [self.check(x)] if isinstance(x, Tensor | np.ndarray) else x
        first: Tensor | None = None
        total = squares = torch.zeros((), dtype=torch.float64)
        count = 0
        if isinstance(batches, str) or not isinstance(batches, Iterable):
            raise InputError(f"x must be a tensor, an array or batches of them, got {type(x).__name__}")
        for batch in map(self.check, batches):
            first = batch[:1024] if first is None else first
            total = total + batch.double().sum(0)
            squares = squares + batch.double().square().sum(0)
            count += len(batch)
        if first is None:
            raise InputError("the training data is empty")
        if not self.prepared:
            mean = total / count
            spread = (squares / count - mean.square()).clamp(min=0)
            self._center(mean, self.likelihood.center(mean, spread))
            self.likelihood.prepare(spread)
            self.prepared.fill_(True)
        self.inference.prepare(first, count, self)

    def _center(self, mean: Tensor, output: Tensor | None) -> None:
        """Pass the centres of x and of the decoder's output to the networks that have one."""
        for module in self.modules():
            if (center_input := getattr(module, "center_input", None)) is not None:
                center_input(mean)
            if output is not None and (center_output := getattr(module, "center_output", None)) is not None:
                center_output(output)

    def start_from(self, trained: "VAE") -> "VAE":
        """Warm start: take over the decoder, the likelihood and what the encoder can use of a trained VAE."""
        if not isinstance(trained, VAE):
            raise InputError(f"a warm start needs a trained gpin.VAE, got {type(trained).__name__}")
        if self.likelihood.options != trained.likelihood.options:
            raise InputError("cannot start from a VAE with another likelihood: give both the same likelihood options")
        self.inference.start_from(trained.inference)
        try:
            self.decoder.load_state_dict(trained.decoder.state_dict())
            self.likelihood.load_state_dict(trained.likelihood.state_dict())
        except RuntimeError:
            raise InputError("cannot start from a VAE with another data shape or architecture") from None
        self.prepared.copy_(trained.prepared)
        return self

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Groups for an optimiser: a module may say in `learning_rate_factors` that some of its own
        parameters learn faster, and in `fastest` at which rate at most."""
        groups: dict[float, list[nn.Parameter]] = {learning_rate: []}
        for module in self.modules():
            factors, fastest = getattr(module, "learning_rate_factors", {}), getattr(module, "fastest", math.inf)
            for name, parameter in module.named_parameters(recurse=False):
                rate = max(learning_rate, min(factors.get(name, 1.0) * learning_rate, fastest))
                groups.setdefault(rate, []).append(parameter)
        return [{"params": params, "lr": rate} for rate, params in groups.items() if params]

    def check(self, x: ArrayLike) -> Tensor:
        """X as a tensor of the model's dtype and device, or an error that names what is wrong with it."""
        x = as_tensor(x, "x")
        wanted = "(batch, " + ", ".join(map(str, self.shape)) + ")"
        if x.dim() != len(self.shape) + 1 or tuple(x.shape[1:]) != self.shape:
            hint = ": one instance still needs a batch dimension, x[None]" if tuple(x.shape) == self.shape else ""
            raise InputError(f"x must have shape {wanted}, got {tuple(x.shape)}{hint}")
        if len(x) == 0:
            raise InputError(f"x is an empty batch: shape {tuple(x.shape)}, expected at least one instance")
        x = self._like_own(x)
        # A finite sum is ten times cheaper to look at, and only finite numbers have one.
        if not torch.isfinite(x.sum()) and not torch.isfinite(x).all():
            bad = (~torch.isfinite(x.flatten(1))).any(1).nonzero().flatten().tolist()
            raise InputError(
                f"x has NaN or infinite values in {len(bad)} of {len(x)} instances (the first is number {bad[0]})"
            )
        self.likelihood.check(x)
        return x

    def _like_own(self, tensor: Tensor) -> Tensor:
        like = next(self.parameters())
        return tensor.to(device=like.device, dtype=like.dtype)

    def move(self, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None) -> None:
        """Move the model to a device and to a precision, where they are given."""
        self.to(device=None if device is None else device_named(device), dtype=as_dtype(dtype))

    # Files ----------------------------------------------------------------------------------------

    def packed(self) -> bytes:
        """The weights in the safetensors format."""
        return save_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()})

    def checksum(self) -> str:
        """sha256 of the weights, as in the `config.json` of a saved model."""
        return hashlib.sha256(self.packed()).hexdigest()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `config.json` and `model.safetensors`; nothing in them executes."""
        folder = as_path(folder)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"cannot save to {folder}: it is a file, and a folder is needed")
        folder.mkdir(parents=True, exist_ok=True)
        weights = self.packed()
        config = None if self.config is None else self.config.model_dump(mode="json")
        record = {
            "config": config,
            "dtype": str(next(self.parameters()).dtype).removeprefix("torch."),
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
        }
        write_whole(folder / "model.safetensors", weights)
        write_record(folder / "config.json", FORMAT, VERSION, record)


def build(
    shape: Sequence[int],
    method: str = "gp",
    latent_dim: int = 10,
    *,
    likelihood: str | Mapping[str, Any] | LikelihoodConfig = "gaussian",
    architecture: str | Mapping[str, Any] | ArchitectureConfig | None = None,
    encoder: Network | None = None,
    decoder: Network | None = None,
    start: VAE | None = None,
    seed: int | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    **options: Any,
) -> VAE:
    """A VAE for data of this shape.

    Arguments:
        shape: The shape of one instance: (channels, height, width) or (columns,).
        method: The inference model, one of `gpin.inference.METHODS`.
        latent_dim: d, the number of latent dimensions.
        likelihood: One of `gpin.likelihoods.LIKELIHOODS` by its name, or options such as {"variance": "analytic"} or
            {"kind": "heteroscedastic", "min_variance": 1e-3}.
        architecture: One of `gpin.networks.ARCHITECTURES` by its name; by default the rule of
            `gpin.networks.architecture_for`. Options given as a mapping, such as {"decoder": "dense"}, change what
            suits the shape.
        encoder: A network of your own in place of the architecture's trunk: x `(batch, *shape)` → features
            `(batch, any number)`, from which the method infers z. Either a module, which becomes part of the VAE, or a
            function without arguments that makes one, such as a module's class; methods that need several networks
            (`gp` with shared_trunk=False, `me`, `rme`) need a function.
        decoder: A network of your own in place of the architecture's decoder, likewise a module or a function:
            z `(batch, latent_dim)` → output `(batch, *shape)`, which is the mean for a Gaussian likelihood and logits
            for a Bernoulli. A likelihood that takes several outputs per value wants `(batch, outputs, *shape)`.
        start: A trained VAE to start from (for methods that can).
        seed: Makes the first weights reproducible, without touching torch's global random state.
        device: Where the model computes, such as "cuda"; by default where torch makes tensors.
        dtype: The precision of the weights, torch.float32 or torch.float64; by default torch's.
        options: The options of the method, such as covariance="full" for "gp"; preset="paper" selects the paper's.

    Example:
        >>> vae = build((1, 28, 28), method="gp", latent_dim=10)
        >>> vae.encode(torch.zeros(3, 1, 28, 28)).mean.shape
        torch.Size([3, 10])
    """
    shape, latent_dim = check_shape(shape), whole_number(latent_dim, "latent_dim")
    if encoder is not None and decoder is not None and architecture is not None:
        raise InputError("architecture does not apply where encoder and decoder are both your own: leave it out")
    chosen = method_named(method)
    parsed = chosen.Options.parse(options, f"method {method!r}")
    config = VAEConfig(
        shape=shape,
        method=method,
        latent_dim=latent_dim,
        options=parsed.model_dump(mode="json"),
        likelihood=as_likelihood_config(likelihood),
        architecture=as_architecture(architecture, shape),
    )
    with nullcontext() if seed is None else seeded(check_seed(seed)):
        vae = from_config(config, encoder=encoder, decoder=decoder)
    vae.move(device, dtype)
    return vae if start is None else vae.start_from(start)


def from_config(
    config: VAEConfig, *, encoder: Network | None = None, decoder: Network | None = None, what: str = "this model"
) -> VAE:
    """The model that a config describes, with fresh weights.

    Arguments:
        config: The config.
        encoder: The user's own network, see `build`; a config that names its class needs one.
        decoder: Likewise.
        what: What to call the model in errors.
    """
    encoders, decoders = (
        None if given is None else OwnNetworks(given, part)
        for part, given in (("encoder", encoder), ("decoder", decoder))
    )
    _check_given("encoder", config.encoder, encoders, what)
    _check_given("decoder", config.decoder, decoders, what)
    method = method_named(config.method)
    options = method.Options.parse(config.options, f"method {config.method!r}")
    architecture = make_architecture(config.shape, config.architecture)
    likelihood = make_likelihood(config.shape, config.likelihood)
    make_trunk = architecture.trunk if encoders is None else lambda: OwnTrunk(encoders(), config.shape)
    inference = method(make_trunk, config.latent_dim, options)
    if decoders is None:
        network = architecture.decoder(config.latent_dim, likelihood.outputs)
    else:
        network = OwnDecoder(decoders(), config.latent_dim, likelihood.output_shape)
    names = {"encoder": encoders and encoders.name, "decoder": decoders and decoders.name}
    for part, name in names.items():
        if getattr(config, part) not in (None, name):
            raise InputError(
                f"{what} was built with the {part} {getattr(config, part)}, got {name}; if that is the same network by "
                "another name, build the model and pass it as into="
            )
    return VAE(inference, network, likelihood, config.model_copy(update=names))


def _check_given(part: str, name: str | None, given: OwnNetworks | None, what: str) -> None:
    """Refuse to build a model without the user's networks that it had."""
    if name is not None and given is None:
        raise InputError(f"{what} needs its own {part} {name}: pass it, or a function that makes it, as {part}=")


def load(
    folder: str | os.PathLike[str],
    into: VAE | None = None,
    *,
    encoder: Network | None = None,
    decoder: Network | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> VAE:
    """A model that `VAE.save` wrote; in evaluation mode.

    Arguments:
        folder: Where it was saved.
        into: For a VAE that `gpin.VAE` made of your own modules: one of the same modules, to be filled.
        encoder: For a VAE that `build` made with an encoder of your own: the same network, as a module or a function
            that makes one; its weights are replaced.
        decoder: Likewise.
        device: Where the model computes; by default where torch makes tensors.
        dtype: The precision of the weights; by default that in which they were saved.
    """
    folder = as_path(folder)
    record, weights = _read_model(folder)
    if not isinstance(into, VAE | None):
        raise InputError(f"into must be a gpin.VAE, got {type(into).__name__}")
    if into is None and record["config"] is None:
        raise InputError(f"{folder} holds a VAE made of custom modules: build it yourself and pass it as into=")
    if into is None:
        config = VAEConfig.parse(record["config"], f"{folder / 'config.json'}")
        for part, given in (("encoder", encoder), ("decoder", decoder)):
            if given is not None and getattr(config, part) is None:
                raise InputError(f"{folder} was built with gpin's own {part}: load it without {part}=")
        with seeded(0):  # the weights that it draws are replaced, and torch's random state is left alone
            into = from_config(config, encoder=encoder, decoder=decoder, what=str(folder))
    elif encoder is not None or decoder is not None:
        raise InputError("into is a whole model: leave out encoder and decoder")
    vae = into
    vae.to(dtype=getattr(torch, record["dtype"]))
    try:
        vae.load_state_dict(load_tensors(weights))
    except (SafetensorError, RuntimeError) as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise InputError(
            f"{folder / 'model.safetensors'} does not fit the model that config.json describes: {first}"
        ) from None
    vae.move(device, dtype)
    return vae.eval()


def _read_model(folder: Path) -> tuple[dict[str, Any], bytes]:
    config_path, weights_path = folder / "config.json", folder / "model.safetensors"
    for path in (config_path, weights_path):
        if not path.is_file():
            raise InputError(f"{folder} is not a saved model: {path.name} is missing")
    record = read_record(config_path, FORMAT, VERSION, "a gpin model")
    weights = weights_path.read_bytes()
    if hashlib.sha256(weights).hexdigest() != record["weights_sha256"]:
        raise InputError(f"{weights_path} is damaged, or not the one that belongs to its config.json: checksums differ")
    return record, weights
