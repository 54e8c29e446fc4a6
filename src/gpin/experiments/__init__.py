"""The paper's experiments: its numbers, and the statistics by which runs are compared."""

from gpin.experiments.analysis.paper import PAPER
from gpin.experiments.analysis.statistics import Summary, mark

__all__ = ["PAPER", "Summary", "mark"]
