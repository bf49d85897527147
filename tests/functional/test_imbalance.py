"""Properties of the count-based weights and losses, beside the recorded figures in tests/parity."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from rcalign.functional import imbalance as im
from rcalign.functional.classification import domain_cross_entropy

rows = st.lists(st.integers(0, 5000), min_size=3, max_size=3).filter(any)
tables = st.lists(rows, min_size=1, max_size=4).map(torch.tensor)
full_rows = st.lists(st.integers(1, 200), min_size=3, max_size=3)  # no class is missing


def case(seed: int = 0, sizes: tuple[int, ...] = (5, 3, 4)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits (N, 3), labels (N,), domains (N,) in float64."""
    generator = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    domain = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    logits = 2 * torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return logits, torch.randint(3, (n,), generator=generator), domain


@settings(max_examples=50, deadline=None)
@given(counts=tables, beta=st.floats(0, 0.99999))
def test_weights_sum_to_classes_and_vanish_only_where_there_are_no_samples(counts: torch.Tensor, beta: float) -> None:
    found = (im.inverse_weights(counts), im.inverse_weights(counts, 0.5), im.effective_number_weights(counts, beta))
    for weights in found:
        torch.testing.assert_close(weights.sum(1), torch.full((len(counts),), 3.0, dtype=torch.float64))
        assert torch.equal(weights > 0, counts > 0)
    assert torch.equal(im.margins(counts, 0.5) > 0, counts > 0)


@settings(max_examples=25, deadline=None)
@given(counts=tables, factor=st.integers(2, 9))
def test_scaling_all_counts_changes_nothing(counts: torch.Tensor, factor: int) -> None:
    torch.testing.assert_close(im.inverse_weights(factor * counts), im.inverse_weights(counts))
    torch.testing.assert_close(im.margins(factor * counts, 0.5), im.margins(counts, 0.5))
    torch.testing.assert_close(im.inverse_weights(counts**2, 0.5), im.inverse_weights(counts))


def test_effective_number_lies_between_equal_weights_and_inverse_frequency() -> None:
    counts = torch.tensor([[1, 20, 400], [7, 0, 90]])
    equal = torch.tensor([[1.0, 1.0, 1.0], [1.5, 0.0, 1.5]], dtype=torch.float64)
    torch.testing.assert_close(im.effective_number_weights(counts, 0.0), equal)
    torch.testing.assert_close(im.effective_number_weights(counts, 1e-9), equal, atol=1e-6, rtol=0)
    near_one = im.effective_number_weights(counts, 1 - 1e-9)
    torch.testing.assert_close(near_one, im.inverse_weights(counts), atol=1e-6, rtol=0)
    weights = im.effective_number_weights(torch.arange(1, 300)[None], 0.99)[0]
    assert (weights.diff() < 0).all()


@pytest.mark.parametrize(("n", "beta"), [(3725, 0.99), (4455, 0.9916), (10**6, 0.99)])
def test_a_large_class_is_not_taken_for_a_missing_one(n: int, beta: float) -> None:
    # the published code asks whether 1 - beta^n equals 1, which rounding makes true for these classes
    assert 1.0 - beta**n == 1.0
    weights = im.effective_number_weights(torch.tensor([[10, n, 0]]), beta)[0]
    assert weights[1] > 0 and weights[2] == 0
    assert weights[1] / weights[0] == pytest.approx(1 - beta**10)  # their effective numbers' ratio


@pytest.mark.parametrize("weights", [im.inverse_weights, lambda c: im.effective_number_weights(c, 0.999)])
def test_equal_counts_give_the_plain_mean(weights) -> None:
    logits, y, domain = case()
    table = weights(torch.full((3, 3), 17))
    ours = im.weighted_cross_entropy(logits, y, table[domain, y], (5, 3, 4))
    torch.testing.assert_close(ours, domain_cross_entropy(logits, y, (5, 3, 4)))


def test_weighted_mean_is_torchs_and_one_class_cancels_its_weight() -> None:
    logits, y, domain = case()
    table = im.inverse_weights(torch.tensor([[9, 4, 2], [3, 7, 5], [12, 2, 6]]))
    ours = im.weighted_cross_entropy(logits, y, table[domain, y], (5, 3, 4))
    parts = [F.cross_entropy(logits[domain == k], y[domain == k], weight=table[k]) for k in range(3)]
    torch.testing.assert_close(ours, torch.stack(parts))
    same = torch.ones_like(y)
    alone = im.weighted_cross_entropy(logits, same, table[domain, same], (5, 3, 4))
    torch.testing.assert_close(alone, domain_cross_entropy(logits, same, (5, 3, 4)))


def test_a_domain_of_weight_zero_has_zero_loss_and_gradient() -> None:
    logits, y, _ = case()
    logits.requires_grad_()
    weights = torch.ones(12, dtype=torch.float64)
    weights[5:8] = 0  # the second domain
    loss = im.weighted_cross_entropy(logits, y, weights, (5, 3, 4))
    assert loss[1] == 0
    loss.sum().backward()
    assert torch.equal(logits.grad[5:8], torch.zeros(3, 3, dtype=torch.float64)) and torch.isfinite(logits.grad).all()


def test_focal_is_cross_entropy_at_zero_and_falls_with_gamma() -> None:
    logits, y, _ = case()
    ce = F.cross_entropy(logits, y, reduction="none")
    torch.testing.assert_close(im.focal_loss(logits, y, 0.0), ce)
    before = ce
    for gamma in (0.5, 1.0, 2.0, 5.0):
        now = im.focal_loss(logits, y, gamma)
        assert (now < before).all()
        before = now


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 5.0])
def test_focal_is_finite_where_the_label_is_certain_or_hopeless(gamma: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([[200.0, 0.0], [-200.0, 0.0]], dtype=dtype, requires_grad=True)
    loss = im.focal_loss(logits, torch.tensor([0, 0]), gamma)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(logits.grad).all()
    assert loss.tolist() == pytest.approx([0, 200])


def test_margins_peak_at_the_rarest_class_and_raise_the_loss() -> None:
    counts = torch.tensor([[9, 4, 2], [0, 7, 5], [12, 2, 6]])
    found = im.margins(counts, 0.5)
    assert found.amax(1).tolist() == [0.5, 0.5, 0.5] and found.argmax(1).tolist() == [2, 2, 1]
    logits, y, domain = case()
    losses = [
        F.cross_entropy(im.margin_logits(logits, y, im.margins(counts, m)[domain, y], 30.0), y) for m in (0, 0.2, 0.8)
    ]
    assert losses[0] < losses[1] < losses[2]
    torch.testing.assert_close(im.margin_logits(logits, y, im.margins(counts, 0.0)[domain, y], 1.0), logits)


def test_the_prior_of_a_domain_may_be_scaled() -> None:
    logits, y, domain = case()
    counts = torch.tensor([[9, 4, 2], [3, 7, 5], [12, 2, 6]])
    losses = [F.cross_entropy(logits + im.log_prior(c)[domain], y) for c in (counts, 10 * counts)]
    torch.testing.assert_close(*losses)
    equal = F.cross_entropy(logits + im.log_prior(torch.full((3, 3), 5))[domain], y)
    torch.testing.assert_close(equal, F.cross_entropy(logits, y))


@given(full_rows, st.integers(2, 4))
@settings(max_examples=50, deadline=None)
def test_estimated_shares_of_domains_that_agree_are_theirs(row: list[int], domains: int) -> None:
    counts = torch.tensor([row] * domains)
    for estimate in (im.expected_log_shares, im.cross_validated_log_shares):
        torch.testing.assert_close(estimate(counts).softmax(0), counts[0].double() / counts[0].sum())


@given(st.lists(full_rows, min_size=2, max_size=5))
@settings(max_examples=100, deadline=None)
def test_no_other_power_foretells_left_out_shares_better(rows: list[list[int]]) -> None:
    """The estimate is a power in [0, 1] of the mean shares, and no other power has a larger likelihood."""
    counts = torch.tensor(rows)
    logs = counts.double().log()
    logs = logs - logs.mean(1, keepdim=True)
    mean, found = logs.mean(0), im.cross_validated_log_shares(counts)
    if float(mean.norm()) < 1e-6:
        return
    power = float((found @ mean) / (mean @ mean))
    assert -1e-9 <= power <= 1 + 1e-9
    torch.testing.assert_close(found, power * mean, atol=1e-9, rtol=0)
    shares = counts / counts.sum(1, keepdim=True)
    others = torch.stack([logs[torch.arange(len(logs)) != k].mean(0) for k in range(len(logs))])
    likelihood = [
        float((shares * (t * others).log_softmax(1)).sum()) for t in (power, *torch.linspace(0, 1, 41).tolist())
    ]
    assert likelihood[0] >= max(likelihood) - 1e-9


def test_domains_whose_frequent_classes_are_unrelated_give_equal_shares() -> None:
    counts = torch.tensor([[90, 5, 5], [5, 90, 5], [5, 5, 90]])
    torch.testing.assert_close(im.cross_validated_log_shares(counts), torch.zeros(3, dtype=torch.float64))
