"""Training: one loop for every method, in one process or several, that can be interrupted and resumed."""

from gpin.training.history import Epoch, History
from gpin.training.improve import Improvement, improve
from gpin.training.loggers import LOGGERS, Logger
from gpin.training.loop import OnEpoch, fit
from gpin.training.settings import TrainingConfig

__all__ = ["LOGGERS", "Epoch", "History", "Improvement", "Logger", "OnEpoch", "TrainingConfig", "fit", "improve"]
