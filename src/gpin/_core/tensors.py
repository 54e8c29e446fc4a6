"""Named tensors as the content of a safetensors file."""

from collections.abc import Mapping

from safetensors.torch import save
from torch import Tensor

__all__ = ["pack_tensors"]


def pack_tensors(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """The content of a safetensors file; tensors that share memory, such as tied weights, are written separately."""
    packed: dict[str, Tensor] = {}
    used: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        packed[name] = tensor.clone() if memory in used else tensor
        used.add(memory)
    return save(packed, metadata)
