"""SD (spectral decoupling): keep the logits small, so that one easy feature does not starve the others of gradient.

Objective over N samples with logits a_i in R^C:

    (1/N) sum_i CE(a_i, y_i) + w (1/(N C)) sum_i ||a_i||^2

Paper: Pezeshki et al., Gradient Starvation: A Learning Proclivity in Neural Networks (2021), equation 25. Departures:
the mean of the squares (DomainBed) instead of half their sum, which only changes the scale of w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.functional.classification import mean_square
from rcalign.registry import Traits, register
from rcalign.spaces import Field, LogUniform
from rcalign.types import Batch, StepOutput


@register(
    "SD",
    summary="penalises large logits, so that easy features leave gradient for others",
    paper="Pezeshki et al., Gradient Starvation: A Learning Proclivity in Neural Networks (2021)",
    family="logit penalty",
    traits=Traits(erm_when=(("penalty_weight", 0.0),)),
)
class SD(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        penalty_weight: Annotated[float, Field("weight of the squared logits", LogUniform(1e-5, 0.1), minimum=0)] = 0.1

    def loss(self, batch: Batch) -> StepOutput:
        _, logits = self(batch.x)
        risk, penalty = self.cross_entropy(logits, batch.y), mean_square(logits)
        loss = risk + self.hparams.penalty_weight * penalty
        return StepOutput(loss, {"risk": risk.detach(), "penalty": penalty.detach()})
