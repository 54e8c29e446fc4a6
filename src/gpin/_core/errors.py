"""The exceptions that gpin raises, each with a one-sentence message for the user."""

__all__ = [
    "BusyError",
    "ColumnError",
    "FetchError",
    "InputError",
    "MissingPackageError",
    "OtherDataError",
    "StopTraining",
    "TrainingError",
    "VersionError",
]


class InputError(ValueError):
    """The user gave an unusable value; the message names the value, what was expected, and what to do.

    Arguments that the message mentions are in backticks, such as `latent_dim` or `scaling=none`; the command line
    prints them as flags.
    """


class BusyError(InputError):
    """Another process is training in the folder; the same call may succeed later."""


class ColumnError(InputError):
    """A column of a table cannot be modelled.

    Arguments:
        problem: What is wrong, without what to do.
        advice: What to do if the columns to model can still be chosen, which is not so with a trained model.
    """

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}: {advice}")
        self.problem, self.advice = problem, advice


class FetchError(InputError):
    """A download failed; the same call may succeed later."""


class MissingPackageError(InputError, ImportError):
    """A package of an optional extra is not installed; the message names the extra."""


class OtherDataError(InputError):
    """The data is not that on which a run was trained."""


class VersionError(InputError):
    """A file was written by another version of gpin; this version cannot read it and must not overwrite it."""


class TrainingError(RuntimeError):
    """Training could not continue; the message names the cause, such as the parameter and the data at fault."""


class StopTraining(Exception):  # noqa: N818  (not an error)
    """Raise this in `on_epoch` to end training after that epoch, with the best weights so far."""
