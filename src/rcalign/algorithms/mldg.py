"""MLDG: an update that helps some domains must also help others.

Each step has episodes (meta-train domains S, meta-test domains T). With G_S the gradient at theta of the mean over S of
CE_d, theta' one inner step from theta along G_S, and G_T' the gradient at theta' of the mean over T (first order):

    direction = (1/D) sum over episodes of (G_S + meta_weight G_T')

    joint   one episode: all domains but M in S, M random domains in T; D = 1 (the paper's split; the default)
    ring    the shuffled domains, each in S with the next in T, cyclic; D = K (published DomainBed, BoDA)
    split   M random domains take turns in T, one of the K - M others in S each time; D = K (today's DomainBed)

In ring and split a pair's longer batch is cut. Inner step: ``adam_first``, a fresh Adam's first step with the learning
rate, lr g / (|g| + 1e-8) with g including weight decay, or ``sgd``, inner_rate * g.

Paper: Li et al., Learning to Generalize: Meta-Learning for Domain Generalization (2018), Algorithm 1. Departures: first
order; Adam's first step inside, as DomainBed, where the paper has plain gradient descent. With K <= M, M becomes K - 1
with a warning (DomainBed then trains on nothing).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.algorithms.lookahead import LookAhead
from rcalign.functional.mixing import cyclic_pairs
from rcalign.functional.steps import adam_first_direction
from rcalign.registry import Traits, register
from rcalign.spaces import At, Choice, Field, LogUniform
from rcalign.types import Batch

Episode = tuple[tuple[int, ...], tuple[int, ...]]


@register(
    "MLDG",
    summary="a gradient step on some domains must help the others",
    paper="Li et al., Learning to Generalize: Meta-Learning for Domain Generalization (2018)",
    family="meta-learning",
    traits=Traits(
        min_domains=2, erm_when=(("episodes", "ring"), ("meta_weight", 0.0)), alignment=(("inner_rate", "inner_rate"),)
    ),
)
class MLDG(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        meta_weight: Annotated[float, Field("weight of the look-ahead gradient", LogUniform(0.1, 10), minimum=0)] = 1.0
        episodes: Annotated[
            str,
            Field(
                "how domains are split (see above)",
                choices=("joint", "ring", "split"),
                presets={"domainbed": At("ring"), "mdlt": At("ring"), "domainbed-2024": At("split")},
            ),
        ] = "joint"
        meta_test_domains: Annotated[
            int,
            Field(
                "meta-test domains M under 'joint' and 'split'",
                minimum=1,
                presets={"domainbed-2024": At(2, Choice(1, 2))},
            ),
        ] = 1
        inner: Annotated[str, Field("the look-ahead's step", choices=("adam_first", "sgd"))] = "adam_first"
        inner_rate: Annotated[float, Field("step size under 'sgd'", minimum=0)] = 1e-3

    def build(self) -> None:
        self._look_ahead = LookAhead(self)
        self._meta_test = self.hparams.meta_test_domains
        if self._meta_test >= self.spec.num_domains and self.hparams.episodes != "ring":
            self._meta_test = self.spec.num_domains - 1
            warnings.warn(
                f"meta_test_domains is {self.hparams.meta_test_domains}, but there are {self.spec.num_domains} source "
                f"domains: {self._meta_test} is used, so that one is left to train on.",
                stacklevel=2,
            )

    def draw_order(self) -> list[int]:
        """The random part of a step: the domains, shuffled. The last M are meta-test."""
        return [int(k) for k in self.rng.permutation(self.spec.num_domains)]

    def _episodes(self) -> list[Episode]:
        order = self.draw_order()
        if self.hparams.episodes == "ring":
            return [((i,), (j,)) for i, j in cyclic_pairs(order)]
        train, test = order[: -self._meta_test], order[-self._meta_test :]
        if self.hparams.episodes == "joint":
            return [(tuple(sorted(train)), tuple(sorted(test)))]
        return [((i,), (test[k % len(test)],)) for k, i in enumerate(train)]

    def step(self, batch: Batch) -> Logs:
        h, batch = self.hparams, self.begin_step(batch)
        share = 1.0 if h.episodes == "joint" else 1.0 / batch.num_domains
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.optimizer.zero_grad(set_to_none=True)
        inner_sum, outer_sum = batch.x.new_zeros(()), batch.x.new_zeros(())
        for train, test in self._episodes():
            rows = None if h.episodes == "joint" else min(batch.sizes[k] for k in train + test)
            inner = self._risk(self, batch, train, rows)
            gradients = list(torch.autograd.grad(inner, parameters, allow_unused=True, materialize_grads=True))
            for p, gradient in zip(parameters, gradients, strict=True):
                if p.grad is not None:
                    p.grad.add_(gradient, alpha=share)
                else:
                    p.grad = gradient if share == 1 else share * gradient
            inner_sum += share * inner.detach()
            if h.meta_weight > 0:
                if h.inner == "sgd":
                    rate, direction = h.inner_rate, gradients
                else:
                    rate = h.learning_rate
                    direction = adam_first_direction(gradients, parameters, weight_decay=h.weight_decay)
                self._look_ahead.move(rate, direction)
                outer = self._risk(self._look_ahead, batch, test, rows)
                (share * h.meta_weight * outer).backward()  # adds to the parameters' own gradients
                outer_sum += share * outer.detach()
        self.optimizer.step()
        self.steps_done += 1
        return {"loss": inner_sum + h.meta_weight * outer_sum, "meta_test": outer_sum}

    def _risk(self, network: MLDG | LookAhead, batch: Batch, domains: Sequence[int], rows: int | None = None) -> Tensor:
        """The mean over domains of each one's mean cross-entropy, of its first rows or all."""
        part = batch.select(domains)
        logits = network(part.x[:rows])[1]
        sizes = [size for size in part.sizes if size] if rows is None else [rows]
        return self.domain_risks(logits, part.y[:rows], sizes).mean()
