"""GroupDRO: weight the domains by exponentiated gradient, the worst ones most.

Each step, CE_d the mean cross-entropy of domain d, q_d its weight (1/K at the start):

    q_d <- q_d exp(rate * CE_d) / sum,    loss = sum_d q_d CE_d    (q without gradient, updated first)

Paper: Sagawa et al., Distributionally Robust Neural Networks for Group Shifts (2020), Algorithm 1. Departures: no
group-size adjustment and no strong L2 (as DomainBed); log q is kept, so that a weight that underflows can come back,
and is part of the state from the start. ``divide_by_domains`` is published DomainBed's extra factor 1/K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.functional.invariance import reweighted_log
from rcalign.registry import Traits, register
from rcalign.spaces import At, Field, LogUniform
from rcalign.types import Batch, StepOutput


@register(
    "GroupDRO",
    summary="gives domains with a larger loss a larger weight",
    paper="Sagawa et al., Distributionally Robust Neural Networks for Group Shifts (2020)",
    family="robust optimisation",
    traits=Traits(erm_when=(("weight_rate", 0.0),)),
)
class GroupDRO(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        weight_rate: Annotated[float, Field("step size of the domain weights", LogUniform(1e-3, 1e-1), minimum=0)] = (
            1e-2
        )
        divide_by_domains: Annotated[
            bool, Field("divide the loss by the number of domains", presets={"domainbed": At(True)})
        ] = False

    def build(self) -> None:
        domains = self.spec.num_domains
        self.register_buffer("log_weights", torch.full((domains,), -math.log(domains)))

    def loss(self, batch: Batch) -> StepOutput:
        logits = self.head(self.features_by_domain(batch))
        risks = self.domain_risks(logits, batch.y, batch.sizes)
        self.log_weights.copy_(reweighted_log(self.log_weights, risks, self.hparams.weight_rate))
        weights = self.log_weights.exp()
        loss = weights @ risks
        if self.hparams.divide_by_domains:
            loss = loss / batch.num_domains
        return StepOutput(loss, {"worst_risk": risks.detach().max(), "largest_weight": weights.max()})

    log_weights: Tensor
