"""Transfer: lower the largest gap between domains that a classifier near the head can show.

h is the head, h' an adversary of the same form within a Euclidean distance ``radius`` of h (weight and bias together).
With gap(f, h') = max_d CE_d(h' f) - min_d CE_d(h' f), one step makes, in this order:

    (1) f and h descend CE_all
    (2) f descends gap_weight * gap(f, h'), h' as the last step left it
    (3) h' = h, then adversary_steps times: h' ascends gap_weight * gap(f, h') by gradient steps of size adversary_rate,
        and is put back on the ball around h where it left it

(1) and (2) use one optimizer: Adam, or plain gradient descent with ``optimizer = sgd``. Passes of the network: two
forward and backward, and a third forward for (3), whose features are constants.

Paper: Zhang et al., Quantifying and Improving Transferability in Domain Generalization (2021), Algorithm 1. Departures:
DomainBed's setting ``gda``, which its random hyperparameters always choose, gives (1) and (2) an optimizer of h' alone,
so that f and h never move: ``optimizer = published_gda``, which the draws of that preset take.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.functional.transferability import into_ball, largest_gap
from rcalign.registry import register
from rcalign.spaces import At, Choice, Field, LogUniform, Uniform
from rcalign.types import Batch


@register(
    "Transfer",
    summary="lowers the largest gap between domains that a classifier near the head can show",
    paper="Zhang et al., Quantifying and Improving Transferability in Domain Generalization (2021)",
    family="adversarial alignment",
)
class Transfer(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        gap_weight: Annotated[float, Field("weight of the gap", LogUniform(0.01, 10), minimum=0)] = 1.0
        radius: Annotated[
            float, Field("how far the adversary may be from the head (delta)", Uniform(0.1, 3.0), minimum=0)
        ] = 2.0
        adversary_steps: Annotated[int, Field("steps of the adversary in each step", Choice(1, 2, 5), minimum=0)] = 10
        adversary_rate: Annotated[
            float, Field("the adversary's learning rate", LogUniform(10**-4.5, 10**-2.5), minimum=0)
        ] = 1e-3
        optimizer: Annotated[
            str,
            Field(
                "of features and head; published_gda trains neither",
                choices=("adam", "sgd", "published_gda"),
                presets={"domainbed-2024": At(space=Choice("published_gda"))},
            ),
        ] = "adam"

    def build(self) -> None:
        self.adversary = copy.deepcopy(self.head)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        rate = self.hparams.learning_rate
        trained = [p for p in (*self.featurizer.parameters(), *self.head.parameters()) if p.requires_grad]
        if self.hparams.optimizer == "published_gda":
            return {"main": torch.optim.SGD(self.adversary.parameters(), lr=rate)}
        if self.hparams.optimizer == "sgd":
            return {"main": torch.optim.SGD(trained, lr=rate, weight_decay=self.hparams.weight_decay)}
        return {"main": self.adam(trained)}

    def step(self, batch: Batch) -> Logs:
        batch = self.begin_step(batch)
        risk = self.cross_entropy(self(batch.x)[1], batch.y)
        self.descend(risk)  # (1)
        gap = self._gap(self.features_by_domain(batch), batch)
        self.optimizer.zero_grad(
            set_to_none=True
        )  # no gradient, not a zero one: Adam's momentum must not move the head
        gap.backward()
        self.optimizer.step()  # (2)
        gap = self._train_adversary(batch, gap)
        return {"loss": risk.detach(), "gap": gap.detach()}

    def _gap(self, features: Tensor, batch: Batch) -> Tensor:
        risks = self.domain_risks(self.adversary(features), batch.y, batch.sizes)
        return self.hparams.gap_weight * largest_gap(risks)

    def _train_adversary(self, batch: Batch, gap: Tensor) -> Tensor:
        """(3); returns the weighted gap before its last step."""
        h = self.hparams
        own, of_head = list(self.adversary.parameters()), list(self.head.parameters())
        with torch.no_grad():
            for mine, centre in zip(own, of_head, strict=True):
                mine.copy_(centre)
            features = self.features_by_domain(batch) if h.adversary_steps > 0 else None
        for _ in range(h.adversary_steps):
            gap = self._gap(features, batch)  # type: ignore[arg-type]
            gradients = torch.autograd.grad(gap, own)
            with torch.no_grad():
                moved = [p + h.adversary_rate * g for p, g in zip(own, gradients, strict=True)]
                for mine, value in zip(own, into_ball(moved, of_head, h.radius), strict=True):
                    mine.copy_(value)
        return gap
