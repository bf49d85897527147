"""Looking at the loss a little uphill: sharpness-aware steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SMALL = 1e-12


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all tensors taken as one vector: ().

    >>> global_norm([torch.tensor([3.0]), torch.tensor([[4.0]])])
    tensor(5.)
    """
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))


def matching_shift(norm: float, radius: float, alpha: float) -> float:
    """s = radius / (norm + 1e-12) - alpha: SAGM looks at the loss at theta + s g, g having this norm.

    Uphill by ``radius`` along the gradient's direction, then downhill by a gradient step of size ``alpha``. A zero
    gradient stays zero, whatever s.

    >>> round(matching_shift(norm=0.5, radius=0.05, alpha=0.02), 6)
    0.08
    """
    return radius / (norm + SMALL) - alpha
