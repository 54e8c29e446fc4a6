"""Building and loading: a VAE from arguments, from a config, or from a folder."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, SerializerFunctionWrapHandler, ValidationInfo, field_validator, model_serializer
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import nn

from gpin._core.config import Config
from gpin._core.errors import InputError
from gpin._core.files import as_path, read_record
from gpin._core.inputs import check_seed, whole_number
from gpin._core.seeding import seeded
from gpin.conditions import Condition, as_condition
from gpin.evaluation.gap_prediction import Calibrations, Temperatures, unpack_calibrations
from gpin.inference import METHODS, method_named
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
    ConditionalTrunk,
    DenseOptions,
    ObservedTrunk,
    OwnDecoder,
    OwnNetworks,
    OwnTrunk,
    Trunk,
    as_architecture,
    check_shape,
    make_architecture,
    parse_architecture,
)
from gpin.vae import FORMAT, VAE, VERSION

__all__ = ["VAEConfig", "build", "from_config", "load"]

Network = nn.Module | Callable[[], nn.Module]
"""A user-defined network, or a function that makes one."""


class VAEConfig(Config):
    """Everything that is needed to build a model, ready for JSON.

    `encoder` and `decoder` are the class names of user-defined networks; None stands for gpin's own. `condition` is
    what the model is conditional on, if anything. `missing` says whether NaN in x may stand for a value that was not
    observed.
    """

    later = ("encoder", "decoder", "condition", "missing")

    shape: tuple[int, ...]
    method: str = "gp"
    latent_dim: int = Field(default=10, ge=1)
    options: dict[str, Any] = Field(default_factory=dict)
    likelihood: LikelihoodConfig = GaussianOptions()
    architecture: ArchitectureConfig = DenseOptions()
    encoder: str | None = None
    decoder: str | None = None
    condition: Condition | None = None
    missing: bool = False

    @field_validator("options")
    @classmethod
    def _complete_options(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return {**_former_options(info.data.get("method")), **value} if value else value

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
        """Whether the model has user-defined networks, which the config only names."""
        return self.encoder is not None or self.decoder is not None

    @property
    def density(self) -> bool:
        """Whether p(x|z) is a density, whose value depends on the units of x, rather than a probability."""
        return likelihood_named(self.likelihood.kind).density

    @model_serializer(mode="wrap")
    def _record(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The config as it is stored in files and hashed for the identity of a run.

        It is the record of earlier versions where the model is one that they could build.
        """
        former = _former_options(self.method).items()
        options = {name: value for name, value in self.options.items() if (name, value) not in former}
        return {
            **self.without_unused(handler(self)),
            "options": options or self.options,  # a record without options stands for the defaults
            "likelihood": self.likelihood.record(),
            "architecture": self.architecture.record(),
        }


def _former_options(method: str | None) -> Mapping[str, Any]:
    """The options that a complete record without them implies."""
    return {} if method not in METHODS else METHODS[method].Options.formerly


def build(
    shape: Sequence[int],
    method: str = "gp",
    latent_dim: int = 10,
    *,
    likelihood: str | Mapping[str, Any] | LikelihoodConfig = "gaussian",
    architecture: str | Mapping[str, Any] | ArchitectureConfig | None = None,
    encoder: Network | None = None,
    decoder: Network | None = None,
    given: Any = None,
    missing: bool = False,
    start: VAE | None = None,
    seed: int | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    **options: Any,
) -> VAE:
    """Build a VAE for data of this shape.

    Arguments:
        shape: The shape of one instance: (channels, height, width) or (columns,).
        method: The inference model, one of `gpin.inference.METHODS`.
        latent_dim: d, the number of latent dimensions.
        likelihood: The name of one of `gpin.likelihoods.LIKELIHOODS`, or options such as {"variance": "analytic"} or
            {"kind": "heteroscedastic", "min_variance": 1e-3}.
        architecture: The name of one of `gpin.networks.ARCHITECTURES`; by default chosen by
            `gpin.networks.architecture_for`. Options given as a mapping, such as {"decoder": "dense"}, modify the
            default for the shape.
        encoder: A network of your own in place of the architecture's trunk: x `(batch, *shape)` → features
            `(batch, any number)`, from which the method infers z. Either a module, which becomes part of the VAE, or a
            function without arguments that makes one, such as a module's class; methods that need several networks
            (`gp` with shared_trunk=False, `me`, `rme`) need a function.
        decoder: A network of your own in place of the architecture's decoder, as a module or a function:
            z `(batch, latent_dim)` → output `(batch, *shape)`, which is the mean for a Gaussian likelihood and logits
            for a Bernoulli. A likelihood with several outputs per value needs `(batch, outputs, *shape)`.
        given: For a conditional model, p(x|z, c) and q(z|x, c): the conditions of the training data, from which the
            levels of labels (text or whole numbers) and the scale of numbers are taken. It is an array `(n,)` or, for
            several columns, a mapping from their names to arrays or a data frame. The decoder then takes
            `(batch, latent_dim + C)`, z with the C numbers of the condition beside it, see `gpin.conditions`.
        missing: Whether NaN in x may stand for a value that was not observed. The model then learns from the observed
            values alone, and its encoder takes zeros in place of the missing ones and, unless it is your own, a mask.
        start: A trained VAE for a warm start, see :meth:`VAE.start_from`: one of the same method and options, or one of
            method `vae`, from which `gp`, `natural` and `rme` can start, too.
        seed: The seed of the initial weights; torch's global random state is left unchanged.
        device: The device of the model, such as "cuda"; by default torch's default device.
        dtype: The precision of the weights, torch.float32 or torch.float64; by default torch's default dtype. Networks
            of your own are converted to it, too.
        options: The options of the method, such as covariance="full" for "gp"; preset="paper" selects the paper's.

    Example:
        >>> vae = build((1, 28, 28), method="gp", latent_dim=10)
        >>> vae.encode(torch.zeros(3, 1, 28, 28)).mean.shape
        torch.Size([3, 10])
        >>> vae = build((4,), given=["setosa", "versicolor", "virginica"])
        >>> vae.encode(torch.zeros(3, 4), y="setosa").mean.shape, vae.sample(5, y="virginica").shape
        (torch.Size([3, 10]), torch.Size([5, 4]))
    """
    shape, latent_dim = check_shape(shape), whole_number(latent_dim, "latent_dim")
    if encoder is not None and decoder is not None and architecture is not None:
        raise InputError("architecture has no effect if encoder and decoder are both given: leave it out")
    chosen = method_named(method)
    parsed = chosen.Options.parse(options, f"method {method!r}")
    config = VAEConfig(
        shape=shape,
        method=method,
        latent_dim=latent_dim,
        options=parsed.model_dump(mode="json"),
        likelihood=as_likelihood_config(likelihood),
        architecture=as_architecture(architecture, shape),
        condition=None if given is None else as_condition(given),
        missing=missing,
    )
    with nullcontext() if seed is None else seeded(check_seed(seed)):
        vae = from_config(config, encoder=encoder, decoder=decoder)
    if dtype is None and (encoder is not None or decoder is not None):  # whose precision may be another
        vae.to(dtype=torch.get_default_dtype())
    vae.move(device, dtype)
    return vae if start is None else vae.start_from(start)


def from_config(
    config: VAEConfig, *, encoder: Network | None = None, decoder: Network | None = None, what: str = "this model"
) -> VAE:
    """Build the model that a config describes, with new random weights.

    Arguments:
        config: The config.
        encoder: The user-defined encoder, see `build`; required if the config names one.
        decoder: The user-defined decoder, see `build`; required if the config names one.
        what: The name of the model in error messages.
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
    width = 0 if config.condition is None else config.condition.width
    if config.missing and not likelihood.missing:
        raise InputError(f"the likelihood {likelihood.name!r} does not allow for missing values: leave missing out")
    inference = method(_trunks(config, likelihood, encoders), config.latent_dim, options)
    if decoders is None:
        network = architecture.decoder(config.latent_dim + width, likelihood.outputs)
    else:
        network = OwnDecoder(decoders(), config.latent_dim + width, likelihood.output_shape)
    names = {"encoder": encoders and encoders.name, "decoder": decoders and decoders.name}
    for part, name in names.items():
        if getattr(config, part) not in (None, name):
            raise InputError(
                f"{what} was built with the {part} {getattr(config, part)}, got {name}; if that is the same network by "
                "another name, build the model and pass it as into="
            )
    return VAE(inference, network, likelihood, config.model_copy(update=names))


def _trunks(config: VAEConfig, likelihood: Likelihood[Any], encoders: OwnNetworks | None) -> Callable[[], Trunk]:
    """A function that makes a new trunk for the data of a config."""
    prepared = config.missing or likelihood.counts is not None
    mask = config.missing and encoders is None
    inner = make_architecture(ObservedTrunk.input_shape(config.shape, mask), config.architecture)

    def make_trunk() -> Trunk:
        trunk: Trunk = inner.trunk() if encoders is None else OwnTrunk(encoders(), config.shape)
        trunk = ObservedTrunk(trunk, config.shape, mask, likelihood.counts) if prepared else trunk
        condition = config.condition
        return trunk if condition is None else ConditionalTrunk(trunk, config.shape, condition.width)

    return make_trunk


def _check_given(part: str, name: str | None, given: OwnNetworks | None, what: str) -> None:
    """Raise InputError if the config names a user-defined network that is not given."""
    if name is not None and given is None:
        raise InputError(f"{what} was built with your {part} {name}: pass it, or a function that makes it, as {part}=")


def load(
    folder: str | os.PathLike[str],
    into: VAE | None = None,
    *,
    encoder: Network | None = None,
    decoder: Network | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> VAE:
    """Load a model that `VAE.save` wrote; it is in evaluation mode.

    Arguments:
        folder: The folder in which it was saved.
        into: For a VAE made with `gpin.VAE` from your own modules: a VAE of the same modules, into which the weights
            are loaded.
        encoder: For a VAE that `build` made with your own encoder: the same network, as a module or a function that
            makes one; its weights are replaced.
        decoder: The same for your own decoder.
        device: The device of the model; by default torch's default device.
        dtype: The precision of the weights; by default that in which they were saved.
    """
    folder = as_path(folder)
    record, weights = _read_model(folder)
    if not isinstance(into, VAE | None):
        raise InputError(f"into must be a gpin.VAE, got {type(into).__name__}")
    if into is None and record["config"] is None:
        raise InputError(f"{folder} holds a VAE of custom modules: build one of the same modules and pass it as into=")
    if into is None:
        config = VAEConfig.parse(record["config"], f"{folder / 'config.json'}")
        for part, given in (("encoder", encoder), ("decoder", decoder)):
            if given is not None and getattr(config, part) is None:
                raise InputError(f"{folder} was built with gpin's own {part}: load it without {part}=")
        with seeded(0):  # the weights that it draws are replaced, and torch's random state is left alone
            into = from_config(config, encoder=encoder, decoder=decoder, what=str(folder))
    elif encoder is not None or decoder is not None:
        raise InputError("into is a complete model: leave out encoder and decoder")
    vae = into
    vae.to(dtype=getattr(torch, record["dtype"]))
    try:
        vae.load_state_dict(load_tensors(weights))
    except (SafetensorError, RuntimeError) as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise InputError(
            f"{folder / 'model.safetensors'} does not fit the model that config.json describes: {first}"
        ) from None
    vae._gpin_calibrations, vae._gpin_temperatures = _read_calibrations(folder, record)
    vae.move(device, dtype)
    return vae.eval()


def _read_calibrations(folder: Path, record: Mapping[str, Any]) -> tuple[Calibrations, Temperatures]:
    """The calibrations and temperatures of a saved model; none if it has none or their file was not copied along."""
    path, expected = folder / "calibration.safetensors", record.get("calibration_sha256")
    if expected is None or not path.is_file():
        return {}, {}
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != expected:
        raise InputError(
            f"{path} is damaged or does not belong to its config.json: the checksums differ; without it, the model "
            "can be loaded and calibrated again"
        )
    return unpack_calibrations(content)


def _read_model(folder: Path) -> tuple[dict[str, Any], bytes]:
    config_path, weights_path = folder / "config.json", folder / "model.safetensors"
    for path in (config_path, weights_path):
        if not path.is_file():
            raise InputError(f"{folder} is not a saved model: {path.name} is missing")
    record = read_record(config_path, FORMAT, VERSION, "a gpin model")
    weights = weights_path.read_bytes()
    if hashlib.sha256(weights).hexdigest() != record["weights_sha256"]:
        raise InputError(f"{weights_path} is damaged or does not belong to its config.json: the checksums differ")
    return record, weights
