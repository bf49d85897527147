"""ERM++: ERM with what is known to help: the head warmed up, the weights averaged.

The loss is ERM's, (1/N) sum_i CE(g(f(x_i)), y_i). The first ``warm_up_steps`` steps move the head alone, with an Adam
of its own at the rate ``warm_up_rate``; from then on another Adam moves everything. What is evaluated and kept is the
mean of the weights after the steps ``average_from`` and later (``training.averaging.SWA``).

Paper: Teterwak et al., ERM++: An Improved Baseline for Domain Generalization (2023). The paper's parts that belong to
training and data are not in here: the pretrained weights and trained batch norm (preset ``domainbed-2024``), the
learning rate lowered where the averaged network's validation loss stands still, and the second training on training and
validation data together. Departures: batch-norm statistics are recomputed for the averaged weights (DomainBed averages
them too, and passes each batch through the averaged network). DomainBed's 500 warm-up steps are 501, and its average
begins one step before the step 600 that it names: both counted here as they are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch.nn import functional as F

from rcalign.algorithms.annealing import in_long_runs
from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.registry import Traits, register
from rcalign.spaces import At, Field, LogUniform
from rcalign.types import Batch


@register(
    "ERM++",
    summary="ERM with its head warmed up and its weights averaged",
    paper="Teterwak et al., ERM++: An Improved Baseline for Domain Generalization (2023)",
    family="baseline",
    traits=Traits(averages="swa", erm_when=(("warm_up_steps", 0),)),
)
class ERMPlusPlus(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        warm_up_steps: Annotated[
            int,
            Field(
                "steps that move the head alone",
                minimum=0,
                presets={**in_long_runs(500), "domainbed-2024": At(501)},
            ),
        ] = 100
        warm_up_rate: Annotated[
            float,
            Field(
                "Adam's step size in these",
                LogUniform(1e-5, 10**-3.5),
                minimum=0,
                presets={"arrays": At(1e-3, LogUniform(10**-4.5, 10**-2.5))},
            ),
        ] = 5e-5
        average_from: Annotated[
            int,
            Field(
                "the first step whose weights are averaged",
                minimum=1,
                presets={**in_long_runs(600), "domainbed-2024": At(599)},
            ),
        ] = 120

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        head = self.adam(self.head.parameters(), lr=self.hparams.warm_up_rate)
        return {**super().make_optimizers(), "warm_up": head}

    def averaging_options(self) -> dict[str, Any]:
        return {"start": self.hparams.average_from}

    def step(self, batch: Batch) -> Logs:
        batch = self.checked(batch)
        warming_up = self.steps_done < self.hparams.warm_up_steps
        with torch.set_grad_enabled(not warming_up):  # the features stand still: no pass back through them
            features = self.features(batch.x)
        loss = F.cross_entropy(self.head(features), batch.y)
        self.descend(loss, "warm_up" if warming_up else "main")
        return {"loss": loss.detach()}
