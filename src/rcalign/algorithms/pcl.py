"""PCL: contrast samples with class proxies, the rows of the classifier, in place of other samples.

Encoder e = enc(f(x)) (see ``encoded``), logits V e without bias, projection p = A e + a, proxies w_c = B V_c:

    L = CE_all - contrast_weight * mean_i log [ exp(s w_y.p_i) / D_i ]
    D_i = sum_c exp(s w_c.p_i) + sum_{j: y_j != y_i} exp(s p_i.p_j)

p and w normalised, s = scale; gradient to everything. contrast_weight = 0 is ERM with this encoder.

Paper: Yao et al., PCL: Proxy-based Contrastive Learning for Domain Generalization (2022). Departures: the denominator
is the paper's as an issue of its repository shows it; ``form = "published"`` is the repository's own loss, which leaves
out the other classes' proxies and hands the positives to the wrong rows. One projection layer everywhere (OfficeHome
has two there). Published figures appear to include SWAD (``--average swad``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from rcalign.algorithms.base import Logs
from rcalign.algorithms.encoded import Encoded, EncodedHparams
from rcalign.functional.contrastive import proxy_contrast
from rcalign.registry import register
from rcalign.spaces import Choice, Field
from rcalign.types import Batch, StepOutput


@register(
    "PCL",
    summary="contrasts samples with one proxy for each class",
    paper="Yao et al., PCL: Proxy-based Contrastive Learning for Domain Generalization (2022)",
    family="contrastive",
)
class PCL(Encoded):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(EncodedHparams):
        scale: Annotated[float, Field("sharpness of the contrast", Choice(8.0, 12.0, 16.0), minimum=0)] = 12.0
        contrast_weight: Annotated[float, Field("weight of the contrast", Choice(0.5, 1.0, 2.0), minimum=0)] = 1.0
        form: Annotated[
            str, Field("the paper's loss, or the public code's with its defects", choices=("paper", "published"))
        ] = "paper"

    head_bias = False

    def build(self) -> None:
        super().build()
        self.project = nn.Linear(self.hparams.width, self.hparams.width)
        self.project_proxies = nn.Linear(self.hparams.width, self.hparams.width, bias=False)

    def loss(self, batch: Batch) -> StepOutput:
        features, logits = self(batch.x)
        ce = self.cross_entropy(logits, batch.y)
        contrast = proxy_contrast(
            self.project(features),
            self.project_proxies(self.head.weight),
            batch.y,
            self.hparams.scale,
            published=self.hparams.form == "published",
        )
        logs: Logs = {"cross_entropy": ce.detach(), "contrast": contrast.detach()}
        return StepOutput(ce + self.hparams.contrast_weight * contrast, logs)
