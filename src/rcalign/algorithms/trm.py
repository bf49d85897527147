"""TRM (transfer risk minimisation): the best classifier of one domain must also do well on the others.

Each domain q keeps a linear classifier w_q. From step ``start_step`` on, a step first moves every w_q by 30 gradient
steps of size 0.1 on CE_q(w_q), features constant. With R_qd = CE_d(w_q), weights a (K x K, zero diagonal, rows summing
to one) and w_q constant, f and the head then descend

    CE_all + (1/K) sum_q [ sum_{d != q} a_qd R_qd - influence_weight * sg(s_q) . grad_w R_qq ]

s_q ~ H_q^-1 grad_w sum_d a_qd R_qd: ten further terms of a Neumann series with the Hessian H_q of R_qq by w_q's weight,
stopped once an entry exceeds 10. It stands for the change of w_q with the features. Afterwards a_qd is multiplied by
exp(weight_rate * a_qd R_qd). Gradient and Hessian of the linear classifiers are taken in closed form, so a step has
one forward and one backward pass of the network.

Paper: Xu and Jaakkola, Learning Representations that Support Robust Transfer of Predictors (2021). Departures:
DomainBed overwrites the first term of the series, and changes a before the backward pass, so that the gradient uses the
new weights and the value the old ones: ``form = published``, for its tables only. Its domain classifiers and weights
are not in its saved state; here they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign.algorithms.annealing import in_long_runs
from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.functional.transferability import (
    fitted_classifier,
    inverse_hessian_series,
    transfer_risks,
    weight_gradient,
)
from rcalign.registry import Traits, register
from rcalign.spaces import At, Field, LogUniform
from rcalign.types import Batch, StepOutput

FIT_STEPS, FIT_RATE = 30, 0.1


@register(
    "TRM",
    summary="the best classifier of one domain must do well on the others",
    paper="Xu and Jaakkola, Learning Representations that Support Robust Transfer of Predictors (2021)",
    family="invariance penalty",
    traits=Traits(min_domains=2),
)
class TRM(Algorithm):
    domain_weights: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        influence_weight: Annotated[
            float, Field("weight of the classifiers' change (cos_lambda)", LogUniform(1e-5, 1.0), minimum=0)
        ] = 1e-4
        start_step: Annotated[
            int,
            Field(
                "plain training before this step",
                LogUniform(1, 2e3, integer=True),
                minimum=0,
                presets=in_long_runs(200, LogUniform(1, 1e4, integer=True)),
            ),
        ] = 40
        weight_rate: Annotated[
            float, Field("how fast pairs of domains gain weight", LogUniform(1e-3, 0.1), minimum=0)
        ] = 1e-2
        start_from_head: Annotated[
            bool, Field("the classifiers start every step at the head's weight, for unequal labels")
        ] = False
        form: Annotated[
            str,
            Field(
                "the paper's terms, or DomainBed's with its defects",
                choices=("paper", "published"),
                presets={"domainbed-2024": At("published")},
            ),
        ] = "paper"

    def build(self) -> None:
        domains = self.spec.num_domains
        self.domain_heads = nn.ModuleList(
            nn.Linear(self.features_dim, self.spec.num_classes) for _ in range(domains)
        ).requires_grad_(False)
        self.register_buffer("domain_weights", 1 - torch.eye(domains))

    def loss(self, batch: Batch) -> StepOutput:
        features, logits = self(batch.x)
        risk = self.cross_entropy(logits, batch.y)
        transfer = features.new_zeros(())
        if self.steps_done >= self.hparams.start_step:
            with torch.autocast(features.device.type, enabled=False):  # half precision loses the series
                transfer = self._transfer(features.to(self.head.weight.dtype), batch)
        return StepOutput(risk + transfer, {"risk": risk.detach(), "transfer": transfer.detach()})

    def _transfer(self, features: Tensor, batch: Batch) -> Tensor:
        h, published = self.hparams, self.hparams.form == "published"
        parts, labels = batch.split(features), batch.split(batch.y)
        heads = self._fitted(parts, labels)
        old = self.domain_weights / self.domain_weights.sum(1, keepdim=True)
        risks = transfer_risks(
            features,
            batch.y,
            batch.sizes,
            torch.stack([weight for weight, _ in heads]),
            torch.stack([bias for _, bias in heads]),
        )
        new = old * (h.weight_rate * old * risks.detach()).exp()
        self.domain_weights.copy_(new)
        weighted = old * risks
        if published:  # the value of the old weights, the gradient of the new ones
            weighted = new * risks + (old - new) * risks.detach()
        total = weighted.sum()
        if h.influence_weight > 0:
            total = total - h.influence_weight * self._influence(parts, labels, heads, old, published)
        return total / self.spec.num_domains

    @torch.no_grad()
    def _fitted(self, parts: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> list[tuple[Tensor, Tensor]]:
        """The domains' classifiers, moved to where their domain's features are now."""
        found = []
        for head, z, y in zip(self.domain_heads, parts, labels, strict=True):
            old_weight, old_bias = head.parameters()
            start = self.head.weight if self.hparams.start_from_head else old_weight
            weight, bias = fitted_classifier(z.detach(), y, start, old_bias, FIT_RATE, FIT_STEPS)
            old_weight.copy_(weight)
            old_bias.copy_(bias)
            found.append((weight, bias))
        return found

    def _influence(
        self,
        parts: tuple[Tensor, ...],
        labels: tuple[Tensor, ...],
        heads: list[tuple[Tensor, Tensor]],
        weights: Tensor,
        published: bool,
    ) -> Tensor:
        """sum_q sg(s_q) . grad_w R_qq."""
        total = parts[0].new_zeros(())
        for q, (weight, bias) in enumerate(heads):
            with torch.no_grad():
                own = parts[q].detach()
                elsewhere = torch.zeros_like(weight)
                for d, (z, y) in enumerate(zip(parts, labels, strict=True)):
                    if d != q:
                        elsewhere += weights[q, d] * weight_gradient(z, y, weight, bias)
                probabilities = F.linear(own, weight, bias).softmax(1)
                series = inverse_hessian_series(elsewhere, own, probabilities, published=published)
            total = total + (series * weight_gradient(parts[q], labels[q], weight, bias)).sum()
        return total
