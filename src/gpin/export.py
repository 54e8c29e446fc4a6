"""Export to ONNX: the encoder, x → mean and standard deviation of z and the uncertainty, or the decoder, z → E[x|z]."""

import copy
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from gpin._core.errors import InputError
from gpin._core.extras import extra
from gpin._core.files import as_path, write_whole
from gpin._core.inputs import whole_number
from gpin.inference import METHODS
from gpin.vae import VAE

__all__ = ["export"]

OPSETS = (18, 23)
"""The first opset that torch writes correctly, and the last that is tested with onnxruntime."""

FAR = 100
"""The largest |offset/scale| for which float32 keeps enough digits of x − offset."""

PARTS = ("encoder", "decoder")


def export(
    vae: VAE,
    path: str | os.PathLike[str],
    *,
    part: Literal["encoder", "decoder"] = "encoder",
    offset: ArrayLike = 0.0,
    scale: ArrayLike = 1.0,
    opset: int = OPSETS[0],
    steps: int | None = None,
) -> None:
    """Write the encoder or decoder of a trained VAE, with its weights, as one ONNX file in float32, for any batch size.

    The input of the encoder is `x` `(batch, *shape)`. The outputs are `mean` and `std` `(batch, d)`, the moments of
    q(z|x), and, if the inference model has an uncertainty, also `uncertainty`, `uncertainty_f` and `uncertainty_h`,
    each `(batch,)`. A method whose inference is not a fixed graph cannot be exported; its `export_refusal` gives the
    reason.

    The input of the decoder is `z` `(batch, d)`, and its output is `mean` `(batch, *shape)`, E[x|z]. The decoder of
    every method can be exported. The metadata of the file contain gpin's version, the method and the shape of the data.

    If an offset is more than a hundred times its scale, as in a column of times, `x` is float64 and is converted to
    float32 after scaling: in float32, the digits in which instances differ would be lost. The output of the decoder is
    float64 in the same case.

    Arguments:
        vae: The trained model; it is not changed.
        path: The file to write; missing folders are created.
        part: "encoder" or "decoder".
        offset: The encoder begins with (x − offset)/scale, and the decoder ends with offset + scale · E[x|z], so that
            x is in the original units of the data: one number, or one per column (for images, one per pixel).
        scale: One number or one per column, like `offset`; must not be zero.
        opset: The version of the ONNX operator set, 18 to 23.
        steps: 0 exports the encoder of a method that improves its posterior by natural-gradient steps, without the
            steps, like `vae.encode(x, steps=0)`. None exports the method's own posterior.

    Example:
        export(vae, "encoder.onnx", offset=scaler.mean_, scale=scaler.scale_)
        onnxruntime.InferenceSession("encoder.onnx").run(["mean", "std"], {"x": x})
        export(vae, "decoder.onnx", part="decoder", offset=scaler.mean_, scale=scaler.scale_)
        onnxruntime.InferenceSession("decoder.onnx").run(["mean"], {"z": z})
    """
    if not isinstance(vae, VAE):
        raise InputError(f"the model to export must be a gpin.VAE, got {type(vae).__name__}")
    if part not in PARTS:
        raise InputError(f"`part` must be encoder or decoder, got {part!r}")
    if part == "decoder" and steps is not None:
        raise InputError("`steps` are taken by encoders: leave them out when the decoder is exported")
    if steps is not None and whole_number(steps, "steps", least=0) > 0:
        raise InputError(
            f"steps={steps} cannot be exported: natural-gradient steps follow the gradient of the decoder, which ONNX "
            "does not have; export the encoder alone with steps=0, or take the steps in Python"
        )
    if vae.condition is not None:
        raise InputError(
            f"this model is conditional on {vae.condition} and cannot be exported: its graph would need the condition "
            "as a second input; use it in Python"
        )
    if part == "encoder":
        _check_inference(vae, initial=steps == 0)
    opset = whole_number(opset, "opset", least=OPSETS[0])
    if opset > OPSETS[1]:
        raise InputError(f"opset must be at most {OPSETS[1]}, got {opset}")
    path = as_path(path, "the file")
    if path.is_dir():
        raise InputError(f"cannot export to {path}: it is a folder and not a file")
    units = _units(offset, "offset", vae.shape), _units(scale, "scale", vae.shape)
    graph = _InferencePath(vae, *units, initial=steps == 0) if part == "encoder" else _GenerativePath(vae, *units)
    if not graph.scale.all():
        raise InputError("scale must not be zero anywhere, because data are divided by it")

    shape = ",".join(map(str, vae.shape))
    metadata = {"gpin_version": version("gpin"), "method": vae.inference.name, "shape": shape, "part": part}
    content = _onnx(graph, opset, metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


def _check_inference(vae: VAE, initial: bool) -> None:
    """Raise InputError if inference is not a fixed graph; `initial` leaves natural-gradient steps out."""
    refusal = vae.inference.export_refusal
    if refusal is not None and not (initial and vae.inference.takes_steps):
        possible = ", ".join(name for name, other in METHODS.items() if other.export_refusal is None)
        raise InputError(
            f"method {vae.inference.name!r} cannot be exported: {refusal}; use it in Python, or export one of "
            f"{possible}"
        )


def _units(values: ArrayLike, name: str, shape: tuple[int, ...]) -> Tensor:
    """An offset or scale as a tensor that broadcasts against x: one number, or one for each of its entries."""
    try:
        numbers = np.asarray(values, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a number or numbers, got {values!r}") from None
    size = int(np.prod(shape))
    if len(numbers) not in (1, size):
        raise InputError(f"{name} must be one number, or {size} for data of shape {shape}, got {len(numbers)}")
    tensor = torch.tensor(numbers, dtype=torch.float64)
    finite = tensor.float().isfinite()
    if not finite.all():
        raise InputError(f"{name} must be finite in float32, got {tensor[~finite][0]:g}")
    return tensor.reshape(shape) if len(tensor) == size else tensor.squeeze()


class _Path(nn.Module):
    """A graph with the weights of a VAE; `names` are those of its outputs, in order.

    Arguments:
        vae: The trained model; a copy is exported.
        offset: The offset of the data.
        scale: The scale of the data.
    """

    input: str
    names: list[str]
    offset: Tensor
    scale: Tensor

    def __init__(self, vae: VAE, offset: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.vae = copy.deepcopy(vae).to("cpu", torch.float32)
        self.dtype = torch.float64 if ((offset / scale).abs() > FAR).any() else torch.float32
        self.register_buffer("offset", offset.to(self.dtype))
        self.register_buffer("scale", scale.to(self.dtype))
        self.eval().requires_grad_(False)
        _fix_counts(self.vae)

    def example(self) -> Tensor:
        """An input of batch size 2, because torch treats a dimension of size 1 as a constant."""
        raise NotImplementedError


class _GenerativePath(_Path):
    """Maps z to E[x|z] in the units of the data."""

    input = "z"
    names = ["mean"]

    def forward(self, z: Tensor) -> tuple[Tensor, ...]:
        mean = self.vae.likelihood.mean(self.vae.decoder(z))
        return (mean.to(self.dtype) * self.scale + self.offset,)

    def example(self) -> Tensor:
        return torch.zeros(2, self.vae.latent_dim)


class _InferencePath(_Path):
    """Maps x to the moments of q(z|x) and the encoder's uncertainty."""

    input = "x"

    def __init__(self, vae: VAE, offset: Tensor, scale: Tensor, initial: bool) -> None:
        super().__init__(vae, offset, scale)
        self.initial = initial
        parts = ["uncertainty", "uncertainty_f", "uncertainty_h"] if self.vae.inference.has_uncertainty else []
        self.names = ["mean", "std", *parts]

    def example(self) -> Tensor:
        return torch.zeros(2, *self.vae.shape, dtype=self.dtype)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = ((x - self.offset) / self.scale).to(torch.float32)
        inference = self.vae.inference
        if self.initial and inference.takes_steps:
            q, uncertainty = inference.initial(x, self.vae), None
        else:
            q, uncertainty = inference.posterior_and_uncertainty(x, self.vae)
        if uncertainty is None:
            return q.mean, q.stddev
        return q.mean, q.stddev, uncertainty.total, uncertainty.mean_part, uncertainty.std_part


def _fix_counts(network: nn.Module) -> None:
    """Replace buffers that hold a single integer or boolean, such as the number of active components of `rme`, by plain
    Python values: they control the flow of the computation, which must be fixed in a graph."""
    for module in network.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.dim() == 0 and not buffer.is_floating_point():
                delattr(module, name)
                setattr(module, name, buffer.item())


def _onnx(graph: _Path, opset: int, metadata: dict[str, str]) -> bytes:
    """The graph as a checked ONNX model."""
    with _quiet():
        with extra("export"):
            import onnx
            import onnxscript  # noqa: F401  (torch.onnx needs it)
        try:
            program = torch.onnx.export(
                _traced(graph),
                input_names=[graph.input],
                output_names=graph.names,
                opset_version=opset,
                dynamic_shapes=_any_batch(graph),
                verbose=False,
            )
        except RuntimeError as error:
            raise InputError(f"torch cannot write this model as ONNX: {str(error).strip().splitlines()[0]}") from None
        assert program is not None
        model = program.model_proto
    # torch records the origin of each node, which is useless elsewhere and reveals the paths of this machine.
    for part in (model.graph, *model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info):
        part.ClearField("metadata_props")
    model.producer_name, model.producer_version = "gpin", metadata["gpin_version"]
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


def _traced(graph: _Path) -> torch.export.ExportedProgram:
    """The operations of the graph, for any batch size."""
    return torch.export.export(graph, (graph.example(),), dynamic_shapes=_any_batch(graph))


def _any_batch(graph: _Path) -> dict[str, Any]:
    return {graph.input: {0: torch.export.Dim("batch")}}


@contextmanager
def _quiet() -> Iterator[None]:
    """Within the context, warnings and log messages of torch and onnx are suppressed."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class _Module(ModuleType):
    """A module that can be called like its function `export`.

    `gpin.export` is the function or, once the module has been imported by name, the module.
    """

    __call__ = staticmethod(export)


sys.modules[__name__].__class__ = _Module
