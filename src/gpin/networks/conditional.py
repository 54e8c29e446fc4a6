"""The trunk of a conditional model."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpin.conditions import parted
from gpin.networks.base import Trunk
from gpin.networks.dense import SLOPE

__all__ = ["ConditionalTrunk"]


class ConditionalTrunk(Trunk):
    """Any trunk, followed by a fully connected layer that sees its features and the condition.

    It maps joined rows `(batch, D + C)`, see `gpin.conditions`, to as many features as the trunk has.

    Arguments:
        trunk: A network x `(batch, *shape)` → features.
        shape: The shape of one instance.
        width: C, the number of entries of a condition.
    """

    def __init__(self, trunk: Trunk, shape: Sequence[int], width: int) -> None:
        super().__init__()
        self.trunk, self.shape, self.out_features = trunk, tuple(shape), trunk.out_features
        self.mix = nn.Linear(trunk.out_features + width, trunk.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """The features of x and its condition."""
        values, c = parted(x, self.shape)
        return F.leaky_relu(self.mix(torch.cat([self.trunk(values), c], dim=1)), SLOPE)
