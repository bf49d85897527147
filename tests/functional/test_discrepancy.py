"""Discrepancies between domains and the splits they are taken over."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from rcalign.functional.discrepancy import held_out_splits, loss_gap, pair_index


@pytest.mark.parametrize("domains", [2, 3, 4, 7])
def test_pair_index_is_a_bijection(domains: int) -> None:
    places = [pair_index(i, j, domains) for i, j in combinations(range(domains), 2)]
    assert places == list(range(domains * (domains - 1) // 2))
    assert all(pair_index(j, i, domains) == pair_index(i, j, domains) for i, j in combinations(range(domains), 2))


@pytest.mark.parametrize("domains", [3, 4, 5])
def test_splits(domains: int) -> None:
    splits = held_out_splits(domains, np.random.default_rng(0))
    assert len(splits) == domains * (domains - 2)
    for held_out, rest in splits:
        assert held_out not in rest and len(set(rest)) == len(rest) >= 2
    assert {held_out for held_out, _ in splits} == set(range(domains))


def test_equal_domains_have_no_gap() -> None:
    logits, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert loss_gap((logits, y), (logits.flip(0), y.flip(0))).item() == pytest.approx(0, abs=1e-6)
    assert loss_gap((logits, y), (torch.zeros(4, 3), y)) == loss_gap((torch.zeros(4, 3), y), (logits, y))
