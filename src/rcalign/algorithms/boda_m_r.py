"""BoDA-M_r: BoDA_r with Mahalanobis distances, so that the spread of each (domain, class) pair counts too.

As BoDA_r, but with d(i, p) = sqrt((z_i - mu_p)^T S_p^-1 (z_i - mu_p)) / sqrt(h) instead of ||z_i - mu_p||. With
Sigma_p the covariance of pair p's N_p training features and Sigma_pool = sum_p N_p Sigma_p / sum_p N_p:

    S_p = (1 - r_p) Sigma_p + r_p Sigma_pool + eps I,   r_p = shrinkage / (N_p + shrinkage), 1 for N_p = 1,
    eps = 1e-4 trace(Sigma_pool) / h

``covariance``: ``diagonal`` keeps variances only (default), ``pooled`` uses S = Sigma_pool + eps I for every pair,
``full`` keeps an (h, h) matrix per pair (small h only). At a refresh first and second moments take the momentum of
BoDA_r's centroids: Sigma = (1 - m) current + m old + m (1 - m) (mu_current - mu_old)(mu_current - mu_old)^T.

Paper: Yang et al., On Multi-Domain Long-Tailed Recognition, Imbalanced Domain Generalization and Beyond (2022).
Departures: a reconstruction. No public code has this variant; that M stands for the Mahalanobis distance is from the
paper as remembered, and everything about estimating S_p, as well as the division by sqrt(h), is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from rcalign.algorithms.boda_r import BoDAr
from rcalign.errors import InputError
from rcalign.functional import mahalanobis as ma
from rcalign.functional.boda_loss import blend
from rcalign.registry import Traits, register
from rcalign.spaces import Field, LogUniform

LARGEST = 2**28  # numbers in a table of covariances: 1 GiB of float32


@register(
    "BoDA-M_r",
    summary="BoDA_r with Mahalanobis distances (a reconstruction)",
    paper="Yang et al., On Multi-Domain Long-Tailed Recognition, Imbalanced Domain Generalization and Beyond (2022)",
    family="long-tailed, alignment",
    traits=Traits(
        needs_counts=True,
        erm_when=(("boda_weight", 0.0), ("macro_weight", 0.0)),
        alignment=(("temperature", "temperature"),),
    ),
)
class BoDAMr(BoDAr):
    @dataclass(frozen=True, kw_only=True)
    class Hparams(BoDAr.Hparams):
        temperature: Annotated[
            float, Field("temperature of the alignment", LogUniform(10**-1.5, 10**0.5), minimum=1e-6)
        ] = 1.0
        covariance: Annotated[
            str, Field("what is kept of a pair's covariance", choices=("diagonal", "pooled", "full"))
        ] = "diagonal"
        shrinkage: Annotated[
            float, Field("samples that the pooled covariance counts for", LogUniform(1, 100), minimum=0)
        ] = 10.0

    covariances: Tensor  # shape by ``covariance``: the estimates, before shrinkage
    whitening: Tensor  # the same shape: W_p with W_p S_p W_p^T = I

    def build(self) -> None:
        super().build()
        shape = ma.covariance_shape(
            self.hparams.covariance, self.spec.num_domains, self.spec.num_classes, self.features_dim
        )
        if math.prod(shape) > LARGEST:
            raise InputError(
                f"covariance '{self.hparams.covariance}' would need a table of {' x '.join(map(str, shape))} numbers, "
                "which is too large: use 'diagonal'."
            )
        self.register_buffer("covariances", torch.zeros(shape))
        self.register_buffer("whitening", torch.zeros(shape))

    def distances(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):  # half precision would drown small distances
            return ma.mahalanobis_distances(features, self.centroids, self.whitening, self.hparams.covariance)

    def refresh_spread(self, deviation: Tensor, y: Tensor, domain: Tensor, momentum: Tensor, shift: Tensor) -> None:
        form = self.hparams.covariance
        current = ma.pair_covariance(deviation, y, domain, self.spec.num_domains, self.spec.num_classes, form)
        if form == "pooled":  # one covariance, known from the first refresh on
            momentum = torch.full_like(current, self.hparams.momentum if self.refreshed_at >= 0 else 0.0)
        elif form == "full":
            momentum = momentum[..., None]
        between = momentum * (1 - momentum) * ma.outer(shift, self.pair_counts, form)
        self.covariances.copy_(blend(current, self.covariances, momentum) + between)
        shrunk = ma.shrunk(self.covariances, self.pair_counts, form, self.hparams.shrinkage)
        self.whitening.copy_(ma.whitening(shrunk, form))
