"""The paper's experiments: its numbers, and the statistics by which runs are compared."""

from gpin.experiments.paper import PAPER
from gpin.experiments.statistics import Summary, mark

__all__ = ["PAPER", "Summary", "mark"]
