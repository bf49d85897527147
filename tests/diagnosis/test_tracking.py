"""The inner step on a function whose contraction is known, and correlations whose value is known."""

from __future__ import annotations

import numpy as np
import pytest

from rcalign.diagnosis import contraction, tracking
from rcalign.errors import InputError


def test_gradient_descent_on_a_quadratic_contracts_as_the_lemma_says() -> None:
    # J = L/2 |theta|^2 is L-smooth and PL with mu = L: after / before = (1 - aL)^2 = 1 - 2 aL (1 - aL / 2) = rho(a)
    steps = np.arange(50)
    smooth, rate = 2.0, 0.3
    theta = np.linspace(5.0, 0.1, 50)
    before, after = smooth / 2 * theta**2, smooth / 2 * (theta - rate * smooth * theta) ** 2
    found = contraction(steps, before, after, alignment_after=after / 3, alignment_weight=2.0)
    rho = 1 - 2 * smooth * rate * (1 - smooth * rate / 2)
    assert found.share == 1.0
    assert found.ratios == pytest.approx((rho, rho, rho), rel=1e-12)
    assert found.alignment_holds == 1.0
    too_fast = contraction(steps, before, smooth / 2 * (theta - 1.5 * smooth * theta) ** 2)
    assert too_fast.share == 0.0
    assert too_fast.alignment_holds is None


def test_the_proposition_is_counted_not_assumed() -> None:
    found = contraction([0, 1], [2.0, 2.0], [1.0, 1.0], alignment_after=[0.5, 3.0])
    assert found.alignment_holds == 0.5


def test_correlation_for_all_steps_and_for_the_settled_ones() -> None:
    rng = np.random.default_rng(0)
    steps = np.arange(0, 1000, 10)
    loss = rng.normal(size=100)
    gap = np.where(steps < 200, rng.normal(size=100), 2.0 * loss + 1.0)
    found = tracking(steps, loss, gap)
    assert found.settled.r == pytest.approx(1.0) and found.settled.n == 80
    assert (found.settled.slope, found.settled.intercept) == pytest.approx((2.0, 1.0))
    assert found.everything.n == 100
    expected = np.corrcoef(loss, gap)[0, 1]
    assert found.everything.r == pytest.approx(expected, rel=1e-12)
    assert found.everything.p is not None and 0 <= found.everything.p < 1e-6


def test_what_has_no_correlation_says_why() -> None:
    assert "at least three" in tracking([0, 10], [1.0, 2.0], [1.0, 2.0]).everything.reason
    flat = tracking([0, 10, 20], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0])
    assert flat.everything.r is None and "alignment loss is the same" in flat.everything.reason


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (([0, 1], [1.0], [1.0, 2.0]), "different shapes"),
        (([], [], []), "empty"),
        (([0, 1], [1.0, float("nan")], [1.0, 2.0]), "not finite"),
    ],
)
def test_bad_series(series: tuple[list[float], ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tracking(*series)
    with pytest.raises(InputError, match=message):
        contraction(*series)
