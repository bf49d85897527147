"""ReWeight: weigh each sample by the inverse frequency of its class in its domain.

With n_dc the training samples of class c in domain d, w_dc = 1 / n_dc (0 if n_dc = 0), scaled so that sum_c w_dc = C:

    L = (1/K) sum_d [ sum_{i in d} w_{d,y_i} CE_i / sum_{i in d} w_{d,y_i} ]

Paper: the customary baseline, as in Yang et al., On Multi-Domain Long-Tailed Recognition (2022). Departures: none; the
weighted mean is normalised within the batch, where other codebases divide by the number of samples.
"""

from __future__ import annotations

from torch import Tensor

from rcalign.algorithms.base import Algorithm
from rcalign.functional.imbalance import inverse_weights, weighted_cross_entropy
from rcalign.registry import Traits, register
from rcalign.types import Batch, StepOutput


@register(
    "ReWeight",
    summary="cross-entropy with inverse class frequencies as weights",
    paper="Yang et al., On Multi-Domain Long-Tailed Recognition, Imbalanced Domain Generalization and Beyond (2022)",
    family="long-tailed, loss weights",
    traits=Traits(needs_counts=True),
)
class ReWeight(Algorithm):
    class_weights: Tensor  # (K, C), rows that sum to C

    def build(self) -> None:
        self.register_buffer("class_weights", self.weights_from(self.spec.count_matrix))

    def weights_from(self, counts: Tensor) -> Tensor:
        """(K, C) training counts -> (K, C) weights."""
        return inverse_weights(counts)

    def loss(self, batch: Batch) -> StepOutput:
        _, logits = self(batch.x)
        weights = self.class_weights[batch.domain, batch.y]
        risks = weighted_cross_entropy(logits, batch.y, weights, batch.sizes, self.label_smoothing)
        return StepOutput(risks.mean())
