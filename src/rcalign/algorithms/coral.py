"""CORAL: match the means and covariances of features between domains.

Objective over K domains, CE_d the mean cross-entropy, mu_d and S_d (with 1/(n - 1)) mean and covariance of domain d's
features in R^h:

    (1/K) sum_d CE_d + w * mean over pairs i < j of [ (1/h) ||mu_i - mu_j||^2 + (1/h^2) ||S_i - S_j||_F^2 ]

Unlabelled rows of a target domain (unsupervised adaptation) are one domain more in the pairs, not in the first term.

Paper: Sun and Saenko, Deep CORAL (2016). Departures: the mean term and the factor 1/h^2 are DomainBed's; the paper has
the covariance term only, with 1/(4 h^2). A domain of one row is left out of the covariance term (DomainBed: not a
number).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.functional.moments import moment_gap
from rcalign.registry import Traits, register
from rcalign.spaces import Field, LogUniform
from rcalign.types import Batch, StepOutput


@register(
    "CORAL",
    summary="matches means and covariances of features between domains",
    paper="Sun and Saenko, Deep CORAL: Correlation Alignment for Deep Domain Adaptation (2016)",
    family="feature alignment",
    traits=Traits(erm_when=(("penalty_weight", 0.0),), adapts=True),
)
class CORAL(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        penalty_weight: Annotated[float, Field("weight of the moments' distance", LogUniform(0.1, 10), minimum=0)] = 1.0

    def loss(self, batch: Batch) -> StepOutput:
        features = self.features_by_domain(batch)
        risk = self.domain_risks(self.head(features[: len(batch)]), batch.y, batch.sizes).mean()
        penalty = moment_gap(torch.split(features, [*batch.sizes, *batch.unlabelled_sizes]))
        return StepOutput(risk + self.hparams.penalty_weight * penalty, {"penalty": penalty.detach()})
