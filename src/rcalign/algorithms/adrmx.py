"""ADRMX: features of the label minus features of the domain, and labels that survive another domain's features.

Two networks of the same form: z = f(x), from which labels are predicted, and v = g(x), from which domains are; g starts
as a copy of f. u = z - v should hold no domain. c1, c2 (labels) and c3 (domains) are three-layer heads whose hidden
widths are a half and a quarter of the features', D a multilayer perceptron on u. Step t = 1, 2, ... makes one of two
updates. Where t mod (1 + s) < s, s = discriminator_steps, D descends L_D = CE(D(u), domain); else everything but D
descends

    CE(c1(z), y) + CE(c2(u), y) + domain_weight * CE(c3(v), domain) + remix_weight * (1/C) sum_c CE(c1(u_a + v_b), c)
    + contrast_weight * (Q(z) + Q(u)) - adversary_weight * L_D

(a, b) are two random samples of class c from different domains; a class without such a pair adds nothing. Q is the
supervised contrast of ``functional.disentangling``. Prediction: c1(f(x)). Both Adams use betas (beta1, 0.9). Passes of
a network: two forward and two backward in the third of the steps (s = 2) that train them, two forward in the others.

Paper: Demirel, Aptoula, Ozkan, ADRMX: Additive Disentanglement of Domain Features with Remix Loss (2023), read in
abstract; the formula is DomainBed's, apart from the pair. DomainBed takes any two samples of a class
(``remix = same_class``) and then, by a slip, uses their positions among the class as positions in the whole batch
(``remix = published``). It also ignores weight_decay: ``decay_weights = false``. ``least_head_width`` keeps the heads
of networks with few features trainable; it changes nothing from 64 features on.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.algorithms.perceptron import Perceptron
from rcalign.functional.disentangling import domain_weighted_contrast
from rcalign.registry import register
from rcalign.spaces import At, Choice, Field
from rcalign.types import Batch


@register(
    "ADRMX",
    summary="takes domain features off label features, and keeps the label when another domain's are added",
    paper="Demirel et al., ADRMX: Additive Disentanglement of Domain Features with Remix Loss (2023)",
    family="disentanglement",
)
class ADRMX(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        learning_rate: Annotated[
            float,
            Field(
                "Adam's step size",
                Choice(2e-5, 3e-5, 4e-5, 5e-5),
                minimum=0,
                presets={"arrays": At(3e-3, Choice(5e-4, 1e-3, 2e-3, 3e-3))},
            ),
        ] = 3e-5
        contrast_weight: Annotated[float, Field("weight of the contrasts", minimum=0)] = 1.0
        domain_weight: Annotated[float, Field("weight of predicting the domain", minimum=0)] = 1.0
        adversary_weight: Annotated[float, Field("weight of fooling the discriminator", minimum=0)] = 0.75
        remix_weight: Annotated[float, Field("weight of the remixed samples", minimum=0)] = 1.0
        remix: Annotated[
            str,
            Field(
                "which two samples are remixed: of a class and two domains, of a class, or DomainBed's positions",
                choices=("other_domain", "same_class", "published"),
                presets={"domainbed-2024": At("published")},
            ),
        ] = "other_domain"
        discriminator_steps: Annotated[int, Field("discriminator steps for each other step", minimum=0)] = 2
        discriminator_width: Annotated[int, Field("hidden width of the discriminator", minimum=1)] = 256
        discriminator_depth: Annotated[
            int, Field("linear layers of the discriminator", Choice(8, 9, 10), minimum=1)
        ] = 9
        discriminator_dropout: Annotated[float, Field("inside the discriminator", minimum=0, maximum=0.99)] = 0.0
        least_head_width: Annotated[
            int, Field("smallest hidden width of the heads", minimum=1, presets={"domainbed-2024": At(1)})
        ] = 16
        beta1: Annotated[float, Field("Adam's first beta", minimum=0, maximum=0.999)] = 0.5
        decay_weights: Annotated[bool, Field("whether weight_decay is used", presets={"domainbed-2024": At(False)})] = (
            True
        )

    def build(self) -> None:
        h, width = self.hparams, self.features_dim
        self.domain_featurizer = copy.deepcopy(self.featurizer)
        self.head = self._make_head(self.spec.num_classes)  # type: ignore[assignment]  # not linear
        self.difference_head = self._make_head(self.spec.num_classes)
        self.domain_head = self._make_head(self.spec.num_domains)
        hidden = [h.discriminator_width] * (h.discriminator_depth - 1)
        self.discriminator = Perceptron([width, *hidden, self.spec.num_domains])

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        h = self.hparams
        options = {"betas": (h.beta1, 0.9), "weight_decay": h.weight_decay if h.decay_weights else 0.0}
        others = (self.featurizer, self.domain_featurizer, self.head, self.difference_head, self.domain_head)
        return {
            "main": self.adam([p for part in others for p in part.parameters()], **options),
            "discriminator": self.adam(self.discriminator.parameters(), **options),
        }

    @property
    def row_networks(self) -> list[nn.Module]:
        return [self.featurizer, self.domain_featurizer]

    def step(self, batch: Batch) -> Logs:
        batch = self.begin_step(batch)
        turns = self.hparams.discriminator_steps
        if (self.steps_done + 1) % (1 + turns) < turns:
            with torch.no_grad():
                features, logits = self(batch.x)
                difference = features - self.domain_features(batch.x)
            discriminator_loss = F.cross_entropy(self.discriminate(difference), batch.domain)
            risk = self.cross_entropy(logits, batch.y)
            self.descend(discriminator_loss, "discriminator")
        else:
            features, logits = self(batch.x)
            domain_features = self.domain_features(batch.x)
            discriminator_loss = F.cross_entropy(self.discriminate(features - domain_features), batch.domain)
            risk = self.cross_entropy(logits, batch.y)
            loss = risk + self._other_terms(features, domain_features, batch)
            self.descend(loss - self.hparams.adversary_weight * discriminator_loss)
        return {"loss": risk.detach(), "discriminator": discriminator_loss.detach()}

    def _other_terms(self, features: Tensor, domain_features: Tensor, batch: Batch) -> Tensor:
        """All that is descended but CE(c1(z), y) and the discriminator's term."""
        h, difference = self.hparams, features - domain_features
        contrast = sum(domain_weighted_contrast(part, batch.y, batch.domain) for part in (features, difference))
        return (
            self.cross_entropy(self.difference_head(difference), batch.y)
            + h.domain_weight * F.cross_entropy(self.domain_head(domain_features), batch.domain)
            + h.remix_weight * self._remixed_risk(difference, domain_features, batch)
            + h.contrast_weight * contrast
        )

    def _remixed_risk(self, difference: Tensor, domain_features: Tensor, batch: Batch) -> Tensor:
        first, second = self._remix_pairs(batch)
        if len(first) == 0:
            return difference.new_zeros(())
        logits = self.head(difference[first] + domain_features[second])
        return self.cross_entropy(logits, batch.y[first], reduction="sum") / self.spec.num_classes

    def _remix_pairs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Positions in the batch of a and b, one pair for each class that has one."""
        pairs = []
        labels, domains = batch.y.tolist(), batch.domain.tolist()
        for label in range(self.spec.num_classes):
            members = [i for i, y in enumerate(labels) if y == label]
            if len(members) < 2:
                continue
            order = self.draw_order(label, len(members))
            if self.hparams.remix == "published":
                pairs.append((order[0], order[1]))
                continue
            first, *others = (members[k] for k in order)
            if self.hparams.remix == "other_domain":
                others = [i for i in others if domains[i] != domains[first]]
            if others:
                pairs.append((first, others[0]))
        found = torch.tensor(pairs, dtype=torch.int64, device=batch.y.device).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def draw_order(self, label: int, members: int) -> list[int]:
        """The samples of a class in random order: 0, ..., members - 1."""
        return [int(k) for k in self.rng.permutation(members)]

    def domain_features(self, x: Tensor) -> Tensor:
        """x (n, ...) -> v (n, h). In training mode with dropout."""
        features = self.domain_featurizer(x)
        if self.training and self.hparams.dropout > 0:
            features = self.dropped(features, self.hparams.dropout)
        return features

    def discriminate(self, difference: Tensor) -> Tensor:
        """D: (n, h) -> (n, K)."""
        probability = self.hparams.discriminator_dropout
        drop = (lambda hidden: self.dropped(hidden, probability)) if probability > 0 else None
        return self.discriminator(difference, drop)

    def _make_head(self, outputs: int) -> nn.Sequential:
        width, least = self.features_dim, self.hparams.least_head_width
        half, quarter = max(width // 2, least), max(width // 4, least)
        return nn.Sequential(
            nn.Linear(width, half), nn.ReLU(), nn.Linear(half, quarter), nn.ReLU(), nn.Linear(quarter, outputs)
        )
