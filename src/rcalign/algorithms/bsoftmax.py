"""BSoftmax: train with the class prior of the sample's domain added to the logits.

With n_dc the training samples of class c in domain d (1 where there are none):

    L = (1/K) sum_d mean_{i in d} CE(g(f(x_i)) + log n_d, y_i)

Prediction uses g(f(x)) alone, which then suits classes of equal size.

Paper: Ren et al., Balanced Meta-Softmax for Long-Tailed Visual Recognition (2020), without its meta sampler.
Departure: a class missing from a domain counts as one sample (as in the public code for several domains); by the
formula its logit would be minus infinity there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rcalign.algorithms.base import Algorithm
from rcalign.functional.imbalance import log_prior
from rcalign.registry import Traits, register
from rcalign.types import Batch, StepOutput


@register(
    "BSoftmax",
    summary="cross-entropy of logits with the log class counts added",
    paper="Ren et al., Balanced Meta-Softmax for Long-Tailed Visual Recognition (2020)",
    family="long-tailed, logit prior",
    traits=Traits(needs_counts=True, row_losses=True),
)
class BSoftmax(Algorithm):
    log_prior: Tensor  # (K, C)

    def build(self) -> None:
        self.register_buffer("log_prior", log_prior(self.spec.count_matrix))

    @property
    def assumed_shares(self) -> Tensor:
        classes = self.spec.num_classes
        return torch.full((classes,), 1 / classes, dtype=torch.float64)

    def loss(self, batch: Batch) -> StepOutput:
        _, logits = self(batch.x)
        return StepOutput(self.domain_risks(logits + self.log_prior[batch.domain], batch.y, batch.sizes).mean())
