"""The exceptions that gpin raises; every message is one sentence."""

__all__ = [
    "BusyError",
    "FetchError",
    "InputError",
    "MissingPackageError",
    "StopTraining",
    "TrainingError",
    "VersionError",
]


class InputError(ValueError):
    """A value from the user that cannot be used; the message names it, what was expected, and what to do.

    An argument that the message names stands in backticks, as `latent_dim` or `scaling=none`: the command line writes
    it as a flag.
    """


class BusyError(InputError):
    """A folder in which another process is training; trying again later may succeed."""


class FetchError(InputError):
    """A download that failed; trying again later may succeed."""


class MissingPackageError(InputError, ImportError):
    """A package of an optional extra that is not installed; the message names the extra."""


class VersionError(InputError):
    """A file written by another version of gpin, which this version cannot read and must not overwrite."""


class TrainingError(RuntimeError):
    """Training could not go on; the message names the parameter and the data at fault."""


class StopTraining(Exception):  # noqa: N818  (it reports no error)
    """Raised by `on_epoch` to end training after that epoch, with the best weights so far."""
