"""Fish: Reptile over domains, which raises the inner product of the domains' gradients.

    phi = theta;  for each domain d in turn: one Adam step of phi on CE_d;  theta <- theta + meta_rate (phi - theta)

Adam's moments are kept from step to step; there is no outer optimizer. phi lives in the network itself and theta in one
buffer made once; batch norm's running statistics are those of phi.

Paper: Shi et al., Gradient Matching for Domain Generalization (2021). Departures: the domains' order is fixed (as
DomainBed) unless ``shuffle_domains``; the paper shuffles it. No network is rebuilt or copied; the logged loss is the
mean over domains, not the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.registry import register
from rcalign.spaces import Choice, Field
from rcalign.types import Batch


@register(
    "Fish",
    summary="moves towards where training on one domain after the other leads",
    paper="Shi et al., Gradient Matching for Domain Generalization (2021)",
    family="meta-learning",
)
class Fish(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        meta_rate: Annotated[
            float, Field("share of the way to the inner result", Choice(0.05, 0.1, 0.5), minimum=0, maximum=1)
        ] = 0.5
        shuffle_domains: Annotated[bool, Field("a new order of domains in every step")] = False

    def build(self) -> None:
        self._theta: list[Tensor] = []

    def step(self, batch: Batch) -> Logs:
        batch = self.begin_step(batch)
        phi = [p.detach() for group in self.optimizer.param_groups for p in group["params"]]
        if not self._theta or self._theta[0].device != phi[0].device:
            self._theta = [torch.empty_like(p) for p in phi]
        torch._foreach_copy_(self._theta, phi)
        x, y = batch.split(batch.x), batch.split(batch.y)
        order = range(batch.num_domains)
        losses = []
        for k in self.rng.permutation(len(order)) if self.hparams.shuffle_domains else order:
            loss = self.cross_entropy(self(x[k])[1], y[k])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.detach())
        torch._foreach_lerp_(phi, self._theta, 1 - self.hparams.meta_rate)
        self.steps_done += 1
        return {"loss": torch.stack(losses).mean()}
