"""Focal: weigh easy samples down.

With p_i the softmax probability of sample i's label, N samples of all domains:

    L = (1/N) sum_i (1 - p_i)^gamma * (-log p_i),      gradient also through the factor.

Paper: Lin et al., Focal Loss for Dense Object Detection (2017). Departures: softmax instead of sigmoids, no alpha
weights, pooled over domains, all as in the public code for several domains. No class counts are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.functional.imbalance import focal_loss
from rcalign.registry import Traits, register
from rcalign.spaces import Field, LogUniform
from rcalign.types import Batch, StepOutput


@register(
    "Focal",
    summary="cross-entropy that weighs easy samples down",
    paper="Lin et al., Focal Loss for Dense Object Detection (2017)",
    family="long-tailed, loss shape",
    traits=Traits(erm_when=(("gamma", 0.0),), row_losses=True, cross_entropy=False),
)
class Focal(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        gamma: Annotated[
            float, Field("how strongly easy samples are weighed down (0: not)", LogUniform(0.5, 5.0), minimum=0)
        ] = 1.0

    def loss(self, batch: Batch) -> StepOutput:
        _, logits = self(batch.x)
        return StepOutput(focal_loss(logits, batch.y, self.hparams.gamma).mean())
