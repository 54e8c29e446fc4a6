"""Warn where the installed torch is not the one that gpin is tested with, see constraints.txt. Never fails."""

from importlib.metadata import distributions
from pathlib import Path

import torch


def differences(constraints: str) -> list[str]:
    """What differs from the tested installation, one sentence each."""
    pinned = next(line.removeprefix("torch==") for line in constraints.splitlines() if line.startswith("torch=="))
    installed = {(found.metadata["Name"] or "").lower() for found in distributions()}
    found = []
    if torch.__version__.split("+")[0] != pinned:
        found.append(f"torch is {torch.__version__}, and gpin is tested with {pinned}")
    if others := sorted(installed & {"torchvision", "torchaudio"}):
        found.append(f"gpin is tested without {' and '.join(others)}")
    if torch.version.cuda is not None and not torch.cuda.is_available():
        found.append(f"torch is built for CUDA {torch.version.cuda}, and there is no GPU: the CPU build is smaller")
    return found


if __name__ == "__main__":
    for sentence in differences((Path(__file__).parents[1] / "constraints.txt").read_text()):
        print(f"warning: {sentence}")
