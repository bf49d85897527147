"""LDAM: a margin for every class, the larger the rarer it is.

With n_dc the training samples of class c in domain d: D_dc = max_margin * n_dc^(-1/4) / max_c' n_dc'^(-1/4), 0 where
n_dc = 0; with z the logits g(f(x)) and e_y the label's unit vector:

    L = (1/K) sum_d mean_{i in d} CE(scale * (z_i - D_{d,y_i} e_{y_i}), y_i)

From step ``drw_start`` on (deferred re-weighting, -1: never) each domain's mean is weighted by the effective number of
samples, as CBLoss at beta = 0.9999. With ``cosine_head`` z are cosines of features and class vectors.

Paper: Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss (2019). Departures: the
defaults are those of the public code for several domains, an ordinary linear head (under which ``scale`` acts as a
temperature) and no deferred re-weighting; the paper has cosines, for which scale 30 and max_margin 0.5 are made, and
deferred re-weighting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.functional.imbalance import effective_number_weights, margin_logits, margins, weighted_cross_entropy
from rcalign.registry import Traits, register
from rcalign.spaces import Choice, Field, LogUniform
from rcalign.types import Batch, StepOutput

DRW_BETA = 0.9999  # the paper's


class CosineHead(nn.Module):
    """(n, h) -> (n, C): cosines of the features with C class vectors."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, features))

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(F.normalize(features, dim=1), F.normalize(self.weight, dim=1))


@register(
    "LDAM",
    summary="larger margins for rarer classes",
    paper="Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss (2019)",
    family="long-tailed, margins",
    traits=Traits(needs_counts=True, erm_when=(("max_margin", 0.0), ("scale", 1.0))),
)
class LDAM(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        max_margin: Annotated[
            float, Field("margin of a domain's rarest class", LogUniform(0.1, 10**-0.1), minimum=0)
        ] = 0.5
        scale: Annotated[
            float, Field("factor of the logits, an inverse temperature", Choice(10.0, 30.0), minimum=1e-6)
        ] = 30.0
        cosine_head: Annotated[bool, Field("cosines as logits, as in the paper")] = False
        drw_start: Annotated[int, Field("step from which classes are also re-weighted (-1: never)", minimum=-1)] = -1

    class_margins: Tensor  # (K, C)
    class_weights: Tensor  # (K, C), rows that sum to C

    def build(self) -> None:
        counts = self.spec.count_matrix
        self.register_buffer("class_margins", margins(counts, self.hparams.max_margin))
        self.register_buffer("class_weights", effective_number_weights(counts, DRW_BETA))
        if self.hparams.cosine_head:
            self.head = CosineHead(self.features_dim, self.spec.num_classes)  # type: ignore[assignment]

    def loss(self, batch: Batch) -> StepOutput:
        _, logits = self(batch.x)
        margin = self.class_margins[batch.domain, batch.y]
        shifted = margin_logits(logits, batch.y, margin, self.hparams.scale)
        weights = self.class_weights[batch.domain, batch.y]
        if not 0 <= self.hparams.drw_start <= self.steps_done:
            weights = torch.ones_like(weights)
        risks = weighted_cross_entropy(shifted, batch.y, weights, batch.sizes, self.label_smoothing)
        return StepOutput(risks.mean())
