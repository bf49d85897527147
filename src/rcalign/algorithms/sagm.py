"""SAGM: descend the loss and the perturbed loss where their gradients agree.

With g = grad CE_all(theta) as a constant, the optimizer receives

    (1/2) [ g + grad CE_all at theta + (radius / (||g|| + 1e-12) - alpha) g ]

||g|| over all trained parameters. Two passes over the same batch. radius = alpha = 0 is ERM.

Paper: Wang et al., Sharpness-Aware Gradient Matching for Domain Generalization (2023); the factor 1/2 is the public
code's. Departures: none known (the paper's equations could not be read); batch-norm statistics move in the first pass
only. The public code's search range for alpha contradicts its own README, whose values are used here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rcalign.algorithms.base import BaseHparams
from rcalign.algorithms.sharpness_aware import SharpnessAware
from rcalign.functional.sharpness import matching_shift
from rcalign.registry import Traits, register
from rcalign.spaces import Choice, Field


@register(
    "SAGM",
    summary="minimises the loss and the loss nearby uphill, and the angle between their gradients",
    paper="Wang et al., Sharpness-Aware Gradient Matching for Domain Generalization (2023)",
    family="flat minima",
    traits=Traits(erm_when=(("radius", 0.0), ("alpha", 0.0))),
)
class SAGM(SharpnessAware):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        radius: Annotated[
            float, Field("how far uphill the perturbed loss lies (rho)", Choice(0.01, 0.02, 0.05, 0.1), minimum=0)
        ] = 0.05
        alpha: Annotated[float, Field("how strongly the two gradients are matched", Choice(5e-4, 1e-3), minimum=0)] = (
            1e-3
        )

    keeps_first: ClassVar[bool] = True

    def shift(self, norm: float) -> float:
        return matching_shift(norm, self.hparams.radius, self.hparams.alpha)
