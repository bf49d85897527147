"""IRM (IRMv1): the same classifier should be optimal in every domain.

Objective over K domains, CE_d the mean cross-entropy of domain d and s a factor on the logits, fixed at 1:

    (1/K) sum_d CE_d + w_t (1/K) sum_d P_d,    P_d = [d/ds CE(even rows of d)] * [d/ds CE(odd rows of d)]

w_t = 1 for t < anneal_steps, penalty_weight from then on, where Adam's state is also reset. P_d estimates a square
without bias and may be negative; it is computed in closed form (``functional.invariance``).

Paper: Arjovsky et al., Invariant Risk Minimization (2019). Departures: as DomainBed, two halves instead of one squared
gradient, and a reset of Adam instead of dividing the loss by a large weight. A domain with one row: its derivative
squared (DomainBed: not a number).
"""

from __future__ import annotations

from rcalign.algorithms.annealing import AnnealedPenalty
from rcalign.functional.invariance import invariance_penalty
from rcalign.registry import Traits, register
from rcalign.types import Batch, StepOutput


@register(
    "IRM",
    summary="penalises classifiers that some domain would rescale",
    paper="Arjovsky et al., Invariant Risk Minimization (2019)",
    family="invariance penalty",
    traits=Traits(erm_when=(("penalty_weight", 0.0), ("anneal_steps", 0))),
)
class IRM(AnnealedPenalty):
    def loss(self, batch: Batch) -> StepOutput:
        _, logits = self(batch.x)
        risk = self.domain_risks(logits, batch.y, batch.sizes).mean()
        return self.penalised(risk, invariance_penalty(logits, batch.y, batch.sizes).mean())
