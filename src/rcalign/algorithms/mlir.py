"""MLIR: shrink a discrepancy among some domains such that it also shrinks towards a held-out one.

One linear classifier h_ij for each pair of domains; disc_ij(f) = |CE(h_ij f(x_i), y_i) - CE(h_ij f(x_j), y_j)|, which
h_ij raises and f lowers. A step goes through n = K (K - 2) splits: each domain t held out, with prefixes S of the
others, shuffled, of sizes 2, ..., K - 1. For each split, rows cut to its smallest batch:

    (1) h: one Adam step up   mean_{pairs in S} disc(f) / n
    (2) f' = f - inner_rate_factor * featurizer_rate * g / (|g| + 1e-8),  g = grad_f of mean_{pairs in S} disc(f) / n
    (3) h: one Adam step up   mean_{s in S} disc_{s,t}(f') / n
    (4) G = grad of discrepancy_weight * mean_{s in S} disc_{s,t}(f') at f'  (first order)

Then f takes an Adam step along grad CE_all + outer_weight * sum of G / n, with outer_rate_factor * featurizer_rate; the
head takes one along grad CE_all with the learning rate. discrepancy_weight = 0 gives both ERM's gradient.

Paper: Jia and Zhang, Meta-learning the invariant representation for domain generalization (2024), read in abstract. Its
public code does not run; this is its evident intent (docs/algorithms/mlir.md), without its extra training steps at
evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

import torch
from torch import Tensor, nn

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.algorithms.lookahead import LookAhead
from rcalign.functional.discrepancy import held_out_splits, loss_gap, pair_index
from rcalign.functional.steps import adam_first_direction
from rcalign.registry import Traits, register
from rcalign.spaces import At, Choice, Field, LogUniform
from rcalign.types import Batch

RATES = LogUniform(1e-5, 10**-3.5)
FOR_ARRAYS = {"arrays": At(1e-3, LogUniform(10**-4.5, 10**-2.5))}
RowsByDomain = dict[int, tuple[Tensor, Tensor]]  # domain -> features and labels


@register(
    "MLIR",
    summary="a step that brings some domains together must bring a held-out one closer too",
    paper="Jia and Zhang, Meta-learning the invariant representation for domain generalization (2024)",
    family="meta-learning, adversarial alignment",
    traits=Traits(min_domains=3),
)
class MLIR(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        outer_weight: Annotated[float, Field("of the held-out gradients (beta)", LogUniform(0.1, 10), minimum=0)] = 1.0
        discrepancy_weight: Annotated[float, Field("of their loss (lambda)", LogUniform(0.01, 100), minimum=0)] = 1.0
        featurizer_rate: Annotated[float, Field("Adam's, of f", RATES, minimum=0, presets=FOR_ARRAYS)] = 5e-5
        pairs_rate: Annotated[float, Field("Adam's, of h", RATES, minimum=0, presets=FOR_ARRAYS)] = 5e-5
        inner_rate_factor: Annotated[float, Field("of f's rate in (2)", LogUniform(0.1, 10), minimum=0)] = 1.0
        outer_rate_factor: Annotated[float, Field("of f's rate in its step", LogUniform(0.1, 10), minimum=0)] = 1.0
        beta1: Annotated[float, Field("first beta of Adam for f and h", Choice(0.0, 0.5), minimum=0, maximum=0.999)] = (
            0.5
        )
        featurizer_decay: Annotated[float, Field("weight decay of f", LogUniform(1e-6, 1e-2), minimum=0)] = 0.0
        pairs_decay: Annotated[float, Field("weight decay of h", LogUniform(1e-6, 1e-2), minimum=0)] = 0.0

    def build(self) -> None:
        domains, classes = self.spec.num_domains, self.spec.num_classes
        first = nn.Linear(self.features_dim, classes)
        self.pairs = nn.ModuleList(nn.Linear(self.features_dim, classes) for _ in combinations(range(domains), 2))
        for pair in self.pairs:
            pair.load_state_dict(first.state_dict())  # all start alike
        self._look_ahead = LookAhead(self.featurizer)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        h, betas = self.hparams, (self.hparams.beta1, 0.9)
        optimizers: dict[str, torch.optim.Optimizer] = {
            "main": self.adam(self.head.parameters()),
            "pairs": self.adam(self.pairs.parameters(), lr=h.pairs_rate, weight_decay=h.pairs_decay, betas=betas),
        }
        rate = h.featurizer_rate * h.outer_rate_factor
        if any(p.requires_grad for p in self.featurizer.parameters()):
            optimizers["featurizer"] = self.adam(
                self.featurizer.parameters(), lr=rate, weight_decay=h.featurizer_decay, betas=betas
            )
        return optimizers

    def step(self, batch: Batch) -> Logs:
        h, batch = self.hparams, self.begin_step(batch)
        features, logits = self(batch.x)
        ce = self.cross_entropy(logits, batch.y)
        trained = [p for p in self.featurizer.parameters() if p.requires_grad]
        total = [torch.zeros_like(p) for p in trained]
        gap = features.new_zeros(())
        if trained and h.discrepancy_weight > 0:
            splits = held_out_splits(self.spec.num_domains, self.rng)
            for held_out, rest in splits:
                gap += self._split(batch, features, held_out, rest, trained, total, len(splits)) / len(splits)
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        ce.backward()
        for p, gradient in zip(trained, total, strict=True):
            p.grad = gradient if p.grad is None else p.grad + gradient
        for name in ("featurizer", "main"):
            if name in self.optimizers:
                self.optimizers[name].step()
        self.steps_done += 1
        return {"loss": ce.detach() + h.discrepancy_weight * gap, "cross_entropy": ce.detach(), "discrepancy": gap}

    def _split(
        self,
        batch: Batch,
        features: Tensor,
        held_out: int,
        rest: Sequence[int],
        trained: list[nn.Parameter],
        total: list[Tensor],
        splits: int,
    ) -> Tensor:
        """Steps (1) to (4); adds outer_weight * G / splits to ``total`` and returns the held-out discrepancy."""
        h = self.hparams
        rows = min(batch.sizes[k] for k in (*rest, held_out))
        x, y = batch.split(batch.x), batch.split(batch.y)
        z = batch.split(features)
        here = {k: (z[k][:rows], y[k][:rows]) for k in rest}
        within, across = list(combinations(rest, 2)), [(k, held_out) for k in rest]
        self._raise(here, within, splits)
        inner = self._discrepancy(here, within) / splits
        gradients = torch.autograd.grad(inner, trained, retain_graph=True)
        direction = adam_first_direction(gradients, trained, weight_decay=h.featurizer_decay)
        self._look_ahead.move(h.inner_rate_factor * h.featurizer_rate, direction, accumulate=False)

        domains = [*rest, held_out]
        ahead = self._look_ahead(torch.cat([x[k][:rows] for k in domains]))
        if h.dropout > 0:
            ahead = self.dropped(ahead, h.dropout)
        there = {k: (part, y[k][:rows]) for k, part in zip(domains, ahead.split(rows), strict=True)}
        self._raise(there, across, splits)
        outer = self._discrepancy(there, across)
        found = torch.autograd.grad(h.discrepancy_weight * outer, list(self._look_ahead.parameters.values()))
        torch._foreach_add_(total, found, alpha=h.outer_weight / splits)
        return outer.detach()

    def _discrepancy(self, rows: RowsByDomain, pairs: Sequence[tuple[int, int]]) -> Tensor:
        gaps = []
        for i, j in pairs:
            classifier = self.pairs[pair_index(i, j, self.spec.num_domains)]
            (z_i, y_i), (z_j, y_j) = rows[i], rows[j]
            gaps.append(loss_gap((classifier(z_i), y_i), (classifier(z_j), y_j)))
        return torch.stack(gaps).mean()

    def _raise(self, rows: RowsByDomain, pairs: Sequence[tuple[int, int]], splits: int) -> None:
        """One step of the pairs' classifiers up the discrepancy, features fixed."""
        optimizer = self.optimizers["pairs"]
        optimizer.zero_grad(set_to_none=True)  # classifiers of other pairs have no gradient and stay
        fixed = {k: (z.detach(), y) for k, (z, y) in rows.items()}
        (-self._discrepancy(fixed, pairs) / splits).backward()
        optimizer.step()
