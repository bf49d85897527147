"""Penalties whose weight changes at a step of the training, where Adam starts anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.spaces import At, Field, LogUniform, Space
from rcalign.types import Batch, StepOutput


def in_long_runs(default: Any, space: Space | None = None) -> dict[str, At]:
    """A published number of steps, for the presets that train for 5,000 as the publication did.

    The field's own default and space are a fifth of it: the other presets train for 1,000 steps.
    """
    return {preset: At(default, space) for preset in ("domainbed", "domainbed-2024", "mdlt", "rc-align")}


def restart(optimizer: torch.optim.Optimizer, rate: float | None = None) -> None:
    """Forgets the optimizer's moments, and sets its learning rate where one is given.

    Where the loss jumps, moments of the old one would make huge or tiny steps.
    """
    optimizer.state.clear()
    if rate is not None:
        for group in optimizer.param_groups:
            group["lr"] = rate


@dataclass(frozen=True, kw_only=True)
class AnnealedHparams(BaseHparams):
    penalty_weight: Annotated[float, Field("weight of the penalty once annealed", LogUniform(0.1, 1e5), minimum=0)] = (
        100.0
    )
    anneal_steps: Annotated[
        int,
        Field(
            "steps before the penalty has its own weight, where Adam starts anew",
            LogUniform(1, 1e4, integer=True),
            minimum=0,
        ),
    ] = 500


class AnnealedPenalty(Algorithm):
    """risk + w_t * penalty; w_t = ``weight_before`` before step ``anneal_steps``, then ``penalty_weight``."""

    Hparams = AnnealedHparams
    weight_before: ClassVar[float] = 1.0

    def step(self, batch: Batch) -> Logs:
        if self.steps_done == self.hparams.anneal_steps:
            restart(self.optimizer)
        return super().step(batch)

    def penalised(self, risk: Tensor, penalty: Tensor) -> StepOutput:
        annealed = self.steps_done >= self.hparams.anneal_steps
        weight = self.hparams.penalty_weight if annealed else self.weight_before
        return StepOutput(risk + weight * penalty, {"risk": risk.detach(), "penalty": penalty.detach()})
