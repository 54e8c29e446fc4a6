"""What a user can do wrong, said in one sentence."""

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
    """A folder that another process is training in: the same may succeed later."""


class FetchError(InputError):
    """A download that failed: the same may succeed later."""


class MissingPackageError(InputError, ImportError):
    """A package of an optional extra that is not installed; the message names the extra."""


class VersionError(InputError):
    """A file that another version of gpin wrote, and that this one must leave alone."""


class TrainingError(RuntimeError):
    """Training could not go on; the message names the parameter and the data at fault."""


class StopTraining(Exception):  # noqa: N818  (it reports no error)
    """Raised by `on_epoch` to end training after that epoch, with the best weights so far."""
