"""iDAG: learn an acyclic graph over features and label, and classify from the features that lead to the label.

Encoder e = enc(f(x)) in R^o (see ``encoded``). Graph W = W+ - W- over o features and the label (last node),
T = exp(W * W), mask m = T[:o, last]; masked feature u = e * sg(m), logits head(u). At the start every feature is a
parent of the label and m = 1. Prototypes, constants: P[d, c] of normalised e, Q[c] of normalised u, moved by each
sample with ``momentum``.

    L = CE_all(u) + nu_weight * nu                          before step ``anneal_steps``
    L = CE_all(u) + nu_weight * nu + mu_weight * mu         from there on, Adam starting anew
        + reconstruction_weight [ mean(1 - cos(([P, c] W)[:o], P)) + CE(rec_head(P * m), c) ]
        + rho/2 h^2 + alpha h + sparsity_weight mean(W+ + W-),     h = tr(T) - (o + 1)

nu: softmax over all P of e/||e|| at ``temperature``, target (d, y); mu: over Q of u/||u||, target y; both with the
unlike rows of the batch as further logits. After a step W+, W- >= 0 with zero diagonal. Every 100 steps: if
rho < rho_max and h > h_old / 4, rho *= 10 and alpha += rho h; h_old = h.

Paper: Huang et al., iDAG: Invariant DAG Searching for Domain Generalization (2023), read in abstract; the rest from its
public code. ``published`` repeats that code's slips (docs/algorithms/idag.md), which are corrected by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign.algorithms.base import Logs
from rcalign.algorithms.encoded import Encoded, EncodedHparams
from rcalign.functional.contrastive import moved_prototypes, prototype_contrast
from rcalign.functional.graph import cycle_weight, label_parents, path_weights, reconstruction_gap
from rcalign.registry import register
from rcalign.spaces import Choice, Field, LogUniform, Uniform
from rcalign.types import Batch, StepOutput

RAISE_EVERY = 100  # steps between looks at the acyclicity penalty


@register(
    "iDAG",
    summary="classifies from the features that a learned acyclic graph leads to the label",
    paper="Huang et al., iDAG: Invariant DAG Searching for Domain Generalization (2023)",
    family="causal graph",
)
class IDAG(Encoded):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(EncodedHparams):
        anneal_steps: Annotated[
            int, Field("steps before the graph is trained", Choice(200, 400, 600, 800), minimum=0)
        ] = 200
        temperature: Annotated[float, Field("of both contrasts", Uniform(0.01, 0.07), minimum=1e-3)] = 0.07
        momentum: Annotated[float, Field("of the prototypes", Uniform(0.99, 0.999), minimum=0, maximum=1)] = 0.99
        sparsity_weight: Annotated[float, Field("of the graph's weights (lambda1)", Uniform(0.01, 1), minimum=0)] = 0.01
        reconstruction_weight: Annotated[
            float, Field("of the prototypes' reconstruction (lambda2)", Uniform(0.01, 1), minimum=0)
        ] = 0.01
        rho_max: Annotated[float, Field("largest weight of the acyclicity penalty", LogUniform(10, 1e6), minimum=0)] = (
            100.0
        )
        mu_weight: Annotated[float, Field("of the contrast with classes", Uniform(1, 2), minimum=0)] = 1.0
        nu_weight: Annotated[float, Field("of the contrast with (domain, class) pairs", Uniform(1, 2), minimum=0)] = 1.0
        negatives: Annotated[bool, Field("unlike rows of the batch enter the contrasts")] = True
        published: Annotated[bool, Field("the public code's slips: see the page")] = False

    prototypes: Tensor  # (K, C, o)
    class_prototypes: Tensor  # (C, o)

    def build(self) -> None:
        super().build()
        domains, classes, width = self.spec.num_domains, self.spec.num_classes, self.hparams.width
        self.graph_plus = nn.Parameter(label_parents(width))
        self.graph_minus = nn.Parameter(torch.zeros(width + 1, width + 1))
        self.rec_head = nn.Linear(width, classes)
        self.rec_head.requires_grad_(not self.hparams.published)
        self.register_buffer("prototypes", torch.zeros(domains, classes, width))
        self.register_buffer("class_prototypes", torch.zeros(classes, width))
        self._rho, self._alpha, self._cycles = 1.0, 1.0, math.inf

    @property
    def graph(self) -> Tensor:
        return self.graph_plus - self.graph_minus

    def features(self, x: Tensor) -> Tensor:
        """x (n, ...) -> masked features u (n, o)."""
        return super().features(x) * path_weights(self.graph)[:-1, -1].detach()

    def step(self, batch: Batch) -> Logs:
        if self.steps_done == self.hparams.anneal_steps:
            self.optimizer.state.clear()  # the loss jumps here
        logs = super().step(batch)
        with torch.no_grad():
            for part in (self.graph_plus, self.graph_minus):
                part.clamp_(min=0).fill_diagonal_(0)
        return logs

    def loss(self, batch: Batch) -> StepOutput:
        encoded = super().features(batch.x).to(self.prototypes)
        with torch.autocast(encoded.device.type, enabled=False):  # paths and slow prototypes need full precision
            return self._loss(encoded, batch)

    def _loss(self, encoded: Tensor, batch: Batch) -> StepOutput:
        h = self.hparams
        paths = path_weights(self.graph)
        mask = paths[:-1, -1]
        masked = encoded * mask.detach()
        ce = self.cross_entropy(self.head(masked), batch.y)
        pair = batch.domain * self.spec.num_classes + batch.y
        self._move_prototypes(encoded, masked, batch.y, pair)
        nu = self._contrast(encoded, self.prototypes.flatten(0, 1), pair)
        mu = self._contrast(masked, self.class_prototypes, batch.y)
        cycles = cycle_weight(paths)
        self._raise_penalty(cycles)
        penalty = self._rho / 2 * cycles**2 + self._alpha * cycles
        sparsity = (self.graph_plus + self.graph_minus).mean()
        gap = self._reconstruction(mask)
        loss = ce + h.nu_weight * nu
        if self.steps_done >= h.anneal_steps:
            loss = loss + h.mu_weight * mu + h.reconstruction_weight * gap + penalty + h.sparsity_weight * sparsity
        terms = {"cross_entropy": ce, "contrast_pairs": nu, "contrast_classes": mu, "cycles": cycles, "gap": gap}
        return StepOutput(loss, {name: value.detach() for name, value in terms.items()})

    def _contrast(self, features: Tensor, prototypes: Tensor, target: Tensor) -> Tensor:
        known = None if self.hparams.published else prototypes.any(1)
        negatives = self.hparams.negatives and not self.hparams.published
        return prototype_contrast(
            features, prototypes, target, self.hparams.temperature, negatives=negatives, known=known
        )

    def _reconstruction(self, mask: Tensor) -> Tensor:
        prototypes = self.prototypes.flatten(0, 1)
        labels = torch.arange(self.spec.num_classes, device=mask.device).repeat(self.spec.num_domains)
        if not self.hparams.published:
            known = prototypes.any(1)
            prototypes, labels = prototypes[known], labels[known]
        floor = 1e-12 if self.hparams.published else 1e-6
        gap = reconstruction_gap(prototypes, labels, self.graph, floor)
        return gap + self.cross_entropy(self.rec_head(prototypes * mask), labels)

    @torch.no_grad()
    def _move_prototypes(self, encoded: Tensor, masked: Tensor, y: Tensor, pair: Tensor) -> None:
        # new tensors, not in place: the contrasts of this step keep the prototypes for their gradient
        momentum, shape = self.hparams.momentum, self.prototypes.shape
        flat = moved_prototypes(self.prototypes.flatten(0, 1), F.normalize(encoded, dim=1), pair, momentum)
        self.prototypes = flat.view(shape)
        self.class_prototypes = moved_prototypes(self.class_prototypes, F.normalize(masked, dim=1), y, momentum)

    def _raise_penalty(self, cycles: Tensor) -> None:
        if self.steps_done % RAISE_EVERY:
            return
        now = cycles.item()
        if self._rho < self.hparams.rho_max and now > 0.25 * self._cycles:
            self._rho *= 10
            self._alpha += self._rho * now
        self._cycles = now

    def more_state(self) -> dict[str, Any]:
        return {"rho": self._rho, "alpha": self._alpha, "cycles": self._cycles}

    def load_more_state(self, state: Mapping[str, Any]) -> None:
        self._rho, self._alpha, self._cycles = (float(state[name]) for name in ("rho", "alpha", "cycles"))
