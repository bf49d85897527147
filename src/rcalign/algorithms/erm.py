"""ERM: minimise the pooled loss.

Objective, N samples of K domains: (1/N) sum_i CE(g(f(x_i)), y_i) with ``reduction = "samples"`` (published), or the
mean over domains of each domain's mean with ``"domains"``; the two differ only for unequal batches.

Paper: Vapnik, Statistical Learning Theory, 1998. Departures: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.registry import Traits, register
from rcalign.spaces import Field
from rcalign.types import Batch, StepOutput


@register(
    "ERM",
    summary="plain training on all source domains together",
    paper="Vapnik, Statistical Learning Theory (1998)",
    family="baseline",
    traits=Traits(erm_when=(), row_losses=True),
)
class ERM(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        reduction: Annotated[
            str, Field("mean over all samples, or over domains' means", choices=("samples", "domains"))
        ] = "samples"

    def loss(self, batch: Batch) -> StepOutput:
        _, logits = self(batch.x)
        if self.hparams.reduction == "samples":
            return StepOutput(self.cross_entropy(logits, batch.y))
        return StepOutput(self.domain_risks(logits, batch.y, batch.sizes).mean())
