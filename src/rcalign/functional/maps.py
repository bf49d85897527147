"""Statistics of feature maps inside a network, and partners to mix them with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

EPSILON = 1e-6


def map_statistics(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sqrt(unbiased variance + 1e-6) of each channel over its positions, without gradient.

    maps (n, c, ...) -> two of (n, c, 1, ...). A map of a single position has variance 0.

    >>> mean, spread = map_statistics(torch.tensor([[[[1.0, 3.0]]]]))
    >>> mean.item(), round(spread.item(), 4)
    (2.0, 1.4142)
    """
    positions = tuple(range(2, maps.dim()))
    with torch.no_grad():
        mean = maps.mean(positions, keepdim=True)
        correction = 1 if maps[0, 0].numel() > 1 else 0
        return mean, (maps.var(positions, correction=correction, keepdim=True) + EPSILON).sqrt()


def mixed_statistics(
    maps: Tensor, partners: Tensor, weight: Tensor, all_rows: Callable[[Tensor], Tensor] = lambda values: values
) -> Tensor:
    """Each map with its statistics mixed with those of another: (n, c, ...), (n,), (n,) -> (n, c, ...).

    out_i = (a_i - mu_i) / sigma_i * (w_i sigma_i + (1 - w_i) sigma_p) + w_i mu_i + (1 - w_i) mu_p, p = partners[i].
    all_rows: gives the statistics that ``partners`` point into, where these maps are only some of a batch's.

    >>> maps = torch.tensor([[[1.0, 3.0]], [[0.0, 8.0]]])  # two samples, one channel, two positions
    >>> mixed_statistics(maps, torch.tensor([1, 0]), torch.zeros(2)).round().tolist()
    [[[0.0, 8.0]], [[1.0, 3.0]]]
    """
    mean, spread = map_statistics(maps)
    share = weight.view(-1, *[1] * (maps.dim() - 1))
    new_mean = share * mean + (1 - share) * all_rows(mean)[partners]
    new_spread = share * spread + (1 - share) * all_rows(spread)[partners]
    return (maps - mean) / spread * new_spread + new_mean


def partners_from_other_domains(domain: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each row a random row of another domain: (n,) -> (n,). At least two domains must occur.

    >>> domain = np.array([0, 0, 1, 2])
    >>> found = partners_from_other_domains(domain, np.random.default_rng(0))
    >>> bool((domain[found] != domain).all())
    True
    """
    found = np.empty_like(domain)
    for k in np.unique(domain):
        here = domain == k
        found[here] = rng.choice(np.flatnonzero(~here), size=int(here.sum()))
    return found
