"""Partners of the same class in a batch, and how far samples are from them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def class_partners(y: Tensor, rng: np.random.Generator) -> Tensor:
    """For each sample a random sample of its class: labels (n,) -> positions (n,), a permutation within each class.

    >>> partners = class_partners(torch.tensor([0, 1, 0, 1, 2]), np.random.default_rng(0))
    >>> partners[4].item(), sorted(partners[[0, 2]].tolist())
    (4, [0, 2])
    """
    labels = y.cpu().numpy()
    partners = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        partners[members] = rng.permutation(members)
    return torch.from_numpy(partners).to(y.device)


def partner_gaps(values: Tensor, offered: Tensor, first: Tensor, second: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Mean squared distances to a partner and to a mix of two: values, offered (n, m); first, second (n,) -> (), ().

    The partner of row i is offered[first_i]; the mix is share * offered[first_i] + (1 - share) * offered[second_i].

    >>> rows = torch.tensor([[0.0], [2.0]])
    >>> swap, same = torch.tensor([1, 0]), torch.tensor([0, 1])
    >>> partner_gaps(rows, rows, swap, same, 0.5)
    (tensor(4.), tensor(1.))
    """
    partner = offered[first]
    mixed = share * partner + (1 - share) * offered[second]
    return (values - partner).square().mean(), (values - mixed).square().mean()
