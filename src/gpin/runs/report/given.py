"""Sentences about the conditions of conditional runs, at the end of notes; empty for other runs."""

from collections.abc import Sequence

from gpin.report.numbers import number
from gpin.runs.report.scored_run import TrainedRun

__all__ = ["example_note", "first_note", "rows_note", "sample_note"]


def _conditional(runs: Sequence[TrainedRun]) -> TrainedRun | None:
    return next((one for one in runs if one.vae.condition is not None), None)


def sample_note(runs: Sequence[TrainedRun]) -> str:
    """With which conditions samples are drawn."""
    one = _conditional(runs)
    if one is None or one.vae.condition is None:
        return ""
    labels = [column.name for column in one.vae.condition.columns if column.levels is not None]
    numbers = [column.name for column in one.vae.condition.columns if column.levels is None]
    said = [f"the levels of {' and '.join(labels)} in turn"] if labels else []
    said += [f"the mean of {' and '.join(numbers)}"] if numbers else []
    return f" Their conditions are {', and '.join(said)}."


def example_note(runs: Sequence[TrainedRun]) -> str:
    """With which condition codes are decoded."""
    one = _conditional(runs)
    if one is None or one.vae.condition is None:
        return ""
    condition = one.vae.condition
    values = condition.examples(1)
    said = ", ".join(
        f"{column.name} {values[column.name][0] if column.levels else number(column.mean, column.deviation)}"
        for column in condition.columns
    )
    return f" All are decoded for one condition: {said}."


def first_note(runs: Sequence[TrainedRun]) -> str:
    """With which condition codes between two instances are decoded."""
    return "" if _conditional(runs) is None else " All are decoded for the condition of the first."


def rows_note(runs: Sequence[TrainedRun]) -> str:
    """With which conditions rows are drawn that are compared with test rows."""
    return "" if _conditional(runs) is None else " They are drawn for the conditions of test rows."
