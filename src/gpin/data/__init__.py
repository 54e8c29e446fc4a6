"""Data: benchmark sets in their original formats, the paper's splits, and anything as batches."""

from gpin.data.batches import Batches, hold_out
from gpin.data.benchmarks import BENCHMARKS, Images, load_benchmark
from gpin.data.splits import Parts, split

__all__ = ["BENCHMARKS", "Batches", "Images", "Parts", "hold_out", "load_benchmark", "split"]
