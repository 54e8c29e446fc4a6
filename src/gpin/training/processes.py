"""Training in one process, or in several that `torchrun` has started."""

import os
from contextlib import AbstractContextManager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gpin._core.errors import TrainingError
from gpin._core.extras import extra
from gpin._core.shards import Share, shared

__all__ = ["Processes"]

T = TypeVar("T")


def _meet(backend: str) -> None:
    """Let the processes of one attempt find each other, and not those of the attempt before.

    If `torchrun` uses a fixed port, its store outlives a restart and still contains the addresses of the processes that
    were killed, so each attempt uses a prefix of its own in it. Otherwise accelerate connects the processes.
    """
    environment = os.environ
    if dist.is_initialized() or environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    store = dist.TCPStore(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), world, is_master=False)  # type: ignore[attr-defined]
    number = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    attempt = dist.PrefixStore(f"gpin-{number}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=world)


class Processes:
    """The processes that train one model together; only this one unless `torchrun` has started several.

    Attributes:
        share: The part of every batch that this process computes.
        device: The device on which this process computes.
    """

    def __init__(self, device: str | torch.device | None = None) -> None:
        self.share = Share()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            with extra("distributed"):
                from accelerate import PartialState

            on_cpu = not torch.cuda.is_available() or (device is not None and torch.device(device).type == "cpu")
            _meet("gloo" if on_cpu else "nccl")
            state = PartialState(cpu=on_cpu)
            self.share = Share(state.process_index, state.num_processes)
            self.device = state.device
        else:
            self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))

    @property
    def alone(self) -> bool:
        """Whether there is only one process."""
        return self.share.world == 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints messages."""
        return self.share.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.alone:
            return tensor
        from accelerate.utils import reduce

        try:
            return reduce(tensor.clone(), "sum")
        except RuntimeError as error:
            raise TrainingError(
                "another training process has died, so this one cannot continue; start all of them again to resume the "
                "run"
            ) from error

    def any(self, truth: bool) -> bool:
        """Whether `truth` is true in any process."""
        return truth if self.alone else bool(self.sum(torch.tensor(float(truth), device=self.device)) > 0)

    def sum_gradients(self, gradients: list[Tensor]) -> None:
        """Replace gradients by their sums over the processes, in a single reduction."""
        flat = self.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, total in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in the order of their ranks."""
        if self.alone:
            return [value]
        from accelerate.utils import gather_object

        return gather_object([value])

    def synchronise(self, tensors: list[Tensor]) -> None:
        """Copy the first process's tensors to all others, because different machines may round differently."""
        if not self.alone:
            from accelerate.utils import broadcast

            for tensor in tensors:
                tensor.copy_(broadcast(tensor.detach().clone()))

    def part(self, size: int) -> AbstractContextManager[None]:
        """A context in which the shares of a batch of this size add up to what one process would compute."""
        return shared(self.share, size, self.sum)
