"""IB_IRM: a classifier that no domain would rescale, on features that vary as little as possible.

Objective over K domains, CE_d and P_d as in IRM, var_d the variance of a feature within domain d (1/(n - 1)):

    (1/K) sum_d CE_d + w_t (1/K) sum_d P_d + v_t (1/K) sum_d mean over features of var_d

w_t = 1 for t < anneal_steps, penalty_weight from then on; v_t = 0 for t < bottleneck_anneal_steps, bottleneck_weight
from then on. Adam's state is reset at both steps.

Paper: Ahuja et al., Invariance Principle Meets Information Bottleneck for Out-of-Distribution Generalization (2021).
Departures: those of IRM; as DomainBed, variances are taken within domains. A domain of one row adds no variance, and
its derivative squared (DomainBed: not a number).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rcalign.algorithms.annealing import AnnealedHparams, AnnealedPenalty, restart
from rcalign.algorithms.base import Logs
from rcalign.functional.invariance import invariance_penalty
from rcalign.functional.moments import within_variance
from rcalign.registry import Traits, register
from rcalign.spaces import Field, LogUniform
from rcalign.types import Batch, StepOutput


@register(
    "IB_IRM",
    summary="an invariant classifier on features with little variance",
    paper="Ahuja et al., Invariance Principle Meets Information Bottleneck for Out-of-Distribution Generalization "
    "(2021)",
    family="information bottleneck",
    traits=Traits(erm_when=(("penalty_weight", 0.0), ("anneal_steps", 0), ("bottleneck_weight", 0.0))),
)
class IBIRM(AnnealedPenalty):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(AnnealedHparams):
        bottleneck_weight: Annotated[
            float, Field("weight of the features' variance once annealed", LogUniform(0.1, 1e5), minimum=0)
        ] = 100.0
        bottleneck_anneal_steps: Annotated[
            int,
            Field(
                "steps without the variance, after which Adam starts anew", LogUniform(1, 1e4, integer=True), minimum=0
            ),
        ] = 500

    def step(self, batch: Batch) -> Logs:
        if self.steps_done == self.hparams.bottleneck_anneal_steps:
            restart(self.optimizer)
        return super().step(batch)

    def loss(self, batch: Batch) -> StepOutput:
        features, logits = self(batch.x)
        risk = self.domain_risks(logits, batch.y, batch.sizes).mean()
        invariant = self.penalised(risk, invariance_penalty(logits, batch.y, batch.sizes).mean())
        variance = within_variance(features, batch.sizes)
        annealed = self.steps_done >= self.hparams.bottleneck_anneal_steps
        weight = self.hparams.bottleneck_weight if annealed else 0.0
        return StepOutput(invariant.loss + weight * variance, {**invariant.logs, "variance": variance.detach()})
