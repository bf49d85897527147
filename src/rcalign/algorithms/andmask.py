"""ANDMask: follow the gradient only where the domains' gradients have the same sign.

With g_d the gradient of domain d's mean cross-entropy, for each parameter tensor entry by entry:

    m = 1 where |(1/K) sum_d sign(g_d)| >= threshold, else 0;    gradient = m * (1/K) sum_d g_d / (1e-10 + mean of m)

threshold = 1 keeps what all domains agree on; 0 keeps everything. One pass for each domain.

Paper: Parascandolo et al., Learning Explanations that Are Hard to Vary (2021). Departures: none known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.algorithms.domain_gradients import domain_gradients
from rcalign.functional.agreement import agreed
from rcalign.registry import Traits, register
from rcalign.spaces import Field, Uniform
from rcalign.types import Batch


@dataclass(frozen=True, kw_only=True)
class MaskHparams(BaseHparams):
    threshold: Annotated[
        float, Field("least |mean sign| of the domains' gradients (tau)", Uniform(0.5, 1), minimum=0, maximum=1)
    ] = 1.0


@register(
    "ANDMask",
    summary="follows the gradient only where the domains' gradients have the same sign",
    paper="Parascandolo et al., Learning Explanations that Are Hard to Vary (2021)",
    family="gradient agreement",
    traits=Traits(erm_when=(("threshold", 0.0),)),
)
class ANDMask(Algorithm):
    Hparams = MaskHparams

    def step(self, batch: Batch) -> Logs:
        risks, gradients = domain_gradients(self, self.begin_step(batch))
        self.optimizer.zero_grad(set_to_none=True)
        for parameter, each in gradients.items():
            parameter.grad = self.masked(torch.stack(each))
        self.optimizer.step()
        self.steps_done += 1
        return {"loss": risks.detach().mean()}

    def masked(self, gradients: Tensor) -> Tensor:
        """The gradient that is followed, of a parameter's K gradients (K, ...)."""
        return agreed(gradients, self.hparams.threshold)
