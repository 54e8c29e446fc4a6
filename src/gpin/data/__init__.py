"""Data: benchmark sets in their original formats, and anything as batches."""

from gpin.data.batches import Batches, hold_out
from gpin.data.benchmarks import BENCHMARKS, Images, load_benchmark

__all__ = ["BENCHMARKS", "Batches", "Images", "hold_out", "load_benchmark"]
