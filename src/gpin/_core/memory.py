"""The memory of the process: its allocator, and how much is left."""

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

import torch

__all__ = ["available_memory", "keep_freed_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
KEPT, LARGEST = 2**30, 2**25  # bytes; 2**25 is the largest MMAP_THRESHOLD that every glibc accepts


@cache
def keep_freed_memory() -> None:
    """Make glibc keep up to 1 GiB of freed memory, in blocks of up to 32 MiB, for later tensors.

    By default glibc returns the memory of every tensor of more than a few hundred kilobytes to the system and requests
    it again, page by page, for the next one, which takes a quarter of the time of a training step on the CPU. Settings
    in the environment (MALLOC_…, GLIBC_TUNABLES) take precedence.
    """
    configured = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if sys.platform != "linux" or configured:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # None with other C libraries
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, KEPT)
        mallopt(MMAP_THRESHOLD, LARGEST)


def available_memory(device: torch.device) -> int | None:
    """The number of bytes that new tensors on the device can take; None if the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines)}
    return 1024 * int(sizes["MemAvailable"]) if "MemAvailable" in sizes else None
