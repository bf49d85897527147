"""MixStyle: mix the statistics of two images' feature maps inside the network.

After each of the first three stages, in training only and each time with probability p, for the maps a of all images

    out_i = (a_i - mu_i) / sigma_i * (lam_i sigma_i + (1 - lam_i) sigma_j) + lam_i mu_i + (1 - lam_i) mu_j

mu, sigma: mean and sqrt(variance + 1e-6) of each channel over positions, without gradient; lam_i ~ Beta(alpha, alpha)
for each image; j the partner of i: a permutation of the batch (``partners = "random"``) or, for each image, a random
image of another domain (``"other_domains"``). Loss CE_all. Prediction does not mix.

Paper: Zhou et al., Domain Generalization with MixStyle (2021). Departures: in the public code cross-domain batches are
two halves that swap; here partners are drawn by domain, which needs no even batch. p = 0 is ERM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rcalign.algorithms.base import Algorithm, BaseHparams
from rcalign.algorithms.stages import changed_maps, stages_of
from rcalign.distributed import all_rows, own_rows
from rcalign.errors import InputError
from rcalign.functional.maps import mixed_statistics, partners_from_other_domains
from rcalign.registry import Traits, register
from rcalign.spaces import Choice, Field
from rcalign.types import Batch, StepOutput


@register(
    "MixStyle",
    summary="mixes the statistics of feature maps between images",
    paper="Zhou et al., Domain Generalization with MixStyle (2021)",
    family="augmentation",
    traits=Traits(images_only=True),
)
class MixStyle(Algorithm):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BaseHparams):
        probability: Annotated[float, Field("of mixing, for each stage and step", minimum=0, maximum=1)] = 0.5
        alpha: Annotated[float, Field("Beta parameter of the mix", Choice(0.1, 0.3, 0.5), minimum=1e-3)] = 0.1
        partners: Annotated[str, Field("who is mixed with whom (see above)", choices=("random", "other_domains"))] = (
            "random"
        )

    def build(self) -> None:
        self._stages = stages_of(self.featurizer)[:3]
        if not self._stages:
            raise InputError(
                "MixStyle changes feature maps between the stages of a convolutional network, but this backbone has no "
                "such stages: use a ResNet, EfficientNet, MobileNet or ConvNeXt."
            )
        if self.hparams.partners == "other_domains" and self.spec.num_domains < 2:
            raise InputError(
                "MixStyle with partners 'other_domains' needs at least two source domains, but found one "
                f"({self.spec.domains[0]}): use partners 'random'."
            )

    def loss(self, batch: Batch) -> StepOutput:
        def mixed(maps: Tensor) -> Tensor:
            if self.rng.random() >= self.hparams.probability:
                return maps
            rows = len(batch)  # of which these maps may be one worker's
            if self.hparams.partners == "random":
                partners = self.rng.permutation(rows)
            else:
                partners = partners_from_other_domains(batch.domain.cpu().numpy(), self.rng)
            weight = self.rng.beta(self.hparams.alpha, self.hparams.alpha, size=rows)
            return mixed_statistics(
                maps,
                own_rows(torch.from_numpy(partners).to(maps.device)),
                own_rows(torch.from_numpy(weight).to(maps)),
                all_rows,
            )

        with changed_maps(self._stages, mixed):
            _, logits = self(batch.x)
        return StepOutput(self.cross_entropy(logits, batch.y))
