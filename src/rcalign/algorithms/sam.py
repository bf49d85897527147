"""SAM (sharpness-aware minimisation): descend the largest loss nearby.

With g = grad CE_all(theta) as a constant, the optimizer receives

    grad CE_all at theta + radius * g / (||g|| + 1e-12)

||g|| over all trained parameters. Two passes over the same batch. radius = 0 is ERM.

Paper: Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization (2021). Departures: none;
batch-norm statistics move in the first pass only.
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
    "SAM",
    summary="descends the largest loss nearby",
    paper="Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization (2021)",
    family="flat minima",
    traits=Traits(erm_when=(("radius", 0.0),)),
)
class SAM(SharpnessAware):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        radius: Annotated[
            float, Field("how far uphill the loss is taken (rho)", Choice(0.01, 0.02, 0.05, 0.1), minimum=0)
        ] = 0.05

    keeps_first: ClassVar[bool] = False

    def shift(self, norm: float) -> float:
        return matching_shift(norm, self.hparams.radius, alpha=0.0)
