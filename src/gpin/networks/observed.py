"""A trunk for data with missing values or counts."""

import torch
from torch import Tensor

from gpin.networks.base import Trunk

__all__ = ["ObservedTrunk"]


class ObservedTrunk(Trunk):
    """A trunk in front of which NaN is replaced by zero, after x is centred, and counts by their logarithms.

    Arguments:
        trunk: The network to which the prepared x is passed; its own centre remains zero.
        shape: The shape of one instance.
        mask: Whether the trunk also takes ones for observed and zeros for missing values, as further columns or
            channels.
        counts: Which values of an instance are counts, of which log(1 + x) is taken; None for none.
    """

    center: Tensor
    counts: Tensor

    def __init__(self, trunk: Trunk, shape: tuple[int, ...], mask: bool, counts: Tensor | None = None) -> None:
        super().__init__()
        self.trunk, self.mask, self.out_features = trunk, mask, trunk.out_features
        self.register_buffer("center", torch.zeros(shape))
        known = torch.zeros(shape, dtype=torch.bool) if counts is None else counts
        self.register_buffer("counts", known, persistent=False)

    @staticmethod
    def input_shape(shape: tuple[int, ...], mask: bool) -> tuple[int, ...]:
        """The shape of what the inner trunk takes for one instance of this shape."""
        return (2 * shape[0], *shape[1:]) if mask else shape

    def _logs(self, x: Tensor) -> Tensor:
        """x with the logarithms of its counts."""
        return torch.where(self.counts, x.clamp(min=0.0).log1p(), x)

    @torch.no_grad()
    def center_input(self, mean: Tensor) -> None:
        """Set the centre to that of the training data with this mean, which has the shape of one instance."""
        self.center.copy_(self._logs(mean))

    def forward(self, x: Tensor) -> Tensor:
        """The features of x."""
        observed = ~x.isnan()
        values = (self._logs(x) - self.center).where(observed, 0.0)
        return self.trunk(torch.cat([values, observed.to(values.dtype)], 1) if self.mask else values)
