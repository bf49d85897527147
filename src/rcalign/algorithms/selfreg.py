"""SelfReg: pull logits and features of a sample towards those of others of its class.

c is a small network on features (three linear layers, each followed by batch norm); i', i'' are random samples of the
class of i (two permutations within each class), lam ~ Beta(1/2, 1/2) is drawn once for each step. With o the logits:

    I(u, v) = mean (u_i - v_i')^2,   H(u, v) = mean (u_i - lam v_i' - (1 - lam) v_i'')^2
    L = CE_all + min(CE_all, 1) [ lam (logit_weight I(o, o) + feature_weight I(z, c(z)))
                                  + (1 - lam) (logit_weight H(o, o) + feature_weight H(z, c(z))) ]

the factor min(CE_all, 1) as a constant. Both weights 0 is ERM.

Paper: Kim et al., SelfReg: Self-supervised Contrastive Regularization for Domain Generalization (2021). Departures: no
curriculum over domains and no weight averaging, as DomainBed (``--average swa`` adds the latter). DomainBed leaves c
out of the optimizer, so that it keeps its random start: ``train_projection = false``, for its tables only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.functional.partners import class_partners, partner_gaps
from rcalign.registry import Traits, register
from rcalign.spaces import At, Field
from rcalign.types import Batch, StepOutput

WIDEST = 2048  # hidden layers have twice the features' width up to here, and never less than the features


@register(
    "SelfReg",
    summary="pulls logits and features towards those of other samples of the class",
    paper="Kim et al., SelfReg: Self-supervised Contrastive Regularization for Domain Generalization (2021)",
    family="contrastive",
    traits=Traits(erm_when=(("logit_weight", 0.0), ("feature_weight", 0.0))),
)
class SelfReg(Algorithm):
    trains_batch_norm = True

    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        logit_weight: Annotated[float, Field("weight of the distances between logits", minimum=0)] = 1.0
        feature_weight: Annotated[float, Field("weight of the distances between features", minimum=0)] = 0.3
        mixup_alpha: Annotated[float, Field("Beta parameter of the mix of two partners", minimum=1e-3)] = 0.5
        train_projection: Annotated[
            bool, Field("whether the network c learns", presets={"domainbed-2024": At(False)})
        ] = True

    def build(self) -> None:
        width = self.features_dim
        hidden = min(2 * width, max(width, WIDEST))
        self.project = nn.Sequential(
            nn.Linear(width, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, width),
            nn.BatchNorm1d(width),
        )
        self.project.requires_grad_(self.hparams.train_projection)

    def draw_share(self) -> float:
        """lam of a step."""
        return float(self.rng.beta(self.hparams.mixup_alpha, self.hparams.mixup_alpha))

    def draw_partners(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Positions (N,) of i' and i''."""
        return class_partners(y, self.rng), class_partners(y, self.rng)

    def loss(self, batch: Batch) -> StepOutput:
        h = self.hparams
        features, logits = self(batch.x)
        risk = self.cross_entropy(logits, batch.y)
        share = self.draw_share()
        partners = self.draw_partners(batch.y)
        of_logits = partner_gaps(logits, logits, *partners, share)
        of_features = partner_gaps(features, self.project(features), *partners, share)
        one, mixed = (h.logit_weight * a + h.feature_weight * b for a, b in zip(of_logits, of_features, strict=True))
        penalty = torch.clamp(risk.detach(), max=1.0) * (share * one + (1 - share) * mixed)
        return StepOutput(risk + penalty, {"risk": risk.detach(), "penalty": penalty.detach()})
