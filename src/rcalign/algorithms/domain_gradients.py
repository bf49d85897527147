"""The gradient of each domain's loss, for methods that compare them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rcalign.algorithms.base import Algorithm
from rcalign.types import Batch

Gradients = dict[nn.Parameter, list[Tensor]]


def domain_gradients(model: Algorithm, batch: Batch, *, create_graph: bool = False) -> tuple[Tensor, Gradients]:
    """The mean cross-entropy of each domain (K,), and for each trained parameter its K gradients.

    One pass for each domain: a backward pass through a joint one would go through the other domains' rows as well.
    create_graph: the gradients can be differentiated. Parameters that the loss does not depend on are left out.
    """
    parameters = [p for group in model.optimizer.param_groups for p in group["params"]]
    risks, found = [], []
    for x, y in zip(batch.split(batch.x), batch.split(batch.y), strict=True):
        risk = model.cross_entropy(model(x)[1], y)
        found.append(torch.autograd.grad(risk, parameters, create_graph=create_graph, allow_unused=True))
        risks.append(risk)
    by_parameter = zip(parameters, zip(*found, strict=True), strict=True)
    gradients = {p: [g for g in each if g is not None] for p, each in by_parameter}
    return torch.stack(risks), {p: each for p, each in gradients.items() if each}
