"""A weighted directed graph that is kept acyclic by a penalty (NOTEARS)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def path_weights(graph: Tensor) -> Tensor:
    """T = exp(W * W), matrix exponential of the elementwise square: T_ij adds up the paths of all lengths from i to j.

    >>> path_weights(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    tensor([[1., 1.],
            [0., 1.]])
    """
    return torch.linalg.matrix_exp(graph * graph)


def cycle_weight(paths: Tensor) -> Tensor:
    """tr(T) - d: zero if and only if the graph of these paths has no cycle: (d, d) -> ().

    >>> cycle_weight(path_weights(torch.tensor([[0.0, 1.0], [1.0, 0.0]])))  # 2 cosh(1) - 2
    tensor(1.0862)
    """
    return paths.trace() - len(paths)


def reconstruction_gap(prototypes: Tensor, labels: Tensor, graph: Tensor, floor: float = 1e-6) -> Tensor:
    """Mean of 1 - cos between each prototype and what its graph parents make of it.

    prototypes (m, o), labels (m,), graph (o + 1, o + 1), the label being the last node: the first o columns of
    [prototype, label] W against the prototype. floor: added to both squared norms.

    >>> reconstruction_gap(torch.eye(2), torch.zeros(2), torch.zeros(3, 3))  # nothing is explained
    tensor(1.)
    """
    nodes = torch.cat([prototypes, labels[:, None].to(prototypes)], dim=1)
    made = (nodes @ graph)[:, :-1]
    # torch's own cosine divides by almost nothing at a zero vector, where the graph starts: gradients of 1e6 and more
    norms = ((made.square().sum(1) + floor) * (prototypes.square().sum(1) + floor)).sqrt()
    return (1 - (made * prototypes).sum(1) / norms).mean()


@torch.no_grad()
def label_parents(width: int) -> Tensor:
    """The graph of width + 1 nodes in which every feature is a parent of the label and of nothing else.

    >>> label_parents(2)
    tensor([[0., 0., 1.],
            [0., 0., 1.],
            [0., 0., 0.]])
    """
    return F.pad(torch.ones(width, 1), (width, 0, 0, 1))
