"""CAD (contrastive adversarial domain bottleneck): a sample's neighbours must not tell its domain.

With z = f(x), over the N samples of the batch, s_ij = z_i . z_j / temperature (z normalised with ``normalized``, mapped
by a small network with ``projected``):

    L = (1/N) sum_i CE_i + penalty_weight * B
    B = -(temperature / 0.07) mean_i log [ sum_{j: d_j != d_i} exp(s_ij) / sum_{j != i} exp(s_ij) ]

Without ``flipped`` B is +(temperature / 0.07) mean_i of the log share of the sample's own domain: the same optimum, but
less stable. A sample without any such neighbour takes no part in B; penalty_weight = 0 is ERM.

Paper: Ruan, Dubois, Maddison, Optimal Representations for Covariate Shift (2022). Departures: none known by default.
DomainBed leaves out samples whose class occurs once in the batch, though this form needs no labels, and where not
flipped counts the sample itself as one of its domain: ``form = published``, for its tables only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.functional.bottleneck import domain_bottleneck
from rcalign.registry import Traits, register
from rcalign.spaces import At, Choice, Field
from rcalign.types import Batch, StepOutput

PROJECTED_WIDTH = 128


@dataclass(frozen=True, kw_only=True)
class BottleneckHparams(BaseHparams):
    penalty_weight: Annotated[
        float,
        Field("weight of the bottleneck", Choice(1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0), minimum=0),
    ] = 0.1
    temperature: Annotated[float, Field("of the similarities", Choice(0.05, 0.1), minimum=1e-6)] = 0.1
    normalized: Annotated[bool, Field("features of length one in the bottleneck")] = False
    projected: Annotated[bool, Field("a two-layer network before the bottleneck")] = False
    flipped: Annotated[bool, Field("raise the share of other domains, not lower that of the own")] = True


class Bottleneck(Algorithm):
    """Cross-entropy and a contrastive domain bottleneck."""

    Hparams = BottleneckHparams

    def build(self) -> None:
        if self.hparams.projected:
            width = self.features_dim
            self.project = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, PROJECTED_WIDTH))

    def loss(self, batch: Batch) -> StepOutput:
        features, logits = self(batch.x)
        risk = self.cross_entropy(logits, batch.y)
        compared = self.project(features) if self.hparams.projected else features
        penalty = self.bottleneck(F.normalize(compared, dim=1) if self.hparams.normalized else compared, batch)
        loss = risk + self.hparams.penalty_weight * penalty
        return StepOutput(loss, {"risk": risk.detach(), "penalty": penalty.detach()})

    def bottleneck(self, features: Tensor, batch: Batch) -> Tensor:
        """B of features (N, m)."""
        raise NotImplementedError


@register(
    "CAD",
    summary="a sample's nearest neighbours must not tell its domain",
    paper="Ruan et al., Optimal Representations for Covariate Shift (2022)",
    family="contrastive alignment",
    traits=Traits(erm_when=(("penalty_weight", 0.0),)),
)
class CAD(Bottleneck):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BottleneckHparams):
        form: Annotated[
            str,
            Field(
                "the paper's bottleneck, or DomainBed's with its defects",
                choices=("paper", "published"),
                presets={"domainbed-2024": At("published")},
            ),
        ] = "paper"

    def bottleneck(self, features: Tensor, batch: Batch) -> Tensor:
        h = self.hparams
        return domain_bottleneck(
            features,
            batch.y,
            batch.domain,
            h.temperature,
            within_class=False,
            flipped=h.flipped,
            published=h.form == "published",
        )
