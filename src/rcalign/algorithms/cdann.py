"""CDANN: DANN given the class: features of a class from which a discriminator cannot tell the domain.

As DANN, but D reads z_i + e_{y_i}, with e a table of one vector in R^h for each class that is trained with D, and its
loss weighs the classes of the batch alike:

    L_D = sum_i w_i CE(D(z_i + e_{y_i}), d_i) + gradient_penalty * R,    w_i = 1 / (count of y_i in the batch * C')

C' is the number of classes present in the batch, so that the weights sum to one; R is taken by D's input. An unlabelled
row of a target domain (unsupervised adaptation) counts for the class that the classifier finds likeliest at that step.

Paper: Li et al., Deep Domain Generalization via Conditional Invariant Adversarial Networks (2018). Departures: one
discriminator with label embeddings, as DomainBed, where the paper has one for each class and a class-prior-normalised
term. DomainBed and BoDA take the largest label of the batch + 1 for C', which depends on how classes are numbered:
``class_count = largest_label``, for their tables only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from rcalign.algorithms.dann import DANN, AdversarialHparams
from rcalign.functional.adversarial import class_balanced_weights
from rcalign.registry import Traits, register
from rcalign.spaces import At, Field

PUBLISHED = {name: At("largest_label") for name in ("domainbed", "domainbed-2024", "mdlt")}


@register(
    "CDANN",
    summary="features of each class from which a discriminator cannot tell the domain",
    paper="Li et al., Deep Domain Generalization via Conditional Invariant Adversarial Networks (2018)",
    family="adversarial alignment",
    traits=Traits(adapts=True),
)
class CDANN(DANN):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(AdversarialHparams):
        class_count: Annotated[
            str,
            Field(
                "C' of the class weights",
                choices=("present", "largest_label"),
                presets=PUBLISHED,
            ),
        ] = "present"

    def build(self) -> None:
        super().build()
        self.class_embeddings = nn.Embedding(self.spec.num_classes, self.features_dim)

    def discriminator_parameters(self) -> Iterable[nn.Parameter]:
        return itertools.chain(self.discriminator.parameters(), self.class_embeddings.parameters())

    def discriminator_inputs(self, features: Tensor, y: Tensor) -> Tensor:
        return features + self.class_embeddings(y)

    def domain_risk(self, logits: Tensor, y: Tensor, domain: Tensor) -> Tensor:
        published = self.hparams.class_count == "largest_label"
        weights = class_balanced_weights(y, int(y.max()) + 1 if published else None, logits.dtype)
        return (weights * F.cross_entropy(logits, domain, reduction="none")).sum()
