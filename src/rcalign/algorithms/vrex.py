"""VREx: equalise the risks of the domains.

Objective over K domains, r_d the mean cross-entropy of domain d and m = (1/K) sum_d r_d:

    m + w_t (1/K) sum_d (r_d - m)^2

w_t = 1 for t < anneal_steps, penalty_weight from then on, where Adam's state is also reset. The weight of a domain's
gradient is 1/K + 2 w (r_d - m) / K, negative for an easy domain under a large w: intended.

Paper: Krueger et al., Out-of-Distribution Generalization via Risk Extrapolation (2021). Departures: the mean of the
risks instead of their sum (as DomainBed), which only changes the scale of w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rcalign.algorithms.annealing import AnnealedHparams, AnnealedPenalty
from rcalign.functional.invariance import risk_variance
from rcalign.registry import Traits, register
from rcalign.spaces import Field, LogUniform
from rcalign.types import Batch, StepOutput


@register(
    "VREx",
    summary="penalises the variance of the domains' losses",
    paper="Krueger et al., Out-of-Distribution Generalization via Risk Extrapolation (2021)",
    family="invariance penalty",
    traits=Traits(erm_when=(("penalty_weight", 0.0), ("anneal_steps", 0))),
)
class VREx(AnnealedPenalty):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(AnnealedHparams):
        penalty_weight: Annotated[
            float, Field("weight of the penalty once annealed", LogUniform(0.1, 1e5), minimum=0)
        ] = 10.0

    def loss(self, batch: Batch) -> StepOutput:
        _, logits = self(batch.x)
        risks = self.domain_risks(logits, batch.y, batch.sizes)
        return self.penalised(risks.mean(), risk_variance(risks))
