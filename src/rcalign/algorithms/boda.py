"""BoDA: the name under which BoDA_r stands in the domain generalization tables.

The method, its formula and its departures are those of BoDA_r (boda_r.py), trained on the source domains only. The
settings behind the published domain generalization rows are not public; hyperparameters and ranges are BoDA_r's.

Paper: Yang et al., On Multi-Domain Long-Tailed Recognition, Imbalanced Domain Generalization and Beyond (2022).
"""

from __future__ import annotations

from rcalign.algorithms.boda_r import BoDAr
from rcalign.registry import Traits, register


@register(
    "BoDA",
    summary="BoDA_r under its name in the domain generalization tables",
    paper="Yang et al., On Multi-Domain Long-Tailed Recognition, Imbalanced Domain Generalization and Beyond (2022)",
    family="long-tailed, alignment",
    traits=Traits(
        needs_counts=True,
        erm_when=(("boda_weight", 0.0), ("macro_weight", 0.0)),
        alignment=(("temperature", "temperature"),),
    ),
)
class BoDA(BoDAr):
    pass
