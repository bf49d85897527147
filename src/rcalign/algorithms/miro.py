"""MIRO (mutual information regularisation with oracle): stay close to what the pretrained network knows.

    L = CE_all + prior_weight * sum over layers of mean((a - a0)^2 / s^2 + log s^2) / 2

a are the maps after the backbone's stages and the features, a0 those of a frozen copy of the network as it was given,
s^2 = softplus(b) + 1e-5 learned, one for each channel, 0.1 at first, with rate_factor times the learning rate. The sum
is, up to a constant, a variational bound on the mutual information with the pretrained network's features.
prior_weight = 0 is ERM.

Paper: Cha et al., Domain Generalization by Mutual-Information Regularization with Pre-trained Models (2022).
Departures: the layers are the stages that the backbone shows and the pooled features in place of the last map, where
the public code takes the stem and four stages (docs/algorithms/miro.md).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from torch import Tensor, nn

from rcalign.algorithms.base import Algorithm, BaseHparams, evaluating
from rcalign.algorithms.stages import read_maps, stages_of
from rcalign.functional.gaussian import gaussian_gap, raw_variance, variance_of
from rcalign.registry import Traits, register
from rcalign.spaces import Choice, Field
from rcalign.types import Batch, StepOutput

START_VARIANCE = 0.1


class Frozen(nn.Module):
    """A network that never trains: no gradient, always in evaluation mode."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def with_maps(featurizer: nn.Module, x: Tensor) -> list[Tensor]:
    """The maps after the featurizer's stages, where it has any, and last its features."""
    with read_maps(stages_of(featurizer)) as maps:
        features = featurizer(x)
    return [*maps, features]


@register(
    "MIRO",
    summary="stays close to the pretrained network, with learned tolerances",
    paper="Cha et al., Domain Generalization by Mutual-Information Regularization with Pre-trained Models (2022)",
    family="pretrained prior",
    traits=Traits(erm_when=(("prior_weight", 0.0),)),
)
class MIRO(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        prior_weight: Annotated[float, Field("of closeness to the start (ld)", Choice(0.01, 0.1), minimum=0)] = 0.1
        rate_factor: Annotated[float, Field("of the variances' learning rate (lr_mult)", minimum=0)] = 10.0

    def build(self) -> None:
        self.pretrained = Frozen(copy.deepcopy(self.featurizer))
        like = next(self.head.parameters())
        with torch.no_grad(), evaluating(self.featurizer):
            maps = with_maps(self.featurizer, like.new_zeros(1, *self.spec.input_shape))
        raw = raw_variance(START_VARIANCE)
        self.layer_variances = nn.ParameterList(torch.full((a.shape[1],), raw) for a in maps)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        main = self.adam([*self.featurizer.parameters(), *self.head.parameters()])
        main.add_param_group({"params": list(self.layer_variances), "lr": self.variance_rate})
        return {"main": main}

    @property
    def row_networks(self) -> list[nn.Module]:
        return [self.featurizer, self.pretrained.network]

    @property
    def variance_rate(self) -> float:
        return self.hparams.rate_factor * self.hparams.learning_rate

    def loss(self, batch: Batch) -> StepOutput:
        features, logits, maps = self.forward_with_maps(batch.x)
        risk = self.cross_entropy(logits, batch.y)
        prior = self.prior(maps, batch.x) if self.hparams.prior_weight > 0 else features.new_zeros(())
        loss = risk + self.hparams.prior_weight * prior
        return StepOutput(loss, {"cross_entropy": risk.detach(), "prior": prior.detach()})

    def forward_with_maps(self, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """x (n, ...) -> features (n, h), logits (n, C), and the layers that the prior compares."""
        with read_maps([*stages_of(self.featurizer), self.featurizer]) as maps:
            features, logits = self(x)
        return features, logits, maps

    def prior(self, maps: list[Tensor], x: Tensor) -> Tensor:
        """The sum over layers: ()."""
        with torch.no_grad():
            given = with_maps(self.pretrained.network, x)
        gaps = []
        for a, a0, raw in zip(maps, given, self.layer_variances, strict=True):
            variance = variance_of(raw).view(-1, *[1] * (a.dim() - 2))  # one for each channel
            gaps.append(gaussian_gap(a, a0, variance))
        return torch.stack(gaps).sum()
