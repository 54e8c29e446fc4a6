"""How the process allocates memory."""

import ctypes
import os
import sys
from functools import cache

__all__ = ["keep_freed_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
KEPT, LARGEST = 2**30, 2**25  # bytes; the latter is the most that every glibc takes


@cache
def keep_freed_memory() -> None:
    """Tell glibc to keep up to 1 GiB of freed memory for the next tensor, in pieces of up to 32 MiB.

    By default it hands the memory of every tensor of more than a few hundred kilobytes back to the system and asks for
    it again, page by page, at the next: a quarter of the time of a training step on the CPU. Where the environment
    says how to allocate (MALLOC_…, GLIBC_TUNABLES), that stands.
    """
    told = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if sys.platform != "linux" or told:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries do not have it
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, KEPT)
        mallopt(MMAP_THRESHOLD, LARGEST)
