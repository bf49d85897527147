"""ERM++: ERM with what is known to help: the head warmed up, the weights averaged, the rate lowered on a plateau.

The loss is ERM's, (1/N) sum_i CE(g(f(x_i)), y_i). The first ``warm_up_steps`` steps move the head alone, with an Adam
of its own at the rate ``warm_up_rate``; from then on another Adam moves everything. What is evaluated and kept is the
mean of the weights after the steps ``average_from`` and later (``training.averaging.SWA``). After the warm-up, with
``lower_rate``, the learning rate falls to a tenth at the second evaluation in a row whose validation loss is not below
(1 - 1e-4) times the lowest so far; then the counting begins anew.

Paper: Teterwak et al., ERM++: An Improved Baseline for Domain Generalization (2023). The paper's parts that belong to
training and data are not in here: the pretrained weights and trained batch norm (preset ``domainbed-2024``), and the
second training on training and validation data together (option ``train_on_validation``). Departures: the validation
loss is that of the network, the paper's that of the averaged one. DomainBed has the rule and never calls it (preset
``domainbed-2024``). Batch-norm statistics are recomputed for the averaged weights (DomainBed averages them too, and
passes each batch through the averaged network). DomainBed's 500 warm-up steps are 501, and its average begins one step
before the step 600 that it names: both counted here as they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from rcalign.algorithms.annealing import in_long_runs
from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.registry import Traits, register
from rcalign.spaces import At, Field, LogUniform
from rcalign.types import Batch

PATIENCE, THRESHOLD, FACTOR = 1, 1e-4, 0.1  # of the plateau: evaluations that may fail, least gain, what follows


@register(
    "ERM++",
    summary="ERM with its head warmed up, its weights averaged, its rate lowered on a plateau",
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
        lower_rate: Annotated[
            bool,
            Field(
                "lower the learning rate where the validation loss stands still",
                presets={"domainbed-2024": At(False)},
            ),
        ] = True

    def build(self) -> None:
        self._lowest: float | None = None  # validation loss so far
        self._without = 0  # evaluations since

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        head = self.adam(self.head.parameters(), lr=self.hparams.warm_up_rate)
        return {**super().make_optimizers(), "warm_up": head}

    def averaging_options(self) -> dict[str, Any]:
        return {"start": self.hparams.average_from}

    def observe(self, validation_loss: float) -> None:
        if not self.hparams.lower_rate or self.steps_done < self.hparams.warm_up_steps:
            return
        if self._lowest is None or validation_loss < (1 - THRESHOLD) * self._lowest:
            self._lowest, self._without = validation_loss, 0
            return
        self._without += 1
        if self._without > PATIENCE:
            self._without = 0
            for group in self.optimizer.param_groups:
                group["lr"] *= FACTOR

    def more_state(self) -> dict[str, Any]:
        return {"lowest": self._lowest, "without": self._without}

    def load_more_state(self, state: Mapping[str, Any]) -> None:
        self._lowest, self._without = state["lowest"], int(state["without"])

    def step(self, batch: Batch) -> Logs:
        batch = self.begin_step(batch)
        warming_up = self.steps_done < self.hparams.warm_up_steps
        with torch.set_grad_enabled(not warming_up):  # the features stand still: no pass back through them
            features = self.features(batch.x)
        loss = self.cross_entropy(self.head(features), batch.y)
        self.descend(loss, "warm_up" if warming_up else "main")
        return {"loss": loss.detach()}
