"""Freed memory stays with the process, unless the environment says otherwise."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from gpin._core.memory import available_memory

COUNT = """
import resource, sys
if sys.argv[1] == "vae":
    import gpin
    gpin.build((4,), seed=0)
import torch
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = 0
for turn in range(21):
    tensors = [torch.zeros(5_000_000) for _ in range(5)]  # 20 MB each
    del tensors
    before = before or faults()
print(faults() - before)
"""


def faults(what, **environment):
    """Page faults of asking twenty times for the memory that was just freed."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", COUNT, what]
    return int(subprocess.run(command, env=own | environment, capture_output=True, check=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_a_process_with_a_vae_keeps_its_memory_unless_told_otherwise():
    each = 100_000_000 // 4096
    assert faults("torch") > each  # else there is nothing to show
    assert faults("vae") <= each  # the heap may still grow once, by what five tensors need
    assert faults("vae", MALLOC_TRIM_THRESHOLD_="1000000") > 10 * each


@pytest.mark.skipif(platform.system() != "Linux", reason="other systems do not say")
def test_the_available_memory_is_less_than_all_of_it():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < available_memory(torch.device("cpu")) <= total
    assert available_memory(torch.device("meta")) is None
