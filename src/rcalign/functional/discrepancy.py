"""How differently one classifier fares on two domains, and which domains are compared."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.nn import functional as F


def pair_index(i: int, j: int, domains: int) -> int:
    """The place of an unordered pair of domains among 0, ..., K (K - 1) / 2 - 1.

    >>> [pair_index(i, j, 3) for i, j in ((0, 1), (0, 2), (2, 1))]
    [0, 1, 2]
    """
    low, high = min(i, j), max(i, j)
    return low * (2 * domains - low - 1) // 2 + high - low - 1


def loss_gap(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """|CE of the first - CE of the second|, each given as logits (n, C) and labels (n,).

    >>> import torch
    >>> same = torch.zeros(2, 3), torch.tensor([0, 1])
    >>> loss_gap(same, same)
    tensor(0.)
    """
    return (F.cross_entropy(*first) - F.cross_entropy(*second)).abs()


def held_out_splits(domains: int, rng: np.random.Generator) -> list[tuple[int, list[int]]]:
    """K (K - 2) splits (held-out domain, some others): each domain with prefixes of the shuffled rest, sizes 2 up.

    >>> [(held_out, len(rest)) for held_out, rest in held_out_splits(4, np.random.default_rng(0))]
    [(0, 2), (0, 3), (1, 2), (1, 3), (2, 2), (2, 3), (3, 2), (3, 3)]
    """
    splits = []
    for held_out in range(domains):
        rest = [int(k) for k in rng.permutation([k for k in range(domains) if k != held_out])]
        splits += [(held_out, rest[:size]) for size in range(2, domains)]
    return splits
