"""Mixup between domains: train on convex mixes of images from two domains.

Each step shuffles the domains and pairs each with the next, cyclic; for a pair (i, j), lam ~ Beta(alpha, alpha):

    x = lam x_i + (1 - lam) x_j    rows matched by position, the longer batch cut
    loss = (1/K) sum over the K pairs of [lam CE(x, y_i) + (1 - lam) CE(x, y_j)]

alpha = 0 means lam = 1: no mixing.

Paper: Zhang et al., mixup (2018), and Yan et al., Improve Unsupervised Domain Adaptation with Mixup Training (2020).
Departures: mixes across domains as DomainBed does; the original mixes within one shuffled batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.functional.mixing import cyclic_pairs, mix
from rcalign.registry import Traits, register
from rcalign.spaces import At, Choice, Field, LogUniform
from rcalign.types import Batch, StepOutput


@register(
    "Mixup",
    summary="trains on mixes of images from two domains",
    paper="Zhang et al., mixup: Beyond Empirical Risk Minimization (2018)",
    family="augmentation",
    traits=Traits(erm_when=(("mixup_alpha", 0.0),)),
)
class Mixup(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        mixup_alpha: Annotated[
            float,
            Field(
                "Beta parameter of the mix (0: none)",
                LogUniform(0.1, 10),
                minimum=0,
                presets={"domainbed": At(space=Choice(0.1)), "mdlt": At(space=Choice(0.1))},
            ),
        ] = 0.2

    def draw_pairs(self) -> list[tuple[int, int, float]]:
        """The random part of a step: (domain i, domain j, lam), K of them."""
        alpha = self.hparams.mixup_alpha
        pairs = cyclic_pairs([int(k) for k in self.rng.permutation(self.spec.num_domains)])
        return [(i, j, float(self.rng.beta(alpha, alpha)) if alpha > 0 else 1.0) for i, j in pairs]

    def loss(self, batch: Batch) -> StepOutput:
        x, y = batch.split(batch.x), batch.split(batch.y)
        pairs = self.draw_pairs()
        mixed = Batch.from_domains([(mix(x[i], x[j], lam), y[i][: len(y[j])]) for i, j, lam in pairs])
        scores = mixed.split(self.head(self.features_by_domain(mixed)))
        losses = [
            lam * self.cross_entropy(s, y[i][: len(s)]) + (1 - lam) * self.cross_entropy(s, y[j][: len(s)])
            for s, (i, j, lam) in zip(scores, pairs, strict=True)
        ]
        return StepOutput(torch.stack(losses).mean())
