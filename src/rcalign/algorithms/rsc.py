"""RSC: mute the features that the correct answer leans on most, and train on the rest.

With features z = f(x) in R^h, head g, and G_i = d(logit of the label) / dz_i:

    M_ij = 1[G_ij < the (1 - feature_drop) quantile of G_i]
    change_i = softmax(g(z_i))_{y_i} - softmax(g(z_i M_i))_{y_i}
    M_i <- 1 for the samples whose change is below the (1 - sample_drop) quantile of all changes
    loss = (1/N) sum_i CE(g(z_i M_i), y_i),    masks without gradient

Paper: Huang et al., Self-Challenging Improves Cross-Domain Generalization (2020). Departures: masks over the final
features, as DomainBed; the paper masks spatial maps or channels. With a linear head G_i is the label's row of weights,
so the first mask depends on the label alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.functional.masking import challenged, dominant_kept
from rcalign.registry import register
from rcalign.spaces import Field, Uniform
from rcalign.types import Batch, StepOutput


@register(
    "RSC",
    summary="mutes the features that the correct answer leans on most",
    paper="Huang et al., Self-Challenging Improves Cross-Domain Generalization (2020)",
    family="feature masking",
)
class RSC(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        feature_drop: Annotated[
            float, Field("share of a sample's features that is muted", Uniform(0, 0.5), minimum=0, maximum=1)
        ] = 1 / 3
        sample_drop: Annotated[
            float, Field("share of the samples that it happens to", Uniform(0, 0.5), minimum=0, maximum=1)
        ] = 1 / 3

    def loss(self, batch: Batch) -> StepOutput:
        features = self.features(batch.x)
        kept = self.mask(features.detach(), batch.y)
        logs: dict[str, Tensor | float] = {"muted": 1 - kept.float().mean()}
        return StepOutput(self.cross_entropy(self.head(features * kept), batch.y), logs)

    def mask(self, features: Tensor, y: Tensor) -> Tensor:
        """The entries that stay: (n, h), (n,) -> (n, h) bool."""
        leaf = features.requires_grad_()
        logits = self.head(leaf)
        (gradients,) = torch.autograd.grad(logits.gather(1, y[:, None]).sum(), leaf)
        with torch.no_grad():
            kept = dominant_kept(gradients, self.hparams.feature_drop)
            hit = challenged(logits, self.head(leaf * kept), y, self.hparams.sample_drop)
        return kept | ~hit[:, None]
