"""What IRM and VREx share: a penalty whose weight is 1 until a step and its own value from there on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.spaces import Field, LogUniform
from rcalign.types import Batch, StepOutput


@dataclass(frozen=True, kw_only=True)
class AnnealedHparams(BaseHparams):
    penalty_weight: Annotated[float, Field("weight of the penalty once annealed", LogUniform(0.1, 1e5), minimum=0)] = (
        100.0
    )
    anneal_steps: Annotated[
        int, Field("steps with weight 1 before the penalty's own weight", LogUniform(1, 1e4, integer=True), minimum=0)
    ] = 500


class AnnealedPenalty(Algorithm):
    """risk + w_t * penalty; w_t = 1 before step ``anneal_steps``, then ``penalty_weight``, where Adam starts anew."""

    Hparams = AnnealedHparams

    def step(self, batch: Batch) -> Logs:
        if self.steps_done == self.hparams.anneal_steps:
            self.optimizer.state.clear()  # the loss jumps here: its old moments would make huge or tiny steps
        return super().step(batch)

    def penalised(self, risk: Tensor, penalty: Tensor) -> StepOutput:
        weight = 1.0 if self.steps_done < self.hparams.anneal_steps else self.hparams.penalty_weight
        return StepOutput(risk + weight * penalty, {"risk": risk.detach(), "penalty": penalty.detach()})
