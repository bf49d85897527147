"""Pairs of domains and convex mixes of their rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor


def ring_pairs(items: Sequence[int], rng: np.random.Generator) -> list[tuple[int, int]]:
    """Shuffle, then each with the next, cyclic: two items give one pair, one item none.

    >>> ring_pairs([4, 7], np.random.default_rng(0)) in ([(4, 7)], [(7, 4)])
    True
    >>> len(ring_pairs([1, 2, 3], np.random.default_rng(0))), ring_pairs([5], np.random.default_rng(0))
    (3, [])
    """
    order = [items[k] for k in rng.permutation(len(items))]
    if len(order) < 2:
        return []
    if len(order) == 2:
        return [(order[0], order[1])]
    return [(order[k], order[(k + 1) % len(order)]) for k in range(len(order))]


def cyclic_pairs(order: Sequence[int]) -> list[tuple[int, int]]:
    """Each with the next, the last with the first: as many pairs as items, one item paired with itself.

    >>> cyclic_pairs([2, 0, 1]), cyclic_pairs([0, 1]), cyclic_pairs([0])
    ([(2, 0), (0, 1), (1, 2)], [(0, 1), (1, 0)], [(0, 0)])
    """
    return [(item, order[(k + 1) % len(order)]) for k, item in enumerate(order)]


def mix(a: Tensor, b: Tensor, weight: float) -> Tensor:
    """weight * a + (1 - weight) * b, rows matched by position, the longer cut: (n, ...), (m, ...) -> (min(n, m), ...).

    >>> import torch
    >>> mix(torch.ones(3, 1), torch.zeros(2, 1), 0.25).tolist()
    [[0.25], [0.25]]
    """
    rows = min(len(a), len(b))
    return weight * a[:rows] + (1 - weight) * b[:rows]
