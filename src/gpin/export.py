"""Export of an encoder to ONNX: x → mean and standard deviation of z, and the encoder's uncertainty."""

import copy
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from types import ModuleType

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

BATCH = {"x": {0: torch.export.Dim("batch")}}


def export(
    vae: VAE,
    path: str | os.PathLike[str],
    *,
    offset: ArrayLike = 0.0,
    scale: ArrayLike = 1.0,
    opset: int = OPSETS[0],
    steps: int | None = None,
) -> None:
    """Write the encoder of a trained VAE, including its weights, as one ONNX file in float32, for any batch size.

    The input is `x` `(batch, *shape)`. The outputs are `mean` and `std` `(batch, d)`, the moments of q(z|x), and, if
    the inference model has an uncertainty, also `uncertainty`, `uncertainty_f` and `uncertainty_h`, each `(batch,)`.
    The metadata of the file contain gpin's version, the method and the shape of the data. A method whose inference is
    not a fixed graph cannot be exported; its `export_refusal` gives the reason.

    If an offset is more than a hundred times its scale, as in a column of times, `x` is float64 and is converted to
    float32 after scaling: in float32, the digits in which instances differ would be lost.

    Arguments:
        vae: The trained model; it is not changed.
        path: The file to write; missing folders are created.
        offset: The graph begins with (x − offset)/scale, so that it accepts data in their original units: one number,
            or one per column (for images, one per pixel).
        scale: One number or one per column, like `offset`; must not be zero.
        opset: The version of the ONNX operator set, 18 to 23.
        steps: 0 exports the encoder of a method that improves its posterior by natural-gradient steps, without the
            steps, like `vae.encode(x, steps=0)`. None exports the method's own posterior.

    Example:
        export(vae, "encoder.onnx", offset=scaler.mean_, scale=scaler.scale_)
        onnxruntime.InferenceSession("encoder.onnx").run(["mean", "std"], {"x": x})
    """
    if not isinstance(vae, VAE):
        raise InputError(f"the model to export must be a gpin.VAE, got {type(vae).__name__}")
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
    method, refusal = vae.inference.name, vae.inference.export_refusal
    if steps == 0 and vae.inference.takes_steps:
        refusal = None
    if refusal is not None:
        possible = ", ".join(name for name, other in METHODS.items() if other.export_refusal is None)
        raise InputError(
            f"method {method!r} cannot be exported: {refusal}; use it in Python, or export one of {possible}"
        )
    opset = whole_number(opset, "opset", least=OPSETS[0])
    if opset > OPSETS[1]:
        raise InputError(f"opset must be at most {OPSETS[1]}, got {opset}")
    path = as_path(path, "the file")
    if path.is_dir():
        raise InputError(f"cannot export to {path}: it is a folder and not a file")
    units = _units(offset, "offset", vae.shape), _units(scale, "scale", vae.shape)
    graph = _InferencePath(vae, *units, initial=steps == 0)
    if not graph.scale.all():
        raise InputError("scale must not be zero anywhere, because x is divided by it")

    metadata = {"gpin_version": version("gpin"), "method": method, "shape": ",".join(map(str, vae.shape))}
    content = _onnx(graph, opset, metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


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


class _InferencePath(nn.Module):
    """Maps x to the outputs of the exported graph, a tuple of tensors in the order of `names`."""

    offset: Tensor
    scale: Tensor

    def __init__(self, vae: VAE, offset: Tensor, scale: Tensor, initial: bool) -> None:
        super().__init__()
        self.initial = initial
        self.vae = copy.deepcopy(vae).to("cpu", torch.float32)
        self.dtype = torch.float64 if ((offset / scale).abs() > FAR).any() else torch.float32
        self.register_buffer("offset", offset.to(self.dtype))
        self.register_buffer("scale", scale.to(self.dtype))
        self.eval().requires_grad_(False)
        _fix_counts(self.vae)
        parts = ["uncertainty", "uncertainty_f", "uncertainty_h"] if self.vae.inference.has_uncertainty else []
        self.names = ["mean", "std", *parts]

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


def _onnx(graph: _InferencePath, opset: int, metadata: dict[str, str]) -> bytes:
    """The graph as a checked ONNX model."""
    with _quiet():
        with extra("export"):
            import onnx
            import onnxscript  # noqa: F401  (torch.onnx needs it)
        try:
            program = torch.onnx.export(
                _traced(graph),
                input_names=["x"],
                output_names=graph.names,
                opset_version=opset,
                dynamic_shapes=BATCH,
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


def _traced(graph: _InferencePath) -> torch.export.ExportedProgram:
    """The operations of the graph, for any batch size."""
    # The batch size is 2 because torch treats a dimension of size 1 as a constant.
    example = torch.zeros(2, *graph.vae.shape, dtype=graph.dtype)
    return torch.export.export(graph, (example,), dynamic_shapes=BATCH)


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
