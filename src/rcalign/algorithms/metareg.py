"""MetaReg: learn a regulariser of the head under which training it on one domain works on another.

Stage one, "MetaReg-regulariser": featurizer f, one linear head theta_d for each domain, strengths phi (C x h) from 0.
A step, with the features z of one forward pass:

    (a) f and all theta_d descend sum_d CE(theta_d, z_d)
    (b) a != b drawn at random; beta = theta_a; ``inner_steps`` times
        beta <- beta - rate grad [CE(beta, z_a) + R(beta)], rate = inner_rate_factor * learning_rate,
        R(beta) = sum_j phi_j |beta_j| over the head's weights
    (c) phi descends CE(beta, z_b) through the steps of (b), by an Adam of its own, and is clamped at 0; f stays

Stage two, "MetaReg": a new model from the initial weights on all domains: CE_all + regulariser_weight * R(head), phi
fixed.

Paper: Balaji et al., MetaReg: Towards Domain Generalization using Meta-Regularization (2018), read in abstract; no
working public code was found. What is our reading: see docs/algorithms/metareg.md.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rcalign.algorithms.base import Algorithm, BaseHparams, Logs
from rcalign.errors import InputError
from rcalign.functional.regulariser import adapted_head, weighted_l1
from rcalign.registry import Traits, register
from rcalign.spaces import Choice, Field, LogUniform
from rcalign.types import Batch, StepOutput

PAPER = "Balaji et al., MetaReg: Towards Domain Generalization using Meta-Regularization (2018)"
STRENGTH = "strength"  # the name of phi in the states of both stages


@dataclass(frozen=True, kw_only=True)
class MetaRegHparams(BaseHparams):
    """The hyperparameters of both stages, so that one search covers them."""

    inner_steps: Annotated[
        int, Field("stage one: steps of a head under the regulariser", Choice(1, 3, 5), minimum=1)
    ] = 3
    inner_rate_factor: Annotated[float, Field("stage one: step size of those over the learning rate", minimum=0)] = 1.0
    regulariser_weight: Annotated[
        float, Field("stage two: weight of the learned regulariser", LogUniform(0.01, 1), minimum=0)
    ] = 1.0


class DomainHeads(nn.Module):
    """One linear head for each domain; called, it gives the mean of their logits: (n, h) -> (n, C)."""

    def __init__(self, head: nn.Linear, domains: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(copy.deepcopy(head) for _ in range(domains))

    def forward(self, features: Tensor) -> Tensor:
        return torch.stack([head(features) for head in self.each]).mean(0)


@register(
    "MetaReg-regulariser",
    summary="stage one of MetaReg: learns how strongly each weight of the head is held back",
    paper=PAPER,
    family="meta-learning, two stages",
    traits=Traits(min_domains=2, recipe_part=True),
)
class MetaRegRegulariser(Algorithm):
    Hparams = MetaRegHparams

    def build(self) -> None:
        self.strength = nn.Parameter(torch.zeros_like(self.head.weight))
        self.head = DomainHeads(self.head, self.spec.num_domains)  # type: ignore[assignment]

    @property
    def heads(self) -> list[nn.Linear]:
        return cast(list[nn.Linear], list(cast(DomainHeads, self.head).each))

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        network = [*self.featurizer.parameters(), *self.head.parameters()]
        return {"main": self.adam(network), "regulariser": self.adam([self.strength], weight_decay=0.0)}

    def step(self, batch: Batch) -> Logs:
        batch = self.begin_step(batch)
        features = self.features(batch.x)
        z, y = batch.split(features), batch.split(batch.y)
        heads = self.heads
        losses = [self.cross_entropy(head(z_d), y_d) for head, z_d, y_d in zip(heads, z, y, strict=True)]
        loss = torch.stack(losses).sum()
        self.descend(loss)

        a, b = (int(k) for k in self.rng.choice(len(heads), size=2, replace=False))
        weight, bias = adapted_head(
            heads[a].weight,
            heads[a].bias,
            z[a],
            y[a],
            self.strength,
            rate=self.hparams.inner_rate_factor * self.hparams.learning_rate,
            steps=self.hparams.inner_steps,
        )
        outer = self.cross_entropy(F.linear(z[b].detach(), weight, bias), y[b])
        self.optimizers["regulariser"].zero_grad(set_to_none=True)
        outer.backward()
        self.optimizers["regulariser"].step()
        with torch.no_grad():
            self.strength.clamp_(min=0)  # a negative strength would make stage two unbounded below
        return {"loss": loss.detach(), "outer": outer.detach(), "strength": self.strength.detach().mean()}


@register(
    "MetaReg",
    summary="ERM with a regulariser of the head that was learned between domains",
    paper=PAPER,
    family="meta-learning, two stages",
    traits=Traits(min_domains=2, stage_one="MetaReg-regulariser", erm_when=(("regulariser_weight", 0.0),)),
)
class MetaReg(Algorithm):
    Hparams = MetaRegHparams

    strength: Tensor  # (C, h)
    stage_one_loaded: Tensor  # () bool: part of the state, so that a resumed run knows

    def build(self) -> None:
        self.register_buffer(STRENGTH, torch.zeros_like(self.head.weight))
        self.register_buffer("stage_one_loaded", torch.zeros((), dtype=torch.bool))

    def start_from(self, stage_one: Mapping[str, Tensor]) -> None:
        """Takes the strengths of the first run, and no weights: stage two trains a new model."""
        given = stage_one.get(STRENGTH)
        if given is None or given.shape != self.strength.shape:
            found = "no strengths" if given is None else f"strengths of shape {tuple(given.shape)}"
            raise InputError(
                f"MetaReg needs the regulariser of a MetaReg-regulariser run with strengths of shape "
                f"{tuple(self.strength.shape)}, but found {found}: run both stages with the same backbone and classes."
            )
        self.strength.copy_(given)
        self.stage_one_loaded.fill_(True)

    def loss(self, batch: Batch) -> StepOutput:
        if not self.stage_one_loaded:
            raise InputError(
                "MetaReg trains under the regulariser of a finished MetaReg-regulariser run, but got none: run "
                "MetaReg-regulariser first and pass its weights to start_from (the train command does both)."
            )
        ce = self.cross_entropy(self(batch.x)[1], batch.y)
        penalty = weighted_l1(self.head.weight, self.strength)
        logs: Logs = {"cross_entropy": ce.detach(), "penalty": penalty.detach()}
        return StepOutput(ce + self.hparams.regulariser_weight * penalty, logs)
