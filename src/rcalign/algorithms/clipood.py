"""CLIPood: fine-tune CLIP's image tower towards its own text, with margins by meaning.

With z_ic the logit of sample i and class c, T_c the class vectors (rows of the head, length one) and s their scale (the
mean length of the head's rows):

    L = (1/N) sum_i CE(z_i + margin * s * (1 - T_{y_i} . T_c) over c, y_i)

so classes whose text is far from the label's must stay farther away. The class vectors are text and are not trained.
What is kept is the Beta moving average of all weights from the zero-shot ones on (``training.averaging.BetaAverage``).
The optimizer is AdamW.

Paper: Shu et al., CLIPood: Generalizing CLIP to Out-of-Distributions (2023). Departures: the cosine schedule that
the paper adds is an option of any run (``schedule = cosine``). ``train_head`` trains the class vectors too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.registry import Traits, register
from rcalign.spaces import At, Choice, Field, LogUniform, Uniform
from rcalign.types import Batch, StepOutput


@register(
    "CLIPood",
    summary="fine-tunes CLIP's images towards its text, with margins by meaning and a Beta moving average",
    paper="Shu et al., CLIPood: Generalizing CLIP to Out-of-Distributions (2023)",
    family="vision and language",
    traits=Traits(averages="beta", erm_when=(("margin", 0.0), ("train_head", True), ("weight_decay", 0.0))),
)
class CLIPood(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        learning_rate: Annotated[
            float,
            Field(
                "AdamW's step size",
                LogUniform(1e-6, 1e-4),
                minimum=0,
                presets={"arrays": At(1e-3, LogUniform(10**-4.5, 10**-2.5))},
            ),
        ] = 5e-6
        weight_decay: Annotated[
            float,
            Field(
                "AdamW's weight decay",
                Choice(0.1),
                minimum=0,
                presets={"arrays": At(0.0, Choice(0.0))},
            ),
        ] = 0.1
        margin: Annotated[float, Field("largest margin, for classes at right angles", Uniform(0, 0.6), minimum=0)] = 0.3
        beta: Annotated[float, Field("of the moving average; below 1 the ends count most", minimum=1e-3)] = 0.5
        train_head: Annotated[bool, Field("train the class vectors too")] = False

    def build(self) -> None:
        if not self.hparams.train_head:
            self.head.requires_grad_(False)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"main": self.adam(self.parameters(), decoupled_weight_decay=True)}

    def averaging_options(self) -> dict[str, Any]:
        return {"beta": self.hparams.beta}

    def loss(self, batch: Batch) -> StepOutput:
        _, logits = self(batch.x)
        return StepOutput(self.cross_entropy(logits + self.hparams.margin * self._distances()[batch.y], batch.y))

    def _distances(self) -> Tensor:
        """s (1 - T_a . T_b) of any two classes: (C, C)."""
        weight = self.head.weight.detach()
        vectors = F.normalize(weight, dim=1)
        return weight.norm(dim=1).mean() * (1 - vectors @ vectors.T)
