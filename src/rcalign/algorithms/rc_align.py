"""RC-Align: leave-one-domain-out episodes, a first-order meta step, domain-class alignment, manifold mixup.

One episode holds out a query domain q; the others are the support S. With features z = f(x), all in one forward pass:

    plain   L_inner = CE(S) + w * DA(S)
    mixed   L_inner = mean over ring pairs (a, b) of S, lam ~ Beta(m, m), z = lam z_a + (1 - lam) z_b:
                      lam [CE(z, y_a) + w DA(z, y_a, a)] + (1 - lam) [CE(z, y_b) + w DA(z, y_b, b)]
    theta'  = theta - inner_rate * grad L_inner(theta)        (meta_step = sgd, the paper)
            = the optimizer's step on grad L_inner(theta)     (meta_step = optimizer)
    L_outer = CE(q; theta') + outer_alignment * DA(q; theta')

and the optimizer receives, by ``meta_gradient``,

    outer   grad L_outer at theta'                            (Algorithm 1 to the letter, first order)
    mldg    grad L_inner(theta) + outer_weight * b * grad L_outer at theta'   (first order; the default)
    exact   grad of L_outer(theta'(theta)), through the inner step            (second order)

with b = 1 (episode_weights = equal) or the query's rows over the support's (balanced: each row counts once).

DA is ``functional.alignment.alignment_loss``. ``meta = false`` trains on L_inner with every source domain as support.
Over the first ``warm_up`` steps w and the share of the mixed in the plain loss grow from 1 / warm_up to all (ours).
With ``logit_adjustment`` t > 0 (ours, not the paper's) every CE is that of the logits + t log n_d, n_d being the class
counts of the row's domain: what is learned then holds for classes of equal size, and no domain's prior is in it. With
another ``target_prior`` n_d is first divided by the class shares that an unseen domain is thought to have, for which it
then holds: ``expected``, those on which the source domains agree (``functional.imbalance.expected_log_shares``), or
``cross_validated``, those that foretell a source domain's shares best when it is left out
(``functional.imbalance.cross_validated_log_shares``).
With ``weight_average`` (ours) the run keeps SWAD's average of its weights (``--average swad``).

With ``target_alignment`` t > 0 (ours; unsupervised adaptation only) L_inner has the further term

    t * DA(S and T),    T = the unlabelled rows whose likeliest class has a probability of at least pseudo_threshold

in which each target domain is one domain more: its rows have the class that the classifier finds likeliest by then,
its centroids are those of these pseudo-classes, and rows of the support are drawn to them as its rows are to theirs.

Paper: RC-Align (ICML 2026), Algorithms 1 and 2. What it leaves open and what was chosen here: docs/fidelity.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.algorithms.lookahead import LookAhead
from rcalign.errors import InputError
from rcalign.functional.alignment import (
    alignment_loss,
    centroids,
    grouped_alignment,
    pair_sums,
    shrunk_centroids,
)
from rcalign.functional.classification import grouped_cross_entropy
from rcalign.functional.imbalance import (
    cross_validated_log_shares,
    expected_log_shares,
    log_prior,
    shares_after_adjustment,
)
from rcalign.functional.mixing import ring_pairs
from rcalign.registry import Traits, register
from rcalign.spaces import At, Choice, Field, LogUniform, Uniform
from rcalign.types import Batch

PAPER = "rc-align"  # the preset whose defaults are the paper's
_TARGET_LOG_SHARES: dict[str, Callable[[Tensor], Tensor]] = {  # counts (K, C) -> (C,), up to a constant
    "equal": lambda counts: counts.new_zeros(counts.shape[1]),
    "expected": expected_log_shares,
    "cross_validated": cross_validated_log_shares,
}


@register(
    "RC-Align",
    summary="leave-one-domain-out meta-learning with domain-class alignment and manifold mixup",
    paper="Yeom et al., Robust Domain Generalization under Divergent Marginal and Conditional Distributions (2026)",
    family="meta-learning, alignment",
    traits=Traits(
        min_domains=2,
        averages="swad",
        averages_when="weight_average",
        erm_when=(("meta", False), ("alignment_weight", 0.0), ("mixup_alpha", 0.0), ("logit_adjustment", 0.0)),
        adapts=True,
        adapts_when="target_alignment",
        alignment=(("weight", "alignment_weight"), ("temperature", "temperature"), ("inner_rate", "inner_rate")),
    ),
)
class RCAlign(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        meta: Annotated[bool, Field("hold out a query domain in each step; false: no meta-learning")] = True
        meta_gradient: Annotated[
            str, Field("what updates the parameters (see above)", choices=("mldg", "outer", "exact"))
        ] = "mldg"
        episodes: Annotated[str, Field("one query domain per step, or all of them in turn", choices=("one", "all"))] = (
            "one"
        )
        meta_step: Annotated[
            str,
            Field(
                "what makes the look-ahead: a plain gradient step or the optimizer's",
                choices=("sgd", "optimizer"),
                presets={PAPER: At("sgd")},
                added_later=True,
                first_default="sgd",
            ),
        ] = "optimizer"
        inner_rate: Annotated[
            float, Field("step size of the look-ahead under 'sgd'", LogUniform(1e-5, 1e-3), minimum=0)
        ] = 1e-3
        episode_weights: Annotated[
            str,
            Field(
                "support and query weigh the same under 'mldg', or each by its rows",
                choices=("equal", "balanced"),
                presets={PAPER: At("equal")},
                added_later=True,
                first_default="equal",
            ),
        ] = "balanced"
        outer_weight: Annotated[
            float, Field("weight of the look-ahead gradient under 'mldg'", LogUniform(0.1, 10), minimum=0)
        ] = 1.0
        alignment_weight: Annotated[
            float, Field("weight of the alignment loss (0: none)", Choice(0.1, 0.5, 1.0, 2.0), minimum=0)
        ] = 1.0
        outer_alignment: Annotated[
            float, Field("weight of the query domain's alignment loss in the outer loss (the paper: 0)", minimum=0)
        ] = 0.0
        temperature: Annotated[
            float, Field("temperature of the alignment loss", LogUniform(0.1, 10**0.5), minimum=1e-6)
        ] = 1.0
        denominator: Annotated[
            str, Field("which centroids stand in the denominator", choices=("negatives", "all_but_own"))
        ] = "negatives"
        centroids: Annotated[
            str, Field("where centroids come from: this batch or a bank", choices=("batch", "ema", "shrunk"))
        ] = "batch"
        centroid_momentum: Annotated[float, Field("share of the old value in the bank", minimum=0, maximum=1)] = 0.9
        shrinkage: Annotated[float, Field("samples that the class mean counts for in 'shrunk'", minimum=0)] = 10.0
        mixup_alpha: Annotated[
            float,
            Field("Beta parameter of manifold mixup (0: none)", Uniform(0.1, 1.0), minimum=0, presets={PAPER: At(0.2)}),
        ] = 2.0
        logit_adjustment: Annotated[
            float,
            Field(
                "how much of its domain's log class prior is added to a row's logits (the paper: 0)",
                minimum=0,
                presets={PAPER: At(0.0)},
            ),
        ] = 1.0
        target_prior: Annotated[
            str,
            Field(
                "class shares that logit adjustment trains for: equal, or an estimate of an unseen domain's",
                choices=("equal", "expected", "cross_validated"),
                presets={PAPER: At("equal")},
                added_later=True,
                first_default="equal",
            ),
        ] = "cross_validated"
        warm_up: Annotated[
            int, Field("steps over which alignment and mixup grow to full weight", minimum=0, added_later=True)
        ] = 0
        weight_average: Annotated[
            bool,
            Field(
                "keep SWAD's average of the weights (the paper: no)",
                presets={PAPER: At(False)},
                added_later=True,
                first_default=False,
            ),
        ] = True
        target_alignment: Annotated[
            float,
            Field(
                "weight of aligning unlabelled target rows by pseudo-class (protocol adapt)",
                minimum=0,
                added_later=True,
            ),
        ] = 0.0
        pseudo_threshold: Annotated[
            float,
            Field(
                "probability from which an unlabelled row has a pseudo-class", minimum=0, maximum=1, added_later=True
            ),
        ] = 0.9

    def build(self) -> None:
        if self.hparams.meta_gradient == "exact" and self.hparams.meta_step == "optimizer":
            raise InputError(
                "meta_gradient 'exact' goes through a plain gradient step, but meta_step is 'optimizer': set "
                "meta_step=sgd, or meta_gradient=mldg."
            )
        if self.hparams.centroids == "shrunk" and not self._counted:
            raise InputError(
                "centroids=shrunk needs the number of training samples of each (domain, class) pair, but all counts "
                "are zero (DomainBed's interface gives none): use 'rcalign train', or leave it out."
            )
        if self.hparams.target_alignment and not self.spec.targets:
            raise InputError(
                f"target_alignment is {self.hparams.target_alignment:g}, but there are no unlabelled rows to align: "
                "train with `protocol=adapt`, or leave it out."
            )
        self._look_ahead = LookAhead(self)
        self._queries: list[int] = []  # domains still to have their turn as query, in order
        if self.hparams.centroids != "batch":
            shape = (self.spec.num_domains, self.spec.num_classes)
            self.register_buffer("bank", torch.zeros(*shape, self.features_dim))
            self.register_buffer("bank_seen", torch.zeros(shape, dtype=torch.bool))
            self.register_buffer("pair_counts", self.spec.count_matrix)
        if self._adjusts:
            counts = self.spec.count_matrix
            self.register_buffer("log_prior", log_prior(counts) - _TARGET_LOG_SHARES[self.hparams.target_prior](counts))

    @property
    def _counted(self) -> bool:
        return any(map(sum, self.spec.counts))

    @property
    def _adjusts(self) -> bool:
        return self.hparams.logit_adjustment > 0 and self._counted

    @property
    def assumed_shares(self) -> Tensor | None:
        if not self._adjusts:
            return None
        counts = self.spec.count_matrix
        target = _TARGET_LOG_SHARES[self.hparams.target_prior](counts)
        return shares_after_adjustment(counts, target, self.hparams.logit_adjustment)

    @property
    def notes(self) -> tuple[str, ...]:
        h = self.hparams
        if h.logit_adjustment > 0 and not self._counted:
            unadjusted = (
                "the number of training samples of each (domain, class) pair is not known (DomainBed's interface gives "
                f"none), so {self.name} does not adjust logits for it.",
            )
            return unadjusted + self._idle
        return self._idle

    @property
    def _idle(self) -> tuple[str, ...]:
        """What does nothing with so few source domains, in words."""
        h = self.hparams
        if not h.meta or self.spec.num_domains > 2:
            return ()
        idle = [
            *(["alignment"] if h.alignment_weight > 0 and not self.spec.targets else []),
            *(["mixup"] if h.mixup_alpha > 0 else []),
        ]
        if not idle:
            return ()
        what = " and ".join(idle)
        return (
            f"of two source domains one is the query of a step and one its support, so {self.name} has no second "
            f"support domain for {what}: {'they do' if len(idle) > 1 else 'it does'} nothing. A third source domain "
            "changes that, or meta=false, which has both as support.",
        )

    def step(self, batch: Batch) -> Logs:
        batch = self.begin_step(batch)
        if not self.hparams.meta:
            features, target = self._passed(batch)
            mu, present = self._centroids(features, batch)
            inner, logs = self._inner(features, batch, mu, present, target)
            self.descend(inner)
            return {"loss": inner.detach(), **logs}
        logs = {}
        for query in self._turn():
            logs = self._episode(batch, query)
        self.steps_done += 1
        return logs

    def _turn(self) -> list[int]:
        """The query domains of this step: all, or the next of a shuffled round without replacement."""
        if not self._queries:
            self._queries = [int(k) for k in self.rng.permutation(self.spec.num_domains)]
        if self.hparams.episodes == "all":
            turn, self._queries = self._queries, []
            return turn
        return [self._queries.pop(0)]

    def _episode(self, batch: Batch, query: int) -> Logs:
        """One leave-one-domain-out episode and its update."""
        h = self.hparams
        support = batch.select([k for k in range(batch.num_domains) if k != query])
        held_out = batch.select([query])
        features, target = self._passed(support)
        mu, present = self._centroids(features, support)
        inner, logs = self._inner(features, support, mu, present, target)

        self.optimizer.zero_grad(set_to_none=True)
        if h.meta_gradient == "exact":
            outer = self._exact_outer(inner, held_out, mu, present)
            outer.backward()
        else:
            inner.backward()
            adds = h.meta_gradient == "mldg"
            if h.meta_step == "optimizer":
                self._look_ahead.move_by(self.optimizer, accumulate=adds)
            else:
                self._look_ahead.move(h.inner_rate, accumulate=adds)
            outer = self._outer(self._look_ahead(held_out.x), held_out, mu, present)
            share = len(held_out) / len(support) if h.episode_weights == "balanced" else 1.0
            weight = h.outer_weight * share if adds else 1.0
            (outer if weight == 1 else outer * weight).backward()
            if h.meta_gradient == "outer":
                self._look_ahead.take_gradients()
        self.optimizer.step()
        return {"loss": inner.detach() + outer.detach(), "outer": outer.detach(), **logs}

    def _passed(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Features of the labelled rows, and of the unlabelled ones where there are some, in one pass."""
        features = self.features(batch.inputs)
        return (features, None) if batch.unlabelled is None else (features[: len(batch)], features[len(batch) :])

    def _inner(
        self, features: Tensor, batch: Batch, mu: Tensor, present: Tensor, target: Tensor | None
    ) -> tuple[Tensor, Logs]:
        """L_inner on the domains of this batch that have rows. target: features of the unlabelled rows."""
        domains = [k for k, size in enumerate(batch.sizes) if size]
        pairs = ring_pairs(domains, self.rng) if self.hparams.mixup_alpha > 0 else []
        warmth = min(1.0, (self.steps_done + 1) / self.hparams.warm_up) if self.hparams.warm_up else 1.0
        if not pairs or warmth < 1:
            ce = self._cross_entropy(self.head(features), batch.y, batch.domain)
            da = self._alignment(features, batch.y, batch.domain, mu, present)
        if pairs:
            mixed = self._mixed(features, batch, pairs, mu, present)
            ce, da = mixed if warmth == 1 else (a + warmth * (b - a) for a, b in zip((ce, da), mixed, strict=True))
        weight = self.hparams.alignment_weight * warmth
        loss = ce + (da if weight == 1 else weight * da)
        logs: Logs = {"cross_entropy": ce.detach(), "alignment": da.detach()}
        if target is not None:
            aligned = self._target_alignment(features, batch, target)
            loss = loss + self.hparams.target_alignment * warmth * aligned
            logs["target_alignment"] = aligned.detach()
        return loss, logs

    def _target_alignment(self, features: Tensor, batch: Batch, target: Tensor) -> Tensor:
        """DA of labelled rows (N, h) and of the unlabelled ones (U, h) that have a pseudo-class."""
        with torch.no_grad():
            probability, guess = self.head(target).softmax(1).max(1)
        sure = probability >= self.hparams.pseudo_threshold
        z = torch.cat([features, target[sure]])
        y = torch.cat([batch.y, guess[sure]])
        domain = torch.cat([batch.domain, batch.input_domains[len(batch) :][sure]])
        mu, present = centroids(z, y, domain, self.spec.num_domains + len(self.spec.targets), self.spec.num_classes)
        h = self.hparams
        return alignment_loss(z, y, domain, mu, present, temperature=h.temperature, denominator=h.denominator)

    def _mixed(
        self, features: Tensor, batch: Batch, pairs: Sequence[tuple[int, int]], mu: Tensor, present: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Both losses of the mixes of all pairs, in one pass through the head. A row has two labels, those of the rows
        that it is mixed of, and each (label, pair) has its own mean.
        """
        rows = [min(batch.sizes[a], batch.sizes[b]) for a, b in pairs]
        shares = [float(self.rng.beta(self.hparams.mixup_alpha, self.hparams.mixup_alpha)) for _ in pairs]
        n, by_domain = sum(rows), batch.split(features)
        mixes = [
            torch.lerp(_first(by_domain[b], k), _first(by_domain[a], k), share)
            for (a, b), k, share in zip(pairs, rows, shares, strict=True)
        ]
        mixed = mixes[0] if len(mixes) == 1 else torch.cat(mixes)
        y = batch.split(batch.y)
        first, second = (
            [_first(y[d], k) for d, k in zip(side, rows, strict=True)] for side in zip(*pairs, strict=True)
        )
        labels = torch.cat([*first, *second]).view(2, n)
        domain = torch.from_numpy(np.repeat(np.transpose(pairs), rows, axis=1)).to(labels.device)  # (2, n)
        pair = torch.from_numpy(np.repeat(np.arange(len(pairs)), rows)).to(labels.device)  # (n,)
        weights = np.array([shares, [1 - share for share in shares]]) / len(pairs)
        weight = torch.from_numpy(weights).to(features)  # (2, pairs)

        ce = self._grouped_ce(self.head(mixed), labels, domain, pair, weight)
        if not self._aligns:
            return ce, mixed.new_zeros(())
        return ce, self._grouped_da(mixed, labels, domain, mu, present, pair, weight)

    def _outer(self, output: tuple[Tensor, Tensor], batch: Batch, mu: Tensor, present: Tensor) -> Tensor:
        """L_outer of the query batch, from its features and logits."""
        features, logits = output
        loss = self._cross_entropy(logits, batch.y, batch.domain)
        if self.hparams.outer_alignment > 0:
            da = self._alignment(features, batch.y, batch.domain, mu, present)
            loss = loss + self.hparams.outer_alignment * da
        return loss

    def _cross_entropy(self, logits: Tensor, y: Tensor, domain: Tensor) -> Tensor:
        """Mean over rows."""
        if not self._adjusts:
            return self.cross_entropy(logits, y)
        return self._grouped_ce(logits, y[None], domain[None], *_one_group(y, logits))

    def _grouped_ce(self, logits: Tensor, y: Tensor, domain: Tensor, group: Tensor, weight: Tensor) -> Tensor:
        """With ``logit_adjustment`` the log prior of its domain is added to a row's logits."""
        return grouped_cross_entropy(
            logits,
            y,
            domain,
            group=group,
            weight=weight,
            offsets=self.hparams.logit_adjustment * self.log_prior if self._adjusts else None,
            label_smoothing=self.label_smoothing,
            twice=self.hparams.meta_gradient == "exact",
        )

    def _exact_outer(self, inner: Tensor, held_out: Batch, mu: Tensor, present: Tensor) -> Tensor:
        """L_outer at theta'(theta) with its graph kept through the inner step."""
        named = {name: p for name, p in self.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(inner, list(named.values()), create_graph=True, allow_unused=True)
        ahead = {
            name: p if g is None else p - self.hparams.inner_rate * g
            for (name, p), g in zip(named.items(), gradients, strict=True)
        }
        return self._outer(torch.func.functional_call(self, ahead, (held_out.x,)), held_out, mu, present)

    @property
    def _aligns(self) -> bool:
        return self.hparams.alignment_weight > 0 or self.hparams.outer_alignment > 0

    def _alignment(self, features: Tensor, y: Tensor, domain: Tensor, mu: Tensor, present: Tensor) -> Tensor:
        if not self._aligns:
            return features.new_zeros(())
        return self._grouped_da(features, y[None], domain[None], mu, present, *_one_group(y, features))

    def _grouped_da(
        self, features: Tensor, y: Tensor, domain: Tensor, mu: Tensor, present: Tensor, group: Tensor, weight: Tensor
    ) -> Tensor:
        return grouped_alignment(
            features,
            y,
            domain,
            mu,
            present,
            group=group,
            weight=weight,
            temperature=self.hparams.temperature,
            denominator=self.hparams.denominator,
            twice=self.hparams.meta_gradient == "exact",
        )

    @torch.no_grad()
    def _centroids(self, features: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Centroids (K, C, h) and which of them exist (K, C), of the domains in this batch only."""
        shape = (self.spec.num_domains, self.spec.num_classes)
        if self.hparams.centroids == "batch":
            return centroids(features, batch.y, batch.domain, *shape)
        sums, counts = pair_sums(F.normalize(features, dim=1), batch.y, batch.domain, *shape)
        found = counts > 0
        means = sums / counts.clamp(min=1)[..., None]
        momentum = self.hparams.centroid_momentum * self.bank_seen.to(means)[..., None]  # first seen: copied
        self.bank.copy_(torch.where(found[..., None], momentum * self.bank + (1 - momentum) * means, self.bank))
        self.bank_seen |= found
        here = torch.tensor([size > 0 for size in batch.sizes], device=features.device)
        present = self.bank_seen & here[:, None]
        if self.hparams.centroids == "ema":
            return F.normalize(self.bank, dim=2), present
        return shrunk_centroids(self.bank, present, self.pair_counts, self.hparams.shrinkage), present

    def more_state(self) -> dict[str, Any]:
        return {"queries": list(self._queries)}

    def load_more_state(self, state: Mapping[str, Any]) -> None:
        self._queries = [int(k) for k in state["queries"]]

    bank: Tensor
    bank_seen: Tensor
    pair_counts: Tensor
    log_prior: Tensor
    rng: np.random.Generator


def _first(values: Tensor, rows: int) -> Tensor:
    """The first rows; the tensor itself where that is all, which saves autograd a step."""
    return values if len(values) == rows else values[:rows]


def _one_group(y: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Group (n,) and weight (1, 1) of rows that all count alike."""
    return torch.zeros_like(y), like.new_ones(1, 1)
