"""SagNet: classify from content while style is random; fool a classifier of style.

Style of a feature vector z = f(x) in R^h is its mean m and unbiased variance v, content the standardised rest zh. With
u_i ~ U(0, 1) and a random permutation pi (``functional.style``), c the head and s a second, style head:

    zc = zh sqrt(v' + eps) + m',  m' = u m + (1 - u) m_pi,  v' likewise      (style randomised)
    zs = zh_pi sqrt(v + eps) + m,  zh_pi without gradient                     (content randomised)
    L_c = CE(c(zc), y),   L_s = CE(s(zs), y),   L_a = -mean over samples and classes of log softmax(s(zs))

``updates`` says how the networks move in one step:

    three   f and c by L_c; then s by L_s; then f by adversary_weight * L_a, at the new f and s  (published)
    joint   s by L_s; then f and c by L_c + adversary_weight * L_a, from one forward and one backward pass

Three needs the gradient of f at two points, hence two passes; L_s and L_a share the second one, since s's step leaves f
alone. Every term has its own u, pi and dropout. Prediction: c(f(x)).

Paper: Nam et al., Reducing Domain Gap by Reducing Style Bias (2021), Algorithm 1. Departures: works on final features
and moves all of f, as DomainBed; the paper splits inside the network and lets L_a move only affine normalisation
parameters. The default is ``joint``: half the cost, and adversary_weight weighs two gradients, not two Adam steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.functional.style import content_randomized, style_randomized, uniform_cross_entropy
from rcalign.registry import register
from rcalign.spaces import At, Field, LogUniform
from rcalign.types import Batch

PUBLISHED = {name: At("three") for name in ("domainbed", "domainbed-2024", "mdlt")}


@register(
    "SagNet",
    summary="classifies with random style and unlearns what style alone can classify",
    paper="Nam et al., Reducing Domain Gap by Reducing Style Bias (2021)",
    family="style and content",
)
class SagNet(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        adversary_weight: Annotated[
            float, Field("weight of fooling the style head", LogUniform(0.01, 10), minimum=0)
        ] = 0.1
        updates: Annotated[
            str,
            Field(
                "updates in one step (see above)",
                choices=("joint", "three"),
                presets=PUBLISHED,
            ),
        ] = "joint"

    def build(self) -> None:
        self.style_head = nn.Linear(self.features_dim, self.spec.num_classes)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        parts = {"featurizer": self.featurizer, "head": self.head, "style_head": self.style_head}
        trained = {name: part for name, part in parts.items() if any(p.requires_grad for p in part.parameters())}
        return {name: self.adam(part.parameters()) for name, part in trained.items()}

    def draw_style(self, rows: int) -> tuple[Tensor, Tensor]:
        """The random part, once for each loss term: u (n, 1) and the permutation (n,)."""
        return torch.from_numpy(self.rng.random((rows, 1))), torch.from_numpy(self.rng.permutation(rows))

    def step(self, batch: Batch) -> Logs:
        batch = self.begin_step(batch)
        three = self.hparams.updates == "three"
        plain = self.featurizer(batch.x)
        features = self._dropped(plain)
        weight, permutation = self.draw_style(len(batch))
        content = self.cross_entropy(self.head(style_randomized(features, weight.to(features), permutation)), batch.y)
        if three:
            self._update(content, "featurizer", "head")
            plain = self.featurizer(batch.x)
        style = self.cross_entropy(self._style_logits(plain.detach()), batch.y)
        self._update(style, "style_head")
        adversary = self.hparams.adversary_weight * uniform_cross_entropy(self._style_logits(plain))
        if three:
            self._update(adversary, "featurizer")
        else:
            self._update(content + adversary, "featurizer", "head")
        self.steps_done += 1
        return {"loss": content.detach(), "style": style.detach(), "adversary": adversary.detach()}

    def _style_logits(self, plain: Tensor) -> Tensor:
        _, permutation = self.draw_style(len(plain))
        return self.style_head(content_randomized(self._dropped(plain), permutation.to(plain.device)))

    def _dropped(self, features: Tensor) -> Tensor:
        return self.dropped(features, self.hparams.dropout) if self.hparams.dropout > 0 else features

    def _update(self, loss: Tensor, *names: str) -> None:
        optimizers = [self.optimizers[name] for name in names if name in self.optimizers]
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
