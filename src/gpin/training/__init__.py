"""Training: one loop for every method."""

from gpin.training.loop import Epoch, History, fit

__all__ = ["Epoch", "History", "fit"]
