"""Directions of optimizers' steps, without an optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def adam_first_direction(
    gradients: Sequence[Tensor], parameters: Sequence[Tensor], *, weight_decay: float = 0.0, epsilon: float = 1e-8
) -> list[Tensor]:
    """What a fresh Adam subtracts in its first step, over its learning rate: g / (|g| + eps), g with L2 weight decay.

    >>> adam_first_direction([torch.tensor([3.0, -0.1, 0.0])], [torch.zeros(3)])
    [tensor([ 1.0000, -1.0000,  0.0000])]
    """
    decayed = list(gradients)
    if weight_decay:
        decayed = list(torch._foreach_add(decayed, [p.detach() for p in parameters], alpha=weight_decay))
    direction = list(torch._foreach_abs(decayed))  # one allocation: memory is what this costs
    torch._foreach_add_(direction, epsilon)
    torch._foreach_reciprocal_(direction)
    torch._foreach_mul_(direction, decayed)
    return direction
