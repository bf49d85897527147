"""Masks over the features on which a prediction leans most."""

from __future__ import annotations

import torch
from torch import Tensor


def dominant_kept(gradients: Tensor, share: float) -> Tensor:
    """False for the features whose gradient is in the largest ``share`` of its row: (n, h) -> (n, h) bool.

    Kept are the entries below the (1 - share) quantile of the signed values (linear interpolation), ties muted.

    >>> dominant_kept(torch.tensor([[4.0, 1.0, 3.0, 2.0]]), 0.4).tolist()
    [[False, True, False, True]]
    """
    return gradients < torch.quantile(gradients, 1 - share, dim=1, keepdim=True)


def challenged(before: Tensor, after: Tensor, y: Tensor, share: float) -> Tensor:
    """True for the ``share`` of samples whose label lost most probability: logits (n, C) twice, y (n,) -> (n,) bool.

    >>> before, after = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    >>> challenged(before, after, torch.tensor([0, 0]), 0.5).tolist()
    [True, False]
    """
    change = (before.softmax(1) - after.softmax(1)).gather(1, y[:, None]).squeeze(1)
    return change >= torch.quantile(change, 1 - share)
