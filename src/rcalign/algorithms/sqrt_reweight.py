"""SqrtReWeight: ReWeight with the inverse *square root* of the class frequency.

With n_dc the training samples of class c in domain d, w_dc = n_dc^(-1/2) (0 if n_dc = 0), scaled so that
sum_c w_dc = C; the loss is ReWeight's: the mean over domains of each domain's weighted mean cross-entropy.

Paper: as ReWeight. Departures: none.
"""

from __future__ import annotations

from torch import Tensor

from rcalign.algorithms.reweight import ReWeight
from rcalign.functional.imbalance import inverse_weights
from rcalign.registry import Traits, register


@register(
    "SqrtReWeight",
    summary="cross-entropy with inverse square roots of class frequencies as weights",
    paper="Yang et al., On Multi-Domain Long-Tailed Recognition, Imbalanced Domain Generalization and Beyond (2022)",
    family="long-tailed, loss weights",
    traits=Traits(needs_counts=True),
)
class SqrtReWeight(ReWeight):
    def weights_from(self, counts: Tensor) -> Tensor:
        return inverse_weights(counts, power=0.5)
