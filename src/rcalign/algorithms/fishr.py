"""Fishr: match the variances of the head's gradients between domains.

For sample i with features z_i and residual r_i = softmax(logits_i) - onehot(y_i), the gradient of its cross-entropy by
the linear head is r_i (z_i, 1)^T. V_d in R^(C x (h + 1)) is its variance over the samples of domain d (with 1/n),
M_d an average over steps that starts at 0, and

    M_d <- momentum * sg(M_d) + (1 - momentum) V_d,    U_d = M_d / (1 - momentum)
    loss = (1/N) sum_i CE_i + w_t (1/K) sum_d mean over entries of (U_d - (1/K) sum_e U_e)^2

sg() stops the gradient, so the gradient's size does not depend on the momentum. w_t = 0 for t < anneal_steps,
penalty_weight from then on, where Adam's state is also reset; M runs from the first step on. V_d is in closed form, two
matrix products for each domain (``functional.agreement``): no pass for each sample.

Paper: Rame et al., Fishr: Invariant Gradient Variances for Out-of-Distribution Generalization (2022). Departures: none
from the authors' code. DomainBed does not save M; here it is part of the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from rcalign.algorithms.annealing import AnnealedHparams, AnnealedPenalty, in_long_runs
from rcalign.functional.agreement import head_gradient_variances, variance_spread
from rcalign.registry import Traits, register
from rcalign.spaces import Field, IntUniform, LogUniform, Uniform
from rcalign.types import Batch, StepOutput


@register(
    "Fishr",
    summary="matches the variances of the head's gradients between domains",
    paper="Rame et al., Fishr: Invariant Gradient Variances for Out-of-Distribution Generalization (2022)",
    family="gradient agreement",
    traits=Traits(erm_when=(("penalty_weight", 0.0),)),
)
class Fishr(AnnealedPenalty):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(AnnealedHparams):
        penalty_weight: Annotated[
            float, Field("weight of the penalty once annealed", LogUniform(10, 1e4), minimum=0)
        ] = 1000.0
        anneal_steps: Annotated[
            int,
            Field(
                "steps without the penalty, after which Adam starts anew",
                IntUniform(0, 999),
                minimum=0,
                presets=in_long_runs(1500, IntUniform(0, 4999)),
            ),
        ] = 300
        momentum: Annotated[
            float,
            Field("share of the old average in the new one", Uniform(0.9, 0.99), minimum=0, maximum=0.9999),
        ] = 0.95

    weight_before: ClassVar[float] = 0.0
    variances: Tensor

    def build(self) -> None:
        shape = self.spec.num_domains, self.spec.num_classes, self.features_dim + 1
        self.register_buffer("variances", torch.zeros(shape))

    def loss(self, batch: Batch) -> StepOutput:
        features, logits = self(batch.x)
        momentum = self.hparams.momentum
        new = head_gradient_variances(features, logits, batch.y, batch.sizes)
        averages = momentum * self.variances + (1 - momentum) * new
        self.variances.copy_(averages.detach())
        penalty = variance_spread(averages / (1 - momentum))
        return self.penalised(self.cross_entropy(logits, batch.y), penalty)
