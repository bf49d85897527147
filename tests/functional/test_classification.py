"""Cross-entropies computed together with their gradient, against the same through autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from rcalign.functional.classification import grouped_cross_entropy


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    labels=st.integers(1, 3),
    n=st.integers(1, 20),
    classes=st.integers(2, 9),
    scale=st.sampled_from([0.1, 3.0, 80.0]),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    adjusted=st.booleans(),
)
def test_value_and_gradient_are_those_of_autograd_in_double_precision(
    seed: int, labels: int, n: int, classes: int, scale: float, smoothing: float, adjusted: bool
) -> None:
    made = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, classes, generator=made)
    y, domain = torch.randint(classes, (labels, n), generator=made), torch.randint(2, (labels, n), generator=made)
    group, weight = torch.arange(n) % min(n, 3), torch.rand(labels, min(n, 3), generator=made)
    offsets = torch.randn(2, classes, generator=made) if adjusted else None
    a, b = logits.clone().requires_grad_(), logits.double().requires_grad_()
    quick = grouped_cross_entropy(a, y, domain, group=group, weight=weight, offsets=offsets, label_smoothing=smoothing)
    assert "KnownGradient" in type(quick.grad_fn).__name__
    literal = torch.zeros((), dtype=torch.float64)
    for s in range(labels):
        moved = b if offsets is None else b + offsets.double()[domain[s]]
        for g in range(weight.shape[1]):
            here = group == g
            mean = F.cross_entropy(moved[here], y[s][here], label_smoothing=smoothing)
            literal = literal + weight[s, g].double() * mean
    torch.testing.assert_close(quick.double(), literal, rtol=1e-6, atol=1e-6)
    ours, theirs = torch.autograd.grad(quick, a)[0], torch.autograd.grad(literal, b)[0]
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-7)
    assert ours.sum(1).abs().max() < 1e-6  # probabilities and targets each sum to one


@pytest.mark.parametrize("twice", [False, True])
def test_the_other_way_is_the_same(twice: bool) -> None:
    made = torch.Generator().manual_seed(0)
    logits = torch.randn(12, 4, generator=made, dtype=torch.float64)
    y, domain = torch.randint(4, (2, 12), generator=made), torch.randint(3, (2, 12), generator=made)
    options = {"group": torch.arange(12) % 2, "label_smoothing": 0.1, "twice": twice}
    weight, offsets = torch.rand(2, 2, generator=made), torch.randn(3, 4, generator=made)
    found = grouped_cross_entropy(logits, y, domain, weight=weight.double(), offsets=offsets.double(), **options)
    quick = grouped_cross_entropy(logits.float(), y, domain, weight=weight, offsets=offsets, **options)
    torch.testing.assert_close(quick.double(), found, rtol=1e-6, atol=1e-6)


def test_a_label_that_is_none_is_refused() -> None:
    y = torch.tensor([[0, 3]])
    with pytest.raises(IndexError):
        grouped_cross_entropy(
            torch.zeros(2, 3), y, torch.zeros_like(y), group=torch.zeros(2, dtype=torch.int64), weight=torch.ones(1, 1)
        )


def test_a_logit_that_is_no_number_does_not_vanish() -> None:
    one = torch.zeros(1, 2, dtype=torch.int64)
    logits = torch.tensor([[0.0, 1.0], [float("nan"), 0.0]])
    assert torch.isnan(grouped_cross_entropy(logits, one, one, group=one[0], weight=torch.ones(1, 1)))
