"""BoDA_r: pull each feature towards its class's centroids in other domains, calibrated by how common each pair is.

z_i = f(x_i) of domain d and class c; N_i = n_dc its pair's training samples; mu_p, N_p centroid and samples of pair p:

    s(i, p) = -||z_i - mu_p|| (N_p / N_i)^nu / (N_i temperature)
    A = mean over (i, p), p = class of i in another domain, of [ log sum_{q not i's own pair} exp s(i, q) - s(i, p) ]
    M = mean over pairs of domains of (1/h) ||m_a - m_b||^2 + (1/h^2) ||S_a - S_b||^2   (batch means, covariances)
    L = (1/K) sum_d mean_{i in d} CE + macro_weight M + boda_weight A

Centroids are constants: every ``refresh_every`` steps the mean features of the whole training set in evaluation mode,
new = (1 - momentum) current + momentum old (the first time: current). A enters at max(start_step, first refresh).

Paper: Yang et al., On Multi-Domain Long-Tailed Recognition, Imbalanced Domain Generalization and Beyond (2022).
Departures from the public code: before the first refresh it uses all-zero centroids, here A waits; no positives give
zero, there 0/0; log-sum-exp does not underflow; the pass over the training set has no augmentation. Like that code and
unlike the paper's formula, the mean runs over (sample, positive) pairs, and M is there. Its DomainNet settings:
start_step 3000, refresh_every 2000.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.errors import InputError
from rcalign.functional.boda_loss import blend, boda_loss, euclidean_distances, pair_means
from rcalign.functional.moments import moment_gap
from rcalign.registry import Traits, register
from rcalign.spaces import Choice, Field, IntUniform, LogUniform, Uniform
from rcalign.types import Batch, StepOutput


@register(
    "BoDA_r",
    summary="alignment to domain-class centroids, calibrated by sample counts",
    paper="Yang et al., On Multi-Domain Long-Tailed Recognition, Imbalanced Domain Generalization and Beyond (2022)",
    family="long-tailed, alignment",
    traits=Traits(
        needs_counts=True,
        erm_when=(("boda_weight", 0.0), ("macro_weight", 0.0)),
        alignment=(("temperature", "temperature"),),
    ),
)
class BoDAr(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        boda_weight: Annotated[float, Field("weight of the alignment A", LogUniform(1e-2, 10**-0.5), minimum=0)] = 0.1
        macro_weight: Annotated[float, Field("weight of the moment term M", LogUniform(0.1, 10), minimum=0)] = 1.0
        nu: Annotated[float, Field("calibration by counts (0: none)", LogUniform(10**-0.5, 1), minimum=0)] = 0.5
        temperature: Annotated[float, Field("temperature of the alignment", LogUniform(0.1, 10**0.5), minimum=1e-6)] = (
            1.0
        )
        momentum: Annotated[
            float, Field("share of the old centroids at a refresh", Uniform(0, 0.4), minimum=0, maximum=1)
        ] = 0.2
        start_step: Annotated[int, Field("step at which A enters", Choice(300, 400, 500, 600), minimum=0)] = 500
        refresh_every: Annotated[int, Field("steps between two refreshes", IntUniform(100, 149), minimum=1)] = 120

    pair_counts: Tensor  # (K, C) int64
    centroids: Tensor  # (K, C, h)
    present: Tensor  # (K, C) bool: pairs whose centroid is known
    refreshed_at: Tensor  # () int64: the step before which the last refresh was made, -1 for none

    def build(self) -> None:
        shape = (self.spec.num_domains, self.spec.num_classes)
        self.register_buffer("pair_counts", self.spec.count_matrix)
        self.register_buffer("centroids", torch.zeros(*shape, self.features_dim))
        self.register_buffer("present", torch.zeros(shape, dtype=torch.bool))
        self.register_buffer("refreshed_at", torch.tensor(-1))

    def loss(self, batch: Batch) -> StepOutput:
        h = self.hparams
        features = self.features_by_domain(batch)
        ce = self.domain_risks(self.head(features), batch.y, batch.sizes).mean()
        macro = moment_gap(batch.split(features)) if h.macro_weight > 0 else ce.new_zeros(())
        aligned = self.alignment(features, batch) if self.aligning() else ce.new_zeros(())
        loss = ce + h.macro_weight * macro + h.boda_weight * aligned
        return StepOutput(loss, {"cross_entropy": ce.detach(), "macro": macro.detach(), "alignment": aligned.detach()})

    def aligning(self) -> bool:
        """Whether A is part of the loss of this step."""
        h = self.hparams
        if h.boda_weight == 0 or self.steps_done < max(h.start_step, h.refresh_every):
            return False
        if self.refreshed_at < 0:
            raise InputError(
                f"{self.name} is at step {self.steps_done} without centroids: call refresh with the training set's "
                "features whenever refresh_due() says so (the train command does)."
            )
        return True

    def alignment(self, features: Tensor, batch: Batch) -> Tensor:
        """The term A."""
        return boda_loss(
            self.distances(features.to(self.centroids)),
            batch.y,
            batch.domain,
            self.pair_counts,
            self.present,
            nu=self.hparams.nu,
            temperature=self.hparams.temperature,
        )

    def distances(self, features: Tensor) -> Tensor:
        """(n, h) -> (n, K * C) distances to the centroids."""
        return euclidean_distances(features, self.centroids)

    def refresh_due(self) -> bool:
        at = self.steps_done
        wanted = self.hparams.boda_weight > 0 and at > 0 and at % self.hparams.refresh_every == 0
        return wanted and int(self.refreshed_at) != at

    @torch.no_grad()
    def refresh(self, features: Tensor, y: Tensor, domain: Tensor) -> None:
        features = features.to(self.centroids)
        current, found = pair_means(features, y, domain, self.spec.num_domains, self.spec.num_classes)
        known = self.present & found
        # a pair seen for the first time is copied, one without rows keeps what it has
        momentum = torch.where(known, current.new_tensor(self.hparams.momentum), (~found).to(current))[..., None]
        shift = torch.where(known[..., None], current - self.centroids, 0.0)
        self.refresh_spread(features - current[domain, y], y, domain, momentum, shift)
        self.centroids.copy_(blend(current, self.centroids, momentum))
        self.present |= found
        self.refreshed_at.fill_(self.steps_done)

    def refresh_spread(self, deviation: Tensor, y: Tensor, domain: Tensor, momentum: Tensor, shift: Tensor) -> None:
        """For a variant with second moments.

        deviation (n, h): the training features less their pair's mean. momentum (K, C, 1). shift (K, C, h): how far
        the means moved since the last refresh, zero for pairs that were not known.
        """
