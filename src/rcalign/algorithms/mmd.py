"""MMD: match the distributions of features between domains by a kernel two-sample distance.

Objective over K domains, CE_d the mean cross-entropy and X_d the features of domain d:

    (1/K) sum_d CE_d + w * mean over pairs of [ mean k(X_i, X_i) + mean k(X_j, X_j) - 2 mean k(X_i, X_j) ]
    k(a, b) = sum over g = 0.001, 0.01, ..., 1000 of exp(-g ||a - b||^2)

Under ``estimator = biased`` (published) the means within a domain compare a sample also with itself, which adds up to
14/n for n samples of a domain and is least when all features fall together; ``unbiased`` leaves that out.

Unlabelled rows of a target domain (unsupervised adaptation) are one domain more in the pairs, not in the first term.

Paper: Li et al., Domain Generalization with Adversarial Feature Learning (2018). Departures: only the kernel penalty,
as DomainBed; the paper's autoencoder and adversarial prior are left out. The default is the unbiased estimate: with
small batches the biased one collapses the features. Distances are taken by differences, not by the matrix product form,
whose rounding errors the large g would see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.functional.moments import kernel_gap
from rcalign.registry import Traits, register
from rcalign.spaces import At, Field, LogUniform
from rcalign.types import Batch, StepOutput

PUBLISHED = {name: At("biased") for name in ("domainbed", "domainbed-2024", "mdlt")}


@register(
    "MMD",
    summary="matches distributions of features between domains by a Gaussian kernel",
    paper="Li et al., Domain Generalization with Adversarial Feature Learning (2018)",
    family="feature alignment",
    traits=Traits(erm_when=(("penalty_weight", 0.0),), adapts=True),
)
class MMD(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        penalty_weight: Annotated[float, Field("weight of the kernel distance", LogUniform(0.1, 10), minimum=0)] = 1.0
        estimator: Annotated[
            str, Field("of the kernel distance (see above)", choices=("unbiased", "biased"), presets=PUBLISHED)
        ] = "unbiased"

    def loss(self, batch: Batch) -> StepOutput:
        features = self.features_by_domain(batch)
        risk = self.domain_risks(self.head(features[: len(batch)]), batch.y, batch.sizes).mean()
        sizes = (*batch.sizes, *batch.unlabelled_sizes)
        penalty = kernel_gap(features, sizes, unbiased=self.hparams.estimator == "unbiased")
        return StepOutput(risk + self.hparams.penalty_weight * penalty, {"penalty": penalty.detach()})
