"""CBLoss: weigh each sample by the inverse *effective number* of samples of its class in its domain.

With n_dc the training samples of class c in domain d, w_dc = (1 - beta) / (1 - beta^n_dc) (0 if n_dc = 0), scaled so
that sum_c w_dc = C; the loss is ReWeight's: the mean over domains of each domain's weighted mean cross-entropy.
beta = 0 gives equal weights, beta -> 1 gives ReWeight.

Paper: Cui et al., Class-Balanced Loss Based on Effective Number of Samples (2019), its softmax form. Departure from the
public code for several domains: it takes a class for missing where 1 - beta^n rounds to one, which is also so for the
largest classes (n >= 3,725 at beta = 0.99) and gives them weight zero; here a class is missing if n = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from rcalign.algorithms.base import BaseHparams
from rcalign.algorithms.reweight import ReWeight
from rcalign.functional.imbalance import effective_number_weights
from rcalign.registry import Traits, register
from rcalign.spaces import Field, LogUniform, OneMinus


@register(
    "CBLoss",
    summary="cross-entropy weighted by the effective number of samples of a class",
    paper="Cui et al., Class-Balanced Loss Based on Effective Number of Samples (2019)",
    family="long-tailed, loss weights",
    traits=Traits(needs_counts=True, erm_when=(("beta", 0.0),)),
)
class CBLoss(ReWeight):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        beta: Annotated[
            float,
            Field(
                "how far weights go from equal (0) to inverse frequency (1)",
                OneMinus(LogUniform(1e-5, 1e-2)),
                minimum=0,
                maximum=1 - 1e-9,
            ),
        ] = 0.9999

    def weights_from(self, counts: Tensor) -> Tensor:
        return effective_number_weights(counts, self.hparams.beta)
