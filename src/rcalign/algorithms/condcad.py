"""CondCAD: CAD within each class: a sample's neighbours of its class must not tell its domain.

As CAD, with the sums of B over samples of the class of sample i only:

    B = -(temperature / 0.07) mean_i log [ sum_{y_j = y_i, d_j != d_i} exp(s_ij) / sum_{y_j = y_i, j != i} exp(s_ij) ]

over the samples that have a neighbour of their class in another domain (without ``flipped``: in their own).

Paper: Ruan, Dubois, Maddison, Optimal Representations for Covariate Shift (2022). Departures: none known.
"""

from __future__ import annotations

from torch import Tensor

from rcalign.algorithms.cad import Bottleneck
from rcalign.functional.bottleneck import domain_bottleneck
from rcalign.registry import Traits, register
from rcalign.types import Batch


@register(
    "CondCAD",
    summary="a sample's nearest neighbours of its class must not tell its domain",
    paper="Ruan et al., Optimal Representations for Covariate Shift (2022)",
    family="contrastive alignment",
    traits=Traits(erm_when=(("penalty_weight", 0.0),)),
)
class CondCAD(Bottleneck):
    def bottleneck(self, features: Tensor, batch: Batch) -> Tensor:
        h = self.hparams
        return domain_bottleneck(features, batch.y, batch.domain, h.temperature, within_class=True, flipped=h.flipped)
