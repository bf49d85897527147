"""BoDA_r,c: BoDA_r for the representation, then CRT for the classifier.

Stage one is a run of BoDA_r. Stage two is CRT's: featurizer frozen, a new random head, Adam on the head alone,
batches in which the classes of a domain are equally likely, L = (1/N) sum_i CE(g(f(x_i)), y_i). Given stage one's
weights it depends on none of BoDA_r's hyperparameters.

Paper: Yang et al., On Multi-Domain Long-Tailed Recognition, Imbalanced Domain Generalization and Beyond (2022).
Departures: those of BoDA_r and CRT.
"""

from __future__ import annotations

from rcalign.algorithms.crt import CRT
from rcalign.registry import Traits, register


@register(
    "BoDA_r,c",
    summary="a new head trained on class-balanced batches over BoDA_r's frozen features",
    paper="Yang et al., On Multi-Domain Long-Tailed Recognition, Imbalanced Domain Generalization and Beyond (2022)",
    family="long-tailed, two stages",
    traits=Traits(needs_counts=True, balanced_sampling=True, stage_one="BoDA_r"),
)
class BoDArc(CRT):
    pass
