"""Quarter turns of images."""

from __future__ import annotations

import torch
from torch import Tensor


def turned(images: Tensor, turns: Tensor) -> Tensor:
    """Image i turned counter-clockwise by turns[i] * 90 degrees: (n, c, s, s), (n,) of 0..3 -> (n, c, s, s).

    >>> turned(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([1]))
    tensor([[[[2., 4.],
              [1., 3.]]]])
    """
    result = images.clone()
    for quarter in (1, 2, 3):
        chosen = turns == quarter
        result[chosen] = torch.rot90(images[chosen], quarter, dims=(2, 3))
    return result
