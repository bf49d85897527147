"""SAM (sharpness-aware minimisation): descend the largest loss nearby.

With g = grad CE_all(theta) as a constant, the optimizer receives

    grad CE_all at theta + radius * g / (||g|| + 1e-12)

||g|| over all trained parameters. Two passes over the same batch. radius = 0 is ERM.

Paper: Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization (2021). Departures: none;
batch-norm statistics move in the first pass only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.algorithms.lookahead import LookAhead
from rcalign.functional.sharpness import global_norm, matching_shift
from rcalign.registry import Traits, register
from rcalign.spaces import Choice, Field
from rcalign.types import Batch


@register(
    "SAM",
    summary="descends the largest loss nearby",
    paper="Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization (2021)",
    family="flat minima",
    traits=Traits(erm_when=(("radius", 0.0),)),
)
class SAM(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        radius: Annotated[
            float, Field("how far uphill the loss is taken (rho)", Choice(0.01, 0.02, 0.05, 0.1), minimum=0)
        ] = 0.05

    def build(self) -> None:
        self._look_ahead = LookAhead(self)

    def step(self, batch: Batch) -> Logs:
        batch = self.begin_step(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.cross_entropy(self(batch.x)[1], batch.y)
        loss.backward()
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        shift = matching_shift(global_norm(gradients).item(), self.hparams.radius, alpha=0.0)
        self._look_ahead.move(-shift, accumulate=False)
        perturbed = self.cross_entropy(self._look_ahead(batch.x)[1], batch.y)
        perturbed.backward()
        self._look_ahead.take_gradients()
        self.optimizer.step()
        self.steps_done += 1
        return {"loss": loss.detach(), "perturbed": perturbed.detach()}
