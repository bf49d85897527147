"""W1 against closed forms, against other solvers, and its brackets against the exact value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import linear_sum_assignment, linprog
from scipy.stats import norm, wasserstein_distance

from rcalign.diagnosis.transport import Cloud, Distance, cloud, euclidean, ground, wasserstein


def by_linear_programme(x: Cloud, y: Cloud, jump: float = 0.0) -> float:
    matrix = ground(x, y, jump)
    n, m = matrix.shape
    rows = np.kron(np.eye(n), np.ones((1, m)))
    columns = np.kron(np.ones((1, n)), np.eye(m))
    found = linprog(
        matrix.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.concatenate([x.weights, y.weights]), method="highs"
    )
    return float(found.fun)


def some_cloud(rng: np.random.Generator, n: int, width: int, grid: bool, weighted: bool) -> Cloud:
    points = rng.normal(size=(n, width)) + rng.normal(size=width)
    weights = rng.dirichlet(np.ones(n)) if weighted else None
    return cloud(np.round(points) if grid else points, weights, rng.integers(0, 3, n))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 14),
    st.integers(1, 14),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.7, 20.0]),
)
def test_exact_and_bracket_agree_with_a_linear_programme(
    seed: int, n: int, m: int, width: int, grid: bool, weighted: bool, jump: float
) -> None:
    rng = np.random.default_rng(seed)
    x, y = (some_cloud(rng, size, width, grid, weighted) for size in (n, m))
    truth = by_linear_programme(x, y, jump)
    exact = wasserstein(x, y, jump=jump)
    assert exact.exact
    assert exact.value == pytest.approx(truth, abs=1e-9)
    assert exact.error <= 1e-9
    rough = wasserstein(x, y, jump=jump, exact_pairs=16)
    assert rough.lower - 1e-9 <= truth <= rough.upper + 1e-9
    few = wasserstein(x, y, jump=jump, exact_pairs=16, lower_pairs=20)
    assert few.lower - 1e-9 <= truth <= few.upper + 1e-9


def test_equal_sizes_agree_with_the_assignment_problem() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 7)), rng.normal(size=(60, 7)) + 0.3
    matrix = euclidean(x, y)
    assigned = matrix[linear_sum_assignment(matrix)].mean()
    assert wasserstein(cloud(x), cloud(y)).value == pytest.approx(assigned, rel=1e-12)


def test_a_translated_cloud_is_as_far_as_it_was_moved() -> None:
    rng = np.random.default_rng(2)
    x, move = rng.normal(size=(40, 5)), rng.normal(size=5)
    assert wasserstein(cloud(x), cloud(x + move)).value == pytest.approx(np.linalg.norm(move), rel=1e-12)
    rough = wasserstein(cloud(x), cloud(x + move), exact_pairs=100)
    # the mean alone bounds a translation from below, so the bracket's lower end is exact here
    assert rough.lower == pytest.approx(np.linalg.norm(move), rel=1e-12)


def test_the_same_cloud_is_exactly_zero_away() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(50, 4)) * 1e3
    again = np.concatenate([x, x, x])[rng.permutation(150)]
    nothing = Distance(0.0, 0.0, 0.0, 0.0, True)
    assert wasserstein(cloud(x), cloud(again)) == nothing
    assert wasserstein(cloud(x), cloud(again), exact_pairs=16) == nothing


def test_shared_points_cancel() -> None:
    x = cloud(np.array([[0.0], [1.0], [2.0], [3.0]]))
    y = cloud(np.array([[0.0], [1.0], [2.0], [7.0]]))
    assert wasserstein(x, y).value == pytest.approx(1.0, rel=1e-12)
    assert wasserstein(x, y).value == pytest.approx(by_linear_programme(x, y), rel=1e-9)


def test_gaussians_on_a_line_follow_the_quantile_formula() -> None:
    n, mean, deviation = 2000, 0.7, 1.8
    at = norm.ppf((np.arange(n) + 0.5) / n)
    x, y = at[:, None], (mean + deviation * at)[::-1, None]
    found = wasserstein(cloud(x), cloud(y))
    assert found.value == pytest.approx(np.abs(x[:, 0] - np.sort(y[:, 0])).mean(), rel=1e-10)
    assert found.value == pytest.approx(wasserstein_distance(x[:, 0], y[:, 0]), rel=1e-10)
    formula = quad(lambda q: abs(mean + (deviation - 1.0) * norm.ppf(q)), 0, 1, limit=200)[0]
    assert found.value == pytest.approx(formula, rel=2e-3)
    rough = wasserstein(cloud(x), cloud(y), exact_pairs=100_000)
    assert rough.lower <= found.value <= rough.upper
    assert rough.error <= 0.02 * found.value  # on a line the pieces are cut where the best plan is cut


def test_one_point_each() -> None:
    assert wasserstein(cloud(np.array([[0.0, 0.0]])), cloud(np.array([[3.0, 4.0]]))).value == 5.0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_it_is_a_metric(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y, z = (some_cloud(rng, int(rng.integers(1, 9)), 2, False, True) for _ in range(3))
    xy, yz, xz = (wasserstein(*pair, jump=0.5).value for pair in ((x, y), (y, z), (x, z)))
    assert xy == pytest.approx(wasserstein(y, x, jump=0.5).value, abs=1e-12)
    assert xz <= xy + yz + 1e-12


@pytest.mark.parametrize(("width", "most"), [(2, 0.12), (8, 0.12), (64, 0.08)])
def test_the_bracket_is_narrow(width: int, most: float) -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(300, width)), rng.normal(size=(900, width)) + 0.5
    exact = wasserstein(cloud(x), cloud(y))
    rough = wasserstein(cloud(x), cloud(y), exact_pairs=120_000)
    assert not rough.exact
    assert rough.lower <= exact.value <= rough.upper
    assert rough.error <= most * exact.value


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-6, 1.0, 1e6]), st.sampled_from([0.0, 1e5]))
def test_distances_are_accurate_near_and_far(seed: int, scale: float, offset: float) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(6, 3)) * scale + offset
    y = np.concatenate([x[:2], x[2:4] + 1e-9 * scale, rng.normal(size=(2, 3)) * scale + offset])
    found = euclidean(x, y)
    direct = np.linalg.norm(x[:, None] - y[None], axis=2)
    assert found[0, 0] == found[1, 1] == 0.0
    np.testing.assert_allclose(found, direct, rtol=1e-8, atol=1e-10 * (scale + abs(offset) * 1e-5))
