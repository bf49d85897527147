"""MTL (marginal transfer learning): show the classifier where its domain's features lie.

With z = f(x), m_d the mean of z over domain d's batch, and one embedding E_d in R^h kept for each domain:

    e_d = a m_d + (1 - a) E_d,    logits = W [z, e_d] + b,    loss = sum_d CE_d,    then E_d <- e_d without gradient

a is ``batch_share``. The gradient flows through m_d. In the first step e_d = m_d. A prediction takes for e the mean of
z over the rows predicted together: it depends on them.

Paper: Blanchard et al., Domain Generalization by Marginal Transfer Learning (2021). Departures: a mean embedding of
deep features instead of a kernel one (as DomainBed). DomainBed and BoDA overwrite e with normal noise by mistake, also
when predicting: ``published_noise`` repeats that, for their tables only. ``start_at_zero``: E starts at 0 and is mixed
in at once, as published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.registry import Traits, register
from rcalign.spaces import At, Choice, Field
from rcalign.types import Batch, StepOutput

PUBLISHED = {name: At(True) for name in ("domainbed", "domainbed-2024", "mdlt")}


@register(
    "MTL",
    summary="gives the classifier the mean feature of the sample's domain",
    paper="Blanchard et al., Domain Generalization by Marginal Transfer Learning (2021)",
    family="test-batch adaptation",
    traits=Traits(batch_dependent=True),
)
class MTL(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        batch_share: Annotated[
            float,
            Field("share of the current batch in the embedding", Choice(0.5, 0.9, 0.99, 1.0), minimum=0, maximum=1),
        ] = 0.99
        start_at_zero: Annotated[bool, Field("embeddings start at zero, not at the first mean", presets=PUBLISHED)] = (
            False
        )
        published_noise: Annotated[bool, Field("the published mistake: noise for embedding", presets=PUBLISHED)] = False

    def build(self) -> None:
        self.head = nn.Linear(2 * self.features_dim, self.spec.num_classes)
        self.register_buffer("embeddings", torch.zeros(self.spec.num_domains, self.features_dim))

    def loss(self, batch: Batch) -> StepOutput:
        features = self.features_by_domain(batch)
        means = torch.stack([part.mean(0) for part in batch.split(features)])
        embeddings = means
        if self.steps_done > 0 or self.hparams.start_at_zero:
            embeddings = self.hparams.batch_share * means + (1 - self.hparams.batch_share) * self.embeddings
        self.embeddings.copy_(embeddings.detach())
        logits = self._logits(features, embeddings[batch.domain], self.rng)
        return StepOutput(self.domain_risks(logits, batch.y, batch.sizes).sum())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x)
        # a generator of its own: predicting draws nothing from the training's stream
        return features, self._logits(features, features.mean(0).expand_as(features), np.random.default_rng(0))

    def _logits(self, features: Tensor, embeddings: Tensor, rng: np.random.Generator) -> Tensor:
        if self.hparams.published_noise:
            embeddings = self.draw_noise(features, rng)
        return self.head(torch.cat([features, embeddings], dim=1))

    def draw_noise(self, features: Tensor, rng: np.random.Generator) -> Tensor:
        """The random part of a step under ``published_noise``: (n, h), like the features."""
        return torch.from_numpy(rng.standard_normal(tuple(features.shape))).to(features)

    embeddings: Tensor
