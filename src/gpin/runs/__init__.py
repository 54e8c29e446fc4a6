"""Runs: folders with everything that is needed to describe, resume and repeat a training."""

from gpin.runs.calibration import RunCoverage, coverage_run
from gpin.runs.decode import reconstruct_to_file, sample_to_file
from gpin.runs.encode import encode_to_file
from gpin.runs.evaluate import Evaluation, evaluate_run
from gpin.runs.export import export_run
from gpin.runs.folder import Run, open_run, open_runs
from gpin.runs.improve import ImprovedRun, improve_run
from gpin.runs.impute import Imputed, impute_to_file
from gpin.runs.paired import ScoredRuns, evaluate_runs
from gpin.runs.rank import Ranking, rank_run
from gpin.runs.settings import ModelSettings, RunSettings, read_settings, run_settings
from gpin.runs.share import Shared, share_run
from gpin.runs.train import train

__all__ = [
    "Evaluation",
    "ImprovedRun",
    "Imputed",
    "ModelSettings",
    "Ranking",
    "Run",
    "RunCoverage",
    "RunSettings",
    "ScoredRuns",
    "Shared",
    "coverage_run",
    "encode_to_file",
    "evaluate_run",
    "evaluate_runs",
    "export_run",
    "improve_run",
    "impute_to_file",
    "open_run",
    "open_runs",
    "rank_run",
    "read_settings",
    "reconstruct_to_file",
    "run_settings",
    "sample_to_file",
    "share_run",
    "train",
]
