"""The multilayer perceptron of the adversarial methods."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class Perceptron(nn.ModuleList):
    """Linear layers of the given widths, a ReLU between them.

    drop: applied to the values before each ReLU, so that an algorithm can use its own random numbers.

    >>> Perceptron([4, 8, 8, 2])(torch.zeros(5, 4)).shape
    torch.Size([5, 2])
    """

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, values: Tensor, drop: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        *hidden, last = self
        for layer in hidden:
            values = layer(values)
            values = torch.relu(values if drop is None else drop(values))
        return last(values)
