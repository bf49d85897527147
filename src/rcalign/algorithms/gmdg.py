"""GMDG: classification, closeness to the pretrained network, and two terms that tie features and labels across domains.

    L = CE_all + prior_weight * prior + conditional_weight * kappa * conditional + domain_weight * cross_domain

    prior         sum over layers of mean((a - a0)^2 / s^2 + log s^2) / 2: a the maps after the backbone's stages and
                  the features, a0 those of a frozen copy of the network as it was given, s^2 learned, one for each
                  channel (MIRO)
    conditional   mean(S^2), S = C_zv C_vv^+ C_vz on scaled, centred features z and label embeddings v; the constant
                  kappa = max(dCE/dz) / max(dconditional/dz)
    cross_domain  mean((ubar - sg(u_d))^2 / sbar^2 + log sbar^2) / 2, u_d = [z_d, v_d], ubar the mean over domains by
                  row position (cut to the smallest batch), sbar^2 the mean over domains of learned variances (2h each)

v is a small network of the label with its own Adam on CE(head(v), y), which does not move the head; v is a constant in
L. Variances and that network have rate_factor times the learning rate. All weights 0 is ERM; the last two 0 is MIRO.

Paper: Tan et al., Rethinking Multi-domain Generalization with A General Learning Objective (2024), read in abstract;
formula from its public code. Departures: docs/algorithms/gmdg.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign.algorithms.base import BaseHparams, Logs
from rcalign.algorithms.miro import MIRO, START_VARIANCE
from rcalign.functional.gaussian import explained_spread, gaussian_gap, matched_scale, raw_variance, variance_of
from rcalign.registry import Traits, register
from rcalign.spaces import Choice, Field
from rcalign.types import Batch

LABEL_DROPOUT = 0.2


@register(
    "GMDG",
    summary="stays close to the pretrained network and ties features and labels across domains",
    paper="Tan et al., Rethinking Multi-domain Generalization with A General Learning Objective (2024)",
    family="combined objective",
    traits=Traits(min_domains=2, erm_when=(("prior_weight", 0.0), ("conditional_weight", 0.0), ("domain_weight", 0.0))),
)
class GMDG(MIRO):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        prior_weight: Annotated[float, Field("of closeness to the start (ld)", Choice(0.01, 0.1), minimum=0)] = 0.1
        conditional_weight: Annotated[
            float, Field("of the label-conditional term (shift)", Choice(0.001, 0.01, 0.1), minimum=0)
        ] = 0.01
        domain_weight: Annotated[
            float, Field("of the cross-domain term (d_shift)", Choice(0.01, 0.1, 0.2, 0.3), minimum=0)
        ] = 0.1
        rate_factor: Annotated[
            float, Field("of the variances' learning rate", Choice(7.5, 10.0, 12.5, 20.0, 25.0), minimum=0)
        ] = 12.5
        label_input: Annotated[
            str, Field("a label as its number, repeated, or as a unit vector", choices=("number", "one_hot"))
        ] = "number"

    def build(self) -> None:
        super().build()
        width = self.features_dim
        raw = raw_variance(START_VARIANCE)
        self.domain_variances = nn.Parameter(torch.full((self.spec.num_domains, 2 * width), raw))
        inputs = width if self.hparams.label_input == "number" else self.spec.num_classes
        half = max(width // 2, 1)
        self.label_layers = nn.ModuleList([nn.Linear(inputs, half), nn.Linear(half, width), nn.Linear(width, width)])

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        fast = self.variance_rate
        main = self.adam([*self.featurizer.parameters(), *self.head.parameters()])
        main.add_param_group({"params": [*self.layer_variances, self.domain_variances], "lr": fast})
        return {"main": main, "labels": self.adam(self.label_layers.parameters(), lr=fast)}

    def step(self, batch: Batch) -> Logs:
        h, batch = self.hparams, self.begin_step(batch)
        features, logits, maps = self.forward_with_maps(batch.x)
        ce = self.cross_entropy(logits, batch.y)
        prior, conditional, across = (features.new_zeros(()) for _ in range(3))
        if h.prior_weight > 0:
            prior = self.prior(maps, batch.x)
        if h.conditional_weight > 0 or h.domain_weight > 0:
            embedded = self._train_labels(batch.y)
            if h.conditional_weight > 0 and features.requires_grad:  # frozen features have nothing to learn from it
                conditional = self._conditional(ce, features, embedded)
            if h.domain_weight > 0:
                across = self._across_domains(features, embedded, batch)
        loss = ce + h.prior_weight * prior + h.conditional_weight * conditional + h.domain_weight * across
        self.descend(loss)
        terms = {"cross_entropy": ce, "prior": prior, "conditional": conditional, "cross_domain": across}
        return {"loss": loss.detach(), **{name: value.detach() for name, value in terms.items()}}

    def _train_labels(self, y: Tensor) -> Tensor:
        """One step of the label network; returns the embeddings (N, h) from before it, as constants."""
        like = self.head.weight
        if self.hparams.label_input == "number":
            value = y[:, None].expand(-1, self.features_dim).to(like)
        else:
            value = F.one_hot(y, self.spec.num_classes).to(like)
        for k, layer in enumerate(self.label_layers):
            value = self.dropped(layer(value if k == 0 else value.relu()), LABEL_DROPOUT)
        optimizer = self.optimizers["labels"]
        optimizer.zero_grad(set_to_none=True)
        self.cross_entropy(self.head(value), y).backward()  # the head's gradient is cleared before its own step
        optimizer.step()
        return value.detach()

    def _conditional(self, ce: Tensor, features: Tensor, embedded: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):  # half precision cannot tell directions apart
            spread = explained_spread(features.to(self.head.weight), embedded.to(self.head.weight))
        (of_ce,) = torch.autograd.grad(ce, features, retain_graph=True)
        (of_spread,) = torch.autograd.grad(spread, features, retain_graph=True)
        return matched_scale(of_ce, of_spread) * spread

    def _across_domains(self, features: Tensor, embedded: Tensor, batch: Batch) -> Tensor:
        rows = min(batch.sizes)
        joint = torch.cat([features, embedded], dim=1)  # (N, 2h)
        stacked = torch.stack([part[:rows] for part in batch.split(joint)])  # (K, rows, 2h)
        return gaussian_gap(stacked.mean(0), stacked.detach(), variance_of(self.domain_variances).mean(0))
