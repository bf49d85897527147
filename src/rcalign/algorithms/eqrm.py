"""EQRM: minimise a high quantile of the domains' losses, so that the model is good with high probability.

With r_d the mean cross-entropy of domain d, h = 1.06 std(r) K^(-1/5) and Phi the normal distribution function, the
objective is the q that solves

    (1/K) sum_d Phi((q - r_d) / h) = quantile

that is, the quantile of a Gaussian kernel density over the domains' losses. A negative ``quantile`` stands for
log(1 - quantile), for quantiles next to one, where the objective is mean(r) + h sqrt(-2 quantile). Before step
``anneal_steps`` the objective is mean_d r_d; at that step Adam starts anew with the rate ``annealed_rate``. One domain:
q = r.

Paper: Eastwood et al., Probable Domain Generalization via Quantile Risk Minimization (2022), Algorithm 1. Departures:
none in the default. DomainBed halves an interval and lets the gradient flow through its end points alone, which is not
the gradient of q (``gradient = end_points``). It also draws a fractional number of steps, which no step ever equals, so
that Adam and its rate stay as they were (``fraction = never``). Both are in preset ``domainbed-2024`` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rcalign.algorithms.annealing import in_long_runs, restart
from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.errors import InputError
from rcalign.functional.risks import risk_quantile
from rcalign.registry import register
from rcalign.spaces import At, Field, LogUniform, Uniform
from rcalign.types import Batch, StepOutput

LOW, HIGH = 10**2.5, 10**3.5


@register(
    "EQRM",
    summary="minimises a high quantile of the domains' losses",
    paper="Eastwood et al., Probable Domain Generalization via Quantile Risk Minimization (2022)",
    family="robust optimisation",
)
class EQRM(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        quantile: Annotated[
            float, Field("of the domains' losses; negative: log(1 - quantile)", Uniform(0.5, 0.99), maximum=0.999999)
        ] = 0.75
        anneal_steps: Annotated[
            float,
            Field(
                "steps on the mean loss before the quantile",
                LogUniform(LOW / 5, HIGH / 5, integer=True),
                minimum=0,
                presets={
                    **in_long_runs(2500, LogUniform(LOW, HIGH, integer=True)),
                    "domainbed-2024": At(2500, LogUniform(LOW, HIGH)),
                },
            ),
        ] = 500
        annealed_rate: Annotated[
            float,
            Field(
                "Adam's step size once annealed",
                LogUniform(1e-7, 1e-5),
                minimum=0,
                presets={"arrays": At(2e-5, LogUniform(2e-6, 2e-4))},
            ),
        ] = 1e-6
        gradient: Annotated[
            str,
            Field(
                "of the quantile (see above)",
                choices=("exact", "end_points"),
                presets={"domainbed-2024": At("end_points")},
            ),
        ] = "exact"
        fraction: Annotated[
            str,
            Field(
                "at a fractional anneal_steps Adam starts anew at the next step, or never",
                choices=("next_step", "never"),
                presets={"domainbed-2024": At("never")},
            ),
        ] = "next_step"

    def build(self) -> None:
        if self.hparams.quantile == 0:
            raise InputError(
                "hyperparameter 'quantile' is 0, but must be between 0 and 1, or negative for log(1 - quantile): "
                "use 0.75 for a start."
            )

    def step(self, batch: Batch) -> Logs:
        start = self.hparams.anneal_steps
        if self.steps_done == (start if self.hparams.fraction == "never" else -(-start // 1)):
            restart(self.optimizer, self.hparams.annealed_rate)
        return super().step(batch)

    def loss(self, batch: Batch) -> StepOutput:
        risks = self.domain_risks(self.head(self.features_by_domain(batch)), batch.y, batch.sizes)
        if self.steps_done < self.hparams.anneal_steps:
            loss = risks.mean()
        else:
            loss = risk_quantile(risks, self.hparams.quantile, exact=self.hparams.gradient == "exact")
        return StepOutput(loss, {"risk": risks.detach().mean()})
