"""SANDMask: follow the gradient as far as the domains' gradients agree in sign and in size.

With g_d the gradient of domain d's mean cross-entropy, for each parameter tensor entry by entry, var with 1/(K - 1):

    m = max(0, tanh(sharpness / var_d(g_d) * (|(1/K) sum_d sign(g_d)| - threshold)))
    gradient = m * (1/K) sum_d g_d / (1e-10 + mean of m)

Without variance (one domain) m is 1 above the threshold. One pass for each domain.

Paper: Shahtalebi et al., SAND-mask: An Enhanced Gradient Masking Strategy for the Discovery of Invariances in Domain
Generalization (2021). Departures: the default threshold is 0.5, the middle of the searched range. DomainBed's is 1,
which no agreement exceeds: the gradient is 0 and nothing is learned (preset ``domainbed-2024`` only).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from rcalign.algorithms.andmask import ANDMask, MaskHparams
from rcalign.functional.agreement import smoothly_agreed
from rcalign.registry import register
from rcalign.spaces import At, Field, LogUniform, Uniform


@register(
    "SANDMask",
    summary="follows the gradient as far as the domains' gradients agree in sign and size",
    paper="Shahtalebi et al., SAND-mask: An Enhanced Gradient Masking Strategy for the Discovery of Invariances in "
    "Domain Generalization (2021)",
    family="gradient agreement",
)
class SANDMask(ANDMask):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(MaskHparams):
        threshold: Annotated[
            float,
            Field(
                "|mean sign| of the domains' gradients from which they are followed (tau)",
                Uniform(0, 1),
                minimum=0,
                maximum=1,
                presets={"domainbed-2024": At(1.0)},
            ),
        ] = 0.5
        sharpness: Annotated[float, Field("how soon agreement counts fully (k)", LogUniform(1e-3, 1e5), minimum=0)] = (
            10.0
        )

    def masked(self, gradients: Tensor) -> Tensor:
        return smoothly_agreed(gradients, self.hparams.threshold, self.hparams.sharpness)
