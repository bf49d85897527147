"""Arith: descend towards the mean of the points that a pass over the domains visits, not to its end.

With K domains in random order pi, theta_0 = theta and, for k = 1, ..., K,

    g_k = grad CE_{pi(k)}(theta_{k-1}),    theta_k = theta_{k-1} - inner_rate * g_k

the optimizer receives (1/K) sum_k w_k g_k at theta. w_k = 2 (K - k + 1) / (K + 1) points from theta to the mean of
theta_1, ..., theta_K (``weighting = "mean_point"``); w_k = 1 points to theta_K, as Reptile and Fish do (``"uniform"``).
First order. inner_rate = 0 with uniform weights is ERM (mean over domains); so is K = 1.

Paper: Balanced Direction from Multifarious Choices: Arithmetic Meta-Learning for Domain Generalization (2025), read in
abstract; formula from its public code. Departures from that code, which is made for open-set tasks: one domain for each
inner step (there: three tasks of domain groups x class groups), no division of the outer gradient by the inner rate,
and the sum divided by K, so that the learning rate keeps its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.algorithms.lookahead import LookAhead
from rcalign.functional.trajectory import mean_point_weights
from rcalign.registry import Traits, register
from rcalign.spaces import Choice, Field
from rcalign.types import Batch


@register(
    "Arith",
    summary="one gradient step per domain, then towards the mean of the points visited",
    paper="Balanced Direction from Multifarious Choices: Arithmetic Meta-Learning for Domain Generalization (2025)",
    family="meta-learning",
    traits=Traits(erm_when=(("inner_rate", 0.0), ("weighting", "uniform")), alignment=(("inner_rate", "inner_rate"),)),
)
class Arith(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        inner_rate: Annotated[float, Field("step size along the path", Choice(1e-3, 5e-3, 1e-2), minimum=0)] = 1e-2
        weighting: Annotated[
            str, Field("towards the mean of the path's points, or its end", choices=("mean_point", "uniform"))
        ] = "mean_point"

    def build(self) -> None:
        self._look_ahead = LookAhead(self)

    def step(self, batch: Batch) -> Logs:
        batch = self.begin_step(batch)
        domains = batch.num_domains
        weights = mean_point_weights(domains) if self.hparams.weighting == "mean_point" else (1.0,) * domains
        parameters = [p for p in self.parameters() if p.requires_grad]
        total = [torch.zeros_like(p) for p in parameters]
        travelled: list[Tensor] = []  # g_1 + ... + g_k: theta_k = theta - inner_rate * travelled
        losses = []
        for k, weight in zip(self.rng.permutation(domains), weights, strict=True):
            part = batch.select([int(k)])
            if travelled:
                self._look_ahead.move(self.hparams.inner_rate, travelled, accumulate=False)
                output, at = self._look_ahead(part.x), list(self._look_ahead.parameters.values())
            else:
                output, at = self(part.x), list(parameters)
            loss = self.cross_entropy(output[1], part.y)
            gradients = list(torch.autograd.grad(loss, at))
            torch._foreach_add_(total, gradients, alpha=weight / domains)
            travelled = list(torch._foreach_add(travelled, gradients)) if travelled else gradients
            losses.append(loss.detach())
        for p, gradient in zip(parameters, total, strict=True):
            p.grad = gradient
        self.optimizer.step()
        self.steps_done += 1
        return {"loss": torch.stack(losses).mean()}
