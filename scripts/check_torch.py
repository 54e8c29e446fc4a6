"""Warn if the installed torch is not the one that gpin is tested with, see constraints.txt. Never fails."""

from importlib.metadata import distributions
from pathlib import Path

import torch


def differences(constraints: str) -> list[str]:
    """The differences from the tested installation, one sentence each."""
    pinned = next(line.removeprefix("torch==") for line in constraints.splitlines() if line.startswith("torch=="))
    installed = {(package.metadata["Name"] or "").lower() for package in distributions()}
    sentences = []
    if torch.__version__.split("+")[0] != pinned:
        sentences.append(f"torch is {torch.__version__}, but gpin is tested with {pinned}")
    if others := sorted(installed & {"torchvision", "torchaudio"}):
        sentences.append(f"gpin is tested without {' and '.join(others)}")
    if torch.version.cuda is not None and not torch.cuda.is_available():
        sentences.append(f"torch is built for CUDA {torch.version.cuda}, but there is no GPU: the CPU build is smaller")
    return sentences


if __name__ == "__main__":
    for sentence in differences((Path(__file__).parents[1] / "constraints.txt").read_text()):
        print(f"warning: {sentence}")
