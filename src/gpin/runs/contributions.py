"""Which columns of a table, or regions of a picture, make an instance unusual, in words."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpin.data import Scaling
from gpin.runs.folder import Run

__all__ = ["Parts", "reasons"]

REGIONS = 4
"""A picture is divided into at most this many regions along each side."""
LEAST = 1.0
"""A part is a reason if it costs at least this many nats more than usual."""
MOST = 3
"""The maximum number of reasons for an instance."""


@dataclass(frozen=True)
class Parts:
    """The parts of an instance to which its surprise is attributed: the columns of a table, or regions of a picture.

    Attributes:
        names: Their names.
        edges: For pictures, where the regions begin, from top to bottom and from left to right.
        scaling: For tables, the scaling, which knows the columns of categories and how values are written.
    """

    names: tuple[str, ...]
    edges: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    scaling: Scaling | None = None

    @classmethod
    def of(cls, run: Run) -> "Parts":
        """The parts of the instances of a run."""
        if len(run.model.shape) != 3:
            return cls(tuple(run.column_names), scaling=run.scaling)
        sizes = run.model.shape[1:]
        tops, lefts = (tuple(np.linspace(0, size, min(REGIONS, size) + 1).astype(int).tolist()) for size in sizes)
        names = (f"rows {a}–{b - 1}, columns {c}–{d - 1}" for a, b in pairwise(tops) for c, d in pairwise(lefts))
        return cls(tuple(names), (tops[:-1], lefts[:-1]))

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Values `(batch, *shape)`, summed over each part, `(batch, parts)`."""
        if self.edges is None:
            return values if self.scaling is None else self.scaling.by_column(values)
        tops, lefts = self.edges
        regions = np.add.reduceat(np.add.reduceat(values.sum(1), tops, axis=1), lefts, axis=2)
        return regions.reshape(len(values), -1)


def reasons(
    parts: Parts, contributions: np.ndarray, code: np.ndarray, shown: tuple[np.ndarray, np.ndarray] | None
) -> list[str]:
    """The largest contributions of each instance in words, at most three; empty if none is at least one nat.

    Arguments:
        parts: The parts of an instance.
        contributions: By how many nats each part exceeds its mean in the reference, `(batch, parts)`.
        code: The same for the code, `(batch,)`.
        shown: The values of a table and those that the model expects, each `(batch, parts)`, in the units of the data;
            None for pictures.

    Example:
        >>> table = Parts(("width", "height"))
        >>> given, expected = np.array([[9.5, 2.0]]), np.array([[3.0, 2.1]])
        >>> reasons(table, np.array([[12.25, -0.5]]), np.array([3.0]), (given, expected))
        ['width is 9.5, expected 3 (+12.2); the latent code (+3.0)']
    """
    every = np.concatenate([contributions, code[:, None]], axis=1)

    def text(row: int, part: int) -> str:
        amount = f"(+{every[row, part]:.1f})"
        if part == len(parts.names):
            return f"the latent code {amount}"
        if shown is None:
            return f"{parts.names[part]} {amount}"
        value, expected = (_written(parts.scaling, part, values[row, part]) for values in shown)
        return f"{parts.names[part]} is {value}, expected {expected} {amount}"

    order = np.argsort(-every, axis=1, kind="stable")[:, :MOST]
    return [
        "; ".join(text(row, part) for part in chosen if every[row, part] >= LEAST) for row, chosen in enumerate(order)
    ]


def _written(scaling: Scaling | None, part: int, value: float) -> str:
    """A value of a column as people read it."""
    label = None if scaling is None else scaling.label(part, value)
    return f"{value:.4g}".replace("-", "−") if label is None else label
