"""ReSamp: plain training on class-balanced batches.

A sample of domain d and class c is drawn with probability 1 / (n_dc * number of classes present in d), with
replacement, so that every class present in a domain is as likely as the next; the loss is ERM's mean cross-entropy:

    L = (1/N) sum_i CE(g(f(x_i)), y_i)

Paper: the customary baseline, as in Yang et al., On Multi-Domain Long-Tailed Recognition (2022). Departures: none. The
drawing is the loader's; this class asks for it (``balanced_sampling``).
"""

from __future__ import annotations

from rcalign.algorithms.base import Algorithm
from rcalign.registry import Traits, register
from rcalign.types import Batch, StepOutput


@register(
    "ReSamp",
    summary="plain training on batches with all classes of a domain equally likely",
    paper="Yang et al., On Multi-Domain Long-Tailed Recognition, Imbalanced Domain Generalization and Beyond (2022)",
    family="long-tailed, sampling",
    traits=Traits(needs_counts=True, balanced_sampling=True, erm_when=(), row_losses=True),
)
class ReSamp(Algorithm):
    def loss(self, batch: Batch) -> StepOutput:
        _, logits = self(batch.x)
        return StepOutput(self.cross_entropy(logits, batch.y))
