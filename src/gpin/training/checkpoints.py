"""Checkpoints: one safetensors file each, written atomically; the previous one is kept in case of damage."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, uint8

from gpin._core.errors import InputError
from gpin._core.files import remove_unfinished, write_whole
from gpin._core.tensors import pack_tensors

__all__ = ["Checkpoint", "Checkpoints"]

FORMAT, VERSION = "gpin-checkpoint", "1"
NAME = re.compile(r"\d{8,}\.safetensors")
KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """Everything needed to resume training with bit-identical results: named tensors, and a record of the rest."""

    tensors: Mapping[str, Tensor]
    record: Mapping[str, Any]

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names start with a prefix such as "model", without that prefix."""
        start = name + "/"
        return {key.removeprefix(start): value for key, value in self.tensors.items() if key.startswith(start)}

    def pack(self) -> bytes:
        """The content of a safetensors file with the record and a checksum in its metadata."""
        record = json.dumps(self.record, allow_nan=False)
        metadata = {"format": FORMAT, "version": VERSION, "record": record, "sha256": _checksum(self.tensors, record)}
        return pack_tensors(self.tensors, metadata)

    @classmethod
    def unpack(cls, content: bytes) -> "Checkpoint":
        """Read the content of a file; raises ValueError if it is damaged."""
        try:
            tensors = load_tensors(content)
            size = int.from_bytes(content[:8], "little")
            metadata = json.loads(content[8 : 8 + size])["__metadata__"]
            if (metadata["format"], metadata["version"]) != (FORMAT, VERSION):
                raise ValueError("another format or version")
            if metadata["sha256"] != _checksum(tensors, metadata["record"]):
                raise ValueError("the checksum does not match")
            return cls(tensors, json.loads(metadata["record"]))
        except (SafetensorError, KeyError, TypeError) as error:
            raise ValueError(f"not a checkpoint: {error}") from None


class Checkpoints:
    """The checkpoints of a run, in a folder of their own, numbered by the number of steps made.

    The one of a finished training has the next number, so that the state after its last step is kept, too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._damaged: set[Path] = set()

    def write(self, number: int, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, and remove damaged and unfinished ones and all but the newest two."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(self.folder)
        path = self.folder / f"{number:08d}.safetensors"
        write_whole(path, checkpoint.pack())
        for damaged in self._damaged - {path}:
            damaged.unlink(missing_ok=True)
        self._damaged.clear()
        for path in self._paths()[KEPT:]:
            path.unlink(missing_ok=True)

    def latest(self, tell: Callable[[str], None]) -> Checkpoint | None:
        """The newest undamaged checkpoint, or None if there are no checkpoints; damaged ones are reported."""
        seen: set[Path] = set()
        self._damaged.clear()
        while fresh := [path for path in self._paths() if path not in seen]:
            path = fresh[0]
            seen.add(path)
            try:
                return Checkpoint.unpack(path.read_bytes())
            except FileNotFoundError:
                continue  # the process that trains has removed it after writing a newer one
            except ValueError as error:
                self._damaged.add(path)
                tell(f"{path} is damaged ({error}): falling back to the previous checkpoint")
        if self._damaged:
            raise InputError(f"all checkpoints in {self.folder} are damaged: remove that folder to start again")
        return None

    def unfinished(self) -> Checkpoint | None:
        """The newest undamaged checkpoint of a training that was not finished, from which training can go on.

        The one of a finished training has only its best weights, but the one before, its last state, is kept.
        """
        for path in self._paths():
            try:
                state = Checkpoint.unpack(path.read_bytes())
            except (OSError, ValueError):
                continue
            if not state.record["finished"]:
                return state
        return None

    def any(self) -> bool:
        """Whether there is any checkpoint, damaged or not."""
        return bool(self._paths())

    def _paths(self) -> list[Path]:
        """The paths of all checkpoints, newest first."""
        if not self.folder.is_dir():
            return []
        paths = [path for path in self.folder.iterdir() if NAME.fullmatch(path.name)]
        return sorted(paths, key=lambda path: int(path.stem), reverse=True)


def _checksum(tensors: Mapping[str, Tensor], record: str) -> str:
    """The sha256 of the record and of every tensor's name, dtype, shape and bytes."""
    total = hashlib.sha256(record.encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        if tensor.numel():
            total.update(tensor.detach().cpu().reshape(-1).view(uint8).numpy().data)
    return total.hexdigest()
