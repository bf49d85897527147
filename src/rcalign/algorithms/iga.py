"""IGA: make the gradients of the domains' losses equal.

With r_d the mean cross-entropy of domain d and g_d its gradient by all trained parameters, m and g their means:

    m + w (1/K) sum_d ||g_d - g||^2

The penalty is the trace of the covariance of the domains' gradients. It is differentiated exactly, which takes a second
backward pass through the first one.

Paper: Koyama and Yamaguchi, When is Invariance Useful in an Out-of-Distribution Generalization Problem? (2020).
Departures: none in the default. DomainBed sums over domains instead of taking the mean, so that w depends on the number
of domains (``spread = sum``), and has w = 1000, under which a network trained from scratch stays where its gradients
are small (the default here is 1). Both are in preset ``domainbed-2024`` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch.nn.attention import SDPBackend, sdpa_kernel

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.algorithms.domain_gradients import domain_gradients
from rcalign.functional.agreement import gradient_spread
from rcalign.registry import Traits, register
from rcalign.spaces import At, Field, LogUniform
from rcalign.types import Batch, StepOutput


@register(
    "IGA",
    summary="penalises differences between the domains' gradients",
    paper="Koyama and Yamaguchi, When is Invariance Useful in an Out-of-Distribution Generalization Problem? (2020)",
    family="gradient agreement",
    traits=Traits(erm_when=(("penalty_weight", 0.0),)),
)
class IGA(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        penalty_weight: Annotated[
            float,
            Field(
                "weight of the gradients' spread",
                LogUniform(0.01, 100),
                minimum=0,
                presets={"domainbed-2024": At(1000.0, LogUniform(10, 1e5))},
            ),
        ] = 1.0
        spread: Annotated[
            str,
            Field("over domains", choices=("mean", "sum"), presets={"domainbed-2024": At("sum")}),
        ] = "mean"

    def loss(self, batch: Batch) -> StepOutput:
        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
            risks, gradients = domain_gradients(self, batch, create_graph=True)
        penalty = gradient_spread(list(gradients.values()))
        if self.hparams.spread == "sum":
            penalty = penalty * batch.num_domains
        risk = risks.mean()
        loss = risk + self.hparams.penalty_weight * penalty
        return StepOutput(loss, {"risk": risk.detach(), "penalty": penalty.detach()})
