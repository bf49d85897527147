"""Contrast with proxies and prototypes: a sample against one vector for each class or (domain, class) pair."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SMALLEST_COSINE = 1e-6  # rows less alike than this are no negatives, where the public code says so


def proxy_contrast(projections: Tensor, proxies: Tensor, y: Tensor, scale: float, *, published: bool = False) -> Tensor:
    """Mean over samples of -log of the own proxy's share: projections (n, o), proxies (C, o), y (n,) -> ().

    With p_i, w_c the normalised projections and proxies, s the scale:
    -log [ exp(s w_y.p_i) / ( sum_c exp(s w_c.p_i) + sum_{j: y_j != y_i} exp(s p_i.p_j) ) ].
    published: as the public code computes it, with its defects: no proxies of other classes, only rows with
    p_i.p_j >= 1e-6, and the positives w_y.p handed out in the order of the classes, not of the samples.

    >>> eye = torch.eye(3)
    >>> proxy_contrast(eye, eye, torch.tensor([0, 1, 2]), scale=1.0)   # log(e + 2 + 2) - 1
    tensor(0.9048)
    """
    unit = F.normalize(projections, dim=1)
    to_proxies = unit @ F.normalize(proxies, dim=1).T  # (n, C)
    to_rows = unit @ unit.T  # (n, n)
    positive = to_proxies.gather(1, y[:, None])  # (n, 1)
    negative = y[:, None] != y
    if published:
        positive = positive[torch.argsort(y, stable=True)]
        negative = negative & (to_rows >= SMALLEST_COSINE)
        to_proxies = positive
    floor = torch.finfo(to_rows.dtype).min
    logits = torch.cat([scale * to_proxies, (scale * to_rows).masked_fill(~negative, floor)], dim=1)
    return (torch.logsumexp(logits, dim=1) - scale * positive[:, 0]).mean()


def prototype_contrast(
    features: Tensor, prototypes: Tensor, target: Tensor, temperature: float, *, negatives: bool, known: Tensor | None
) -> Tensor:
    """Cross-entropy of the own prototype among all: features (n, o), prototypes (m, o) unit, target (n,) -> ().

    logits = normalised features . prototypes / temperature. known (m,) bool: the others take no part (None: all do).
    negatives: also the rows of the batch with another target and a cosine of at least 1e-6.

    >>> prototype_contrast(torch.eye(2), torch.eye(2), torch.tensor([0, 1]), 1.0, negatives=False, known=None)
    tensor(0.3133)
    """
    unit = F.normalize(features, dim=1)
    floor = torch.finfo(unit.dtype).min
    to_prototypes = unit @ prototypes.T / temperature
    logits = to_prototypes if known is None else to_prototypes.masked_fill(~known, floor)
    if negatives:
        alike = unit @ unit.T
        counted = (target[:, None] != target) & (alike >= SMALLEST_COSINE)
        logits = torch.cat([logits, (alike / temperature).masked_fill(~counted, floor)], dim=1)
    return F.cross_entropy(logits, target)


@torch.no_grad()
def moved_prototypes(prototypes: Tensor, values: Tensor, index: Tensor, momentum: float) -> Tensor:
    """Prototypes after each row in turn has moved its own: p <- m p + (1 - m) value; then normalised.

    prototypes (m, o), values (n, o), index (n,): the prototype that a row belongs to -> (m, o). A prototype that no row
    belongs to keeps its direction; one of zeros stays zero.

    >>> start = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    >>> moved_prototypes(start, torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0]), 0.5)
    tensor([[0.3162, 0.9487],
            [0.0000, 0.0000]])
    """
    same = index[:, None] == index
    later = torch.triu(same, diagonal=1).sum(1)  # (n,): how many rows move the same prototype after this one
    counts = torch.bincount(index, minlength=len(prototypes))
    decay = torch.as_tensor(momentum, dtype=values.dtype, device=values.device)
    moved = prototypes * (decay**counts)[:, None]
    moved = moved.index_add(0, index, (1 - decay) * (decay**later)[:, None] * values)
    return F.normalize(moved, dim=1)
