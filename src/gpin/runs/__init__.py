"""Runs: a folder each, with everything that describes, resumes and repeats one training."""

from gpin.runs.folder import Run, open_run
from gpin.runs.settings import ModelSettings, RunSettings
from gpin.runs.train import train

__all__ = ["ModelSettings", "Run", "RunSettings", "open_run", "train"]
