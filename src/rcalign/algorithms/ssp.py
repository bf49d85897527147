"""SSP: self-supervised pretraining on the training images, then plain training.

Stage one is a run of SSP-pretext (rotation prediction, no labels). Stage two takes its featurizer, a new head, and
minimises the mean cross-entropy of all samples, everything trained:

    L = (1/N) sum_i CE(g(f(x_i)), y_i)

Paper: Yang and Xu, Rethinking the Value of Labels for Improving Class-Imbalanced Learning (2020). Departures: what was
run for the published multi-domain tables (pretext task, length, starting weights) is not public; this is our reading
and is reported as such: rotation prediction from the run's pretrained backbone with Adam.
"""

from __future__ import annotations

from rcalign.algorithms.second_stage import SecondStage
from rcalign.algorithms.ssp_pretext import require_square_images
from rcalign.registry import Traits, register
from rcalign.types import Batch, StepOutput


@register(
    "SSP",
    summary="rotation prediction on the same images first, then plain training",
    paper="Yang and Xu, Rethinking the Value of Labels for Improving Class-Imbalanced Learning (2020)",
    family="long-tailed, self-supervised",
    traits=Traits(stage_one="SSP-pretext", images_only=True),
)
class SSP(SecondStage):
    def build(self) -> None:
        super().build()
        require_square_images(self)

    def loss(self, batch: Batch) -> StepOutput:
        _, logits = self(batch.x)
        return StepOutput(self.cross_entropy(logits, batch.y))
