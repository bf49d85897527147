"""SAGM: descend the loss and the perturbed loss where their gradients agree.

With g = grad CE_all(theta) as a constant, the optimizer receives

    (1/2) [ g + grad CE_all at theta + (radius / (||g|| + 1e-12) - alpha) g ]

||g|| over all trained parameters. Two passes over the same batch. radius = alpha = 0 is ERM.

Paper: Wang et al., Sharpness-Aware Gradient Matching for Domain Generalization (2023); the factor 1/2 is the public
code's. Departures: none known (the paper's equations could not be read); batch-norm statistics move in the first pass
only. The public code's search range for alpha contradicts its own README, whose values are used here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.algorithms.lookahead import LookAhead
from rcalign.functional.sharpness import global_norm, matching_shift
from rcalign.registry import Traits, register
from rcalign.spaces import Choice, Field
from rcalign.types import Batch


@register(
    "SAGM",
    summary="minimises the loss and the loss nearby uphill, and the angle between their gradients",
    paper="Wang et al., Sharpness-Aware Gradient Matching for Domain Generalization (2023)",
    family="flat minima",
    traits=Traits(erm_when=(("radius", 0.0), ("alpha", 0.0))),
)
class SAGM(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        radius: Annotated[
            float, Field("how far uphill the perturbed loss lies (rho)", Choice(0.01, 0.02, 0.05, 0.1), minimum=0)
        ] = 0.05
        alpha: Annotated[float, Field("how strongly the two gradients are matched", Choice(5e-4, 1e-3), minimum=0)] = (
            1e-3
        )

    def build(self) -> None:
        self._look_ahead = LookAhead(self)

    def step(self, batch: Batch) -> Logs:
        batch = self.begin_step(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.cross_entropy(self(batch.x)[1], batch.y)
        loss.backward()
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        shift = matching_shift(global_norm(gradients).item(), self.hparams.radius, self.hparams.alpha)
        self._look_ahead.move(-shift)
        perturbed = self.cross_entropy(self._look_ahead(batch.x)[1], batch.y)
        perturbed.backward()  # adds to the gradients of the first pass
        torch._foreach_mul_(gradients, 0.5)
        self.optimizer.step()
        self.steps_done += 1
        return {"loss": loss.detach(), "perturbed": perturbed.detach()}
