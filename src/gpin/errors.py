"""What a user can do wrong, said in one sentence."""

__all__ = ["InputError", "TrainingError"]


class InputError(ValueError):
    """A value from the user that cannot be used; the message names it, what was expected, and what to do."""


class TrainingError(RuntimeError):
    """Training could not go on; the message names the parameter and the data at fault."""
