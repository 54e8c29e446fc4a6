"""Data as batches."""

from gpin.data.batches import Batches

__all__ = ["Batches"]
