"""Statistics of feature maps and their mixes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rcalign.functional.maps import map_statistics, mixed_statistics, partners_from_other_domains


@pytest.fixture
def maps() -> torch.Tensor:
    return torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * 2 + 1


def test_own_partner_or_weight_one_changes_nothing(maps: torch.Tensor) -> None:
    weight = torch.rand(4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(mixed_statistics(maps, torch.arange(4), weight), maps, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        mixed_statistics(maps, torch.tensor([1, 2, 3, 0]), torch.ones(4)), maps, atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("shape", [(4, 3, 5, 5), (4, 3, 9)])
def test_output_has_the_mixed_statistics(shape: tuple[int, ...]) -> None:
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    partners, weight = torch.tensor([2, 3, 1, 0]), torch.tensor([0.1, 0.5, 0.9, 0.0])
    mean, spread = map_statistics(maps)
    new_mean, new_spread = map_statistics(mixed_statistics(maps, partners, weight))
    share = weight.view(-1, *[1] * (len(shape) - 1))
    torch.testing.assert_close(new_mean, share * mean + (1 - share) * mean[partners], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(new_spread, share * spread + (1 - share) * spread[partners], atol=1e-4, rtol=1e-4)


def test_statistics_get_no_gradient(maps: torch.Tensor) -> None:
    maps.requires_grad_()
    weight = torch.full((4,), 0.5)
    partners = torch.tensor([1, 0, 3, 2])
    mixed_statistics(maps, partners, weight).sum().backward()
    _, spread = map_statistics(maps)
    scale = (0.5 * spread + 0.5 * spread[partners]) / spread
    torch.testing.assert_close(maps.grad, scale.expand_as(maps))


def test_a_single_position_stays_finite() -> None:
    one = torch.randn(3, 2, 1, 1)
    assert torch.isfinite(mixed_statistics(one, torch.tensor([1, 2, 0]), torch.full((3,), 0.5))).all()


def test_partners_come_from_every_other_domain() -> None:
    domain = np.repeat([0, 1, 2], [1, 4, 2])
    rng = np.random.default_rng(0)
    drawn = np.stack([partners_from_other_domains(domain, rng) for _ in range(200)])
    assert (domain[drawn] != domain).all()
    assert set(drawn[:, 0]) == {1, 2, 3, 4, 5, 6}
