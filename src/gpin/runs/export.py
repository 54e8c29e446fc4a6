"""A run's encoder or decoder as an ONNX model."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpin._core.errors import InputError
from gpin._core.files import as_path
from gpin._core.messages import Tell, to_stderr
from gpin.export import export
from gpin.runs.folder import Run, as_run
from gpin.runs.outputs import check_output

__all__ = ["Exported", "export_run"]


@dataclass(frozen=True)
class Exported:
    """A written ONNX model.

    Attributes:
        path: The file.
        inputs: The shape of each input by name; a dimension of variable size is given by its name.
        outputs: The shape of each output in the same way.
    """

    path: Path
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]


def export_run(
    run: Run | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    part: Literal["encoder", "decoder"] = "encoder",
    steps: int | None = None,
    tell: Tell = to_stderr,
) -> Exported:
    """Write a run's encoder or decoder as an ONNX model with data in their original units, as `gpin export` does.

    Arguments:
        run: The run, or its folder.
        out: The file to write, .onnx.
        part: "encoder" or "decoder".
        steps: 0 exports the encoder of a method that takes natural-gradient steps without them, see `gpin.export`.
        tell: Called with each message for the user.
    """
    run, out = as_run(run), as_path(out, "the file to write")
    check_output(out, "a model", tell=tell)
    if run.scaling.columns:
        raise InputError("a model of a table with columns of different kinds cannot be exported to ONNX")
    offset, scale = run.scaling.units(run.model.shape)
    export(run.load(tell), out, offset=offset, scale=scale, part=part, steps=steps)
    import onnx

    graph = onnx.load(str(out), load_external_data=False).graph
    inputs, outputs = ({value.name: _dimensions(value) for value in values} for values in (graph.input, graph.output))
    return Exported(out, inputs, outputs)


def _dimensions(value: Any) -> list[int | str]:
    return [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
