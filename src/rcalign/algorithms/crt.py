"""CRT: freeze the features of a trained network, train a new head on class-balanced batches.

Stage one is a run of ERM. Stage two: featurizer f fixed (no gradient, evaluation mode, so batch-norm statistics do not
move), a new random head g, Adam on g alone, batches in which the classes of a domain are equally likely:

    L = (1/N) sum_i CE(g(f(x_i)), y_i)

Paper: Kang et al., Decoupling Representation and Classifier for Long-Tailed Recognition (2020). Departures, all as in
the public code for several domains: Adam at the run's own rate and for as many steps as stage one, where the paper has
SGD with a cosine schedule for ten epochs. Unlike that code, which lets every repetition start from the first stage of
seed 0, each run has the first stage of its own seed, so error bars include its variance.
"""

from __future__ import annotations

from typing import Self

from rcalign.algorithms.second_stage import SecondStage
from rcalign.registry import Traits, register
from rcalign.types import Batch, StepOutput


@register(
    "CRT",
    summary="a new head trained on class-balanced batches over ERM's frozen features",
    paper="Kang et al., Decoupling Representation and Classifier for Long-Tailed Recognition (2020)",
    family="long-tailed, two stages",
    traits=Traits(needs_counts=True, balanced_sampling=True, stage_one="ERM"),
)
class CRT(SecondStage):
    def build(self) -> None:
        super().build()
        self.featurizer.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.featurizer.eval()
        return self

    def loss(self, batch: Batch) -> StepOutput:
        _, logits = self(batch.x)
        return StepOutput(self.cross_entropy(logits, batch.y))
