"""CausIRL_MMD: two random mixtures of the domains must look alike by a kernel two-sample distance.

As CausIRL_CORAL, with X the features before the cuts and Y those after them:

    (1/K) sum_d CE_d + w [ mean k(X, X) + mean k(Y, Y) - 2 mean k(X, Y) ]
    k(a, b) = sum over g = 0.001, 0.01, ..., 1000 of exp(-g ||a - b||^2)

``estimator`` as in MMD: ``biased`` compares a sample also with itself, ``unbiased`` does not.

Paper: Chevalley et al., Invariant Causal Mechanisms through Distribution Matching (2022). Departures: the default is
the unbiased estimate, which does not pull small batches together (preset ``domainbed-2024``: the biased one).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rcalign.algorithms.causirl_coral import CausIRLCORAL, MixtureHparams
from rcalign.functional.moments import kernel_gap
from rcalign.registry import Traits, register
from rcalign.spaces import At, Field


@register(
    "CausIRL_MMD",
    summary="matches distributions of features between random mixtures of the domains by a Gaussian kernel",
    paper="Chevalley et al., Invariant Causal Mechanisms through Distribution Matching (2022)",
    family="feature alignment",
    traits=Traits(erm_when=(("penalty_weight", 0.0),)),
)
class CausIRLMMD(CausIRLCORAL):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(MixtureHparams):
        estimator: Annotated[
            str,
            Field(
                "of the kernel distance (see above)",
                choices=("unbiased", "biased"),
                presets={"domainbed-2024": At("biased")},
            ),
        ] = "unbiased"

    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        sizes, unbiased = (len(first), len(second)), self.hparams.estimator == "unbiased"
        return kernel_gap(torch.cat([first, second]), sizes, unbiased=unbiased)
