"""CausIRL_CORAL: two random mixtures of the domains must look alike by their means and covariances.

Every domain's batch is cut at a random place, k_d uniform in {0, ..., n_d - 1}. The rows before the cuts, of all
domains together, are one sample of features, the rows after them the other, so that both mix the domains in random
shares. With mu and S (1/(n - 1)) their means and covariances in R^h:

    (1/K) sum_d CE_d + w [ (1/h) ||mu_1 - mu_2||^2 + (1/h^2) ||S_1 - S_2||_F^2 ]

A part with fewer than two rows: no penalty in that step.

Paper: Chevalley et al., Invariant Causal Mechanisms through Distribution Matching (2022). Departures: none known; the
distance is DomainBed's form of CORAL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.functional.moments import cut_apart, moment_gap
from rcalign.registry import Traits, register
from rcalign.spaces import Field, LogUniform
from rcalign.types import Batch, StepOutput


@dataclass(frozen=True, kw_only=True)
class MixtureHparams(BaseHparams):
    penalty_weight: Annotated[float, Field("weight of the mixtures' distance", LogUniform(0.1, 10), minimum=0)] = 1.0


@register(
    "CausIRL_CORAL",
    summary="matches means and covariances of features between random mixtures of the domains",
    paper="Chevalley et al., Invariant Causal Mechanisms through Distribution Matching (2022)",
    family="feature alignment",
    traits=Traits(erm_when=(("penalty_weight", 0.0),)),
)
class CausIRLCORAL(Algorithm):
    Hparams = MixtureHparams

    def loss(self, batch: Batch) -> StepOutput:
        features = self.features_by_domain(batch)
        risk = self.domain_risks(self.head(features), batch.y, batch.sizes).mean()
        first, second = cut_apart(features, batch.sizes, self.draw_cuts(batch.sizes))
        enough = len(first) > 1 and len(second) > 1
        penalty = self.distance(first, second) if enough else features.new_zeros(())
        return StepOutput(risk + self.hparams.penalty_weight * penalty, {"penalty": penalty.detach()})

    def draw_cuts(self, sizes: Sequence[int]) -> list[int]:
        """For each domain how many of its rows go to the first mixture."""
        return self.rng.integers(sizes).tolist()

    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        """Between two samples of features (n, h), (m, h)."""
        return moment_gap([first, second])
