"""IB_ERM: of all features that classify, those that vary least (an information bottleneck).

Objective over K domains, CE_d the mean cross-entropy and var_d the variance of a feature within domain d (1/(n - 1)):

    (1/K) sum_d CE_d + w_t (1/K) sum_d mean over features of var_d

w_t = 0 for t < anneal_steps, penalty_weight from then on, where Adam's state is also reset. The variance stands for the
entropy of the features, which the paper bounds.

Paper: Ahuja et al., Invariance Principle Meets Information Bottleneck for Out-of-Distribution Generalization (2021).
Departures: as DomainBed, variances are taken within domains. A domain of one row adds 0 (DomainBed: not a number).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rcalign.algorithms.annealing import AnnealedHparams, AnnealedPenalty
from rcalign.functional.moments import within_variance
from rcalign.registry import Traits, register
from rcalign.types import Batch, StepOutput


@register(
    "IB_ERM",
    summary="penalises the variance of features within a domain",
    paper="Ahuja et al., Invariance Principle Meets Information Bottleneck for Out-of-Distribution Generalization "
    "(2021)",
    family="information bottleneck",
    traits=Traits(erm_when=(("penalty_weight", 0.0),)),
)
class IBERM(AnnealedPenalty):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(AnnealedHparams):
        pass

    weight_before: ClassVar[float] = 0.0

    def loss(self, batch: Batch) -> StepOutput:
        features, logits = self(batch.x)
        risk = self.domain_risks(logits, batch.y, batch.sizes).mean()
        return self.penalised(risk, within_variance(features, batch.sizes))
