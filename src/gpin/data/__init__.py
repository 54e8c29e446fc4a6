"""Data as batches."""

from gpin.data.batches import Batches, hold_out

__all__ = ["Batches", "hold_out"]
