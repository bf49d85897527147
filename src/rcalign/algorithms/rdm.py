"""RDM: bring the distribution of losses in the worst domain close to that in all domains.

With l the N samples' cross-entropies, A all of them and W those of the domain with the largest mean, after step
``anneal_steps``

    (1/K) sum_d CE_d + w [ mean k(W, W) + mean k(A, A) - 2 mean k(W, A) ] + v [ var(A) + var(W) ]
    k(a, b) = sum over g = 0.0001, 0.001, ..., 1000 of exp(-g (a - b)^2),    var with 1/(n - 1)

Before that step w = v = 0; at it Adam starts anew with the rate ``annealed_rate``. The losses' distributions need large
batches.

Paper: Nguyen et al., Domain Generalization via Risk Distribution Matching (2024). Departures: as the public code, the
worst domain is one of "all". Batches may be unequal (DomainBed: an error). The variance of one loss is 0 (DomainBed:
not a number).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rcalign.algorithms.annealing import in_long_runs, restart
from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.functional.classification import domain_means
from rcalign.functional.risks import risk_matching
from rcalign.registry import Traits, register
from rcalign.spaces import At, Choice, Field, IntUniform, LogUniform, Uniform
from rcalign.types import Batch, StepOutput


@register(
    "RDM",
    summary="brings the losses of the worst domain close to those of all domains",
    paper="Nguyen et al., Domain Generalization via Risk Distribution Matching (2024)",
    family="invariance penalty",
    traits=Traits(erm_when=(("matching_weight", 0.0), ("variance_weight", 0.0))),
)
class RDM(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        matching_weight: Annotated[
            float, Field("weight of the distance between loss distributions", Uniform(0.1, 10), minimum=0)
        ] = 5.0
        variance_weight: Annotated[
            float, Field("weight of the losses' variances", Uniform(0.001, 0.007), minimum=0)
        ] = 0.004
        anneal_steps: Annotated[
            int,
            Field(
                "steps on the mean loss before the penalties",
                IntUniform(160, 539),
                minimum=0,
                presets=in_long_runs(1500, IntUniform(800, 2699)),
            ),
        ] = 300
        annealed_rate: Annotated[
            float,
            Field(
                "Adam's step size once annealed",
                Uniform(8e-6, 2e-5),
                minimum=0,
                presets={"arrays": At(3e-4, Uniform(1.6e-4, 4e-4))},
            ),
        ] = 1.5e-5
        batch_size: Annotated[
            int,
            Field(
                "samples per domain and step",
                IntUniform(70, 99),
                minimum=1,
                presets={
                    "arrays": At(64, LogUniform(8, 2**9, integer=True)),
                    "mdlt": At(24, Choice(24)),
                    "rc-align": At(24, Choice(24)),
                },
            ),
        ] = 88

    def step(self, batch: Batch) -> Logs:
        if self.steps_done == self.hparams.anneal_steps:
            restart(self.optimizer, self.hparams.annealed_rate)
        return super().step(batch)

    def loss(self, batch: Batch) -> StepOutput:
        losses = self.cross_entropy(self(batch.x)[1], batch.y, reduction="none")
        risk = domain_means(losses, batch.sizes).mean()
        gap, variance = risk_matching(losses, batch.sizes)
        loss = risk
        if self.steps_done >= self.hparams.anneal_steps:
            loss = risk + self.hparams.matching_weight * gap + self.hparams.variance_weight * variance
        return StepOutput(loss, {"risk": risk.detach(), "matching": gap.detach(), "variance": variance.detach()})
