"""Theorem 3: the mixture of sources nearest to a target, what it guarantees, and whether the target is outside.

    minimise   sum_ts g_ts ||z_t - z_s||   over plans g >= 0 and weights p >= 0
    such that  sum_s g_ts = 1 / n_T        for every target sample t
               sum_t g_ts = p_k / n_k      for every sample s of source k

one linear programme (HiGHS). Then R_T <= sum_k p_k R_k + L W1(T, sum_k p_k D_k), for any weights, if the loss is
L-Lipschitz in the ground distance. The loss also depends on the label, so the theorem needs labels in that distance:

    d((z, y), (z', y')) = ||z - z'|| + M / L [y != y'],   M = the largest difference of two logits of a source sample

Without target labels the distance is that of the features alone, and the guarantee holds if every target sample has the
label of the source samples that it is matched with; a share q of the target for which that is wrong adds at most M q.
The weights come from the features in both cases, so they do not change when labels become known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from rcalign.diagnosis.findings import MixtureFit
from rcalign.diagnosis.transport import EXACT_PAIRS, Array, Cloud, cloud, euclidean, ground, wasserstein

FIT_PAIRS = 80_000  # target rows x source rows of the linear programme: a second
FRESH = 3  # fresh samples of the mixture whose distance is shown beside the target's
VERDICT_PAIRS = 30_000  # the same for the verdict, which solves one for each source
LEVEL = 0.05  # how often a target that is a sample of the sources may be called anything but inside
PERMUTATIONS = 399
TEST_ROWS = 300  # of the target, and of its mixture, that the test reads

RULE = (
    "Inside: a permutation test (energy distance of the features) does not tell the target from a sample of its best "
    f"mixture of the sources, at the level {LEVEL:.0%}. Outside: it does, and the target is farther from that mixture "
    "than any source is from the best mixture of the other sources (with one source: more than twice as far as a fresh "
    "sample of the source itself). Near: in between. Distances are taken at one sample size."
)
LABELLED = "none: the labels of the target are known and count in the distance"
UNLABELLED = (
    "the labels of the target are not known: the guarantee holds if each target sample has the label of the source "
    "samples that it is matched with; a share q of the target for which that is wrong adds at most {most:.4g} q"
)


def nearest_mixture(target: Cloud, sources: Sequence[Cloud]) -> tuple[Array, float]:
    """Weights (K,) of the mixture of sources nearest to the target, and the distance left. Exact for these samples.

    >>> sources = [cloud(np.array([[0.0]])), cloud(np.array([[10.0]]))]
    >>> weights, left = nearest_mixture(cloud(np.array([[0.0], [0.0], [0.0], [10.0]])), sources)
    >>> weights.round(6).tolist(), round(left, 6)
    ([0.75, 0.25], 0.0)
    """
    rows, columns = len(target), sum(len(source) for source in sources)
    cost = np.concatenate([ground(target, source) for source in sources], axis=1)
    scale = max(float(cost.max()), 1e-300)  # HiGHS's tolerances are absolute
    by_row = sparse.kron(sparse.eye_array(rows), np.ones((1, columns)))
    by_column = sparse.kron(np.ones((1, rows)), sparse.eye_array(columns))
    of_source = np.repeat(np.arange(len(sources)), [len(source) for source in sources])
    mass = np.concatenate([source.weights for source in sources])
    shares = sparse.coo_array((-mass, (np.arange(columns), of_source)), shape=(columns, len(sources)))
    constraints = sparse.block_array([[by_row, None], [by_column, shares]], format="csr")
    solution = linprog(
        np.concatenate([cost.ravel() / scale, np.zeros(len(sources))]),
        A_eq=constraints,
        b_eq=np.concatenate([target.weights, np.zeros(columns)]),
        bounds=(0, None),
        method="highs",
    )
    assert solution.status == 0, solution.message  # feasible and bounded by construction
    weights = np.maximum(solution.x[-len(sources) :], 0.0)
    return weights / weights.sum(), float(solution.fun) * scale


def thinned(target: Array, sources: Sequence[Array], pairs: int) -> tuple[Array, list[Array]]:
    """The first rows of each, so many that target rows x source rows <= pairs; what is small stays whole."""
    most = max(len(target), *(len(source) for source in sources))
    while min(most, len(target)) * sum(min(most, len(source)) for source in sources) > pairs:
        most -= max(1, most // 50)
    return target[:most], [source[:most] for source in sources]


def fit_mixture(
    target: Cloud,
    sources: Cloud,
    of_source: Array,
    source_risks: Array,
    *,
    name: str,
    names: tuple[str, ...],
    lipschitz: float,
    largest_difference: float,
    risk: float | None = None,
    exact_pairs: int = EXACT_PAIRS,
) -> MixtureFit:
    """Theorem 3 for one target. sources: all their rows; of_source (n,): whose, 0 .. K - 1; source_risks (K,).

    The weights come from the linear programme on all samples if that is small enough, else on the first of each domain;
    distance and guarantee are for all samples in both cases. Labels count if the target has them.
    """
    labelled = target.labels is not None
    jump = largest_difference / max(lipschitz, 1e-300) if labelled else 0.0
    each = [sources.points[of_source == k] for k in range(len(names))]
    few, few_sources = thinned(target.points, each, FIT_PAIRS)
    weights, _ = nearest_mixture(cloud(few), [cloud(points) for points in few_sources])
    sizes = np.array([len(points) for points in each])
    mixed = cloud(sources.points, (weights / sizes)[of_source], sources.labels)
    distance = wasserstein(target, mixed, jump=jump, exact_pairs=exact_pairs)
    source_risk = float(weights @ source_risks)
    used = (len(few), sum(len(points) for points in few_sources))
    return MixtureFit(
        target=name,
        sources=names,
        weights=tuple(weights.tolist()),
        distance=distance,
        source_risk=source_risk,
        guarantee=source_risk + lipschitz * distance.upper,
        risk=risk,
        labelled=labelled,
        label_jump=jump,
        weights_from=used,
        weights_exact=used == (len(target), len(sources)),
        assumption=LABELLED if labelled else UNLABELLED.format(most=largest_difference),
    )


def verdict(
    target: Array, sources: Sequence[Array], mixture: Array | None = None
) -> tuple[str, float, float | None, float | None, float | None]:
    """(verdict by ``RULE``, distance left, reference, floor, p-value), from points (n_T, d) and (n_k, d).

    mixture (K,): the weights of the target's best mixture, where they are known already. Every source is cut in two.
    Against the first halves stand, at one size: the target; the second half of each source, its own first half left
    out (reference: the farthest); samples of the second halves, mixed by the target's weights (floor: their mean).
    p: of the permutation test between the target and its mixture, which bounds false alarms.
    """
    first, second = [points[0::2] for points in sources], [points[1::2] for points in sources]
    # two thirds of a half, so that fresh samples differ
    size = min(len(target), *(max(1, 2 * len(points) // 3) for points in second))
    size = min(size, int(np.sqrt(VERDICT_PAIRS / len(sources))))
    halves = [cloud(points[:size]) for points in first]
    weights, left = nearest_mixture(cloud(target[:size]), halves)
    others = [
        nearest_mixture(cloud(points[:size]), halves[:k] + halves[k + 1 :])[1]
        for k, points in enumerate(second)
        if len(points) and len(halves) > 1
    ]
    reference = max(others, default=None)
    fresh = [nearest_mixture(cloud(points), halves)[1] for points in _fresh_samples(second, weights, size)]
    if not fresh:
        return "near", left, reference, None, None
    floor = float(np.mean(fresh))
    if mixture is None:
        few, few_sources = thinned(target, sources, FIT_PAIRS)
        mixture, _ = nearest_mixture(cloud(few), [cloud(points) for points in few_sources])
    p = same_distribution(target, *_mixed(sources, mixture, min(len(target), TEST_ROWS)))
    far = 2.0 * floor if reference is None else reference
    if p > LEVEL:
        return "inside", left, reference, floor, p
    return "outside" if left > far else "near", left, reference, floor, p


def same_distribution(target: Array, mixed: Array, rows: int, permutations: int = PERMUTATIONS, seed: int = 0) -> float:
    """The p-value of a permutation test that the first ``rows`` of the target (n, d) and the sample (m, d) of its
    mixture have one distribution. The statistic is their energy distance.

    >>> rng = np.random.default_rng(1)
    >>> same_distribution(rng.normal(size=(60, 3)), rng.normal(size=(60, 3)), 60) > 0.05
    True
    >>> same_distribution(rng.normal(size=(60, 3)) + 1, rng.normal(size=(60, 3)), 60)
    0.0025
    """
    both = np.concatenate([target[:rows], mixed])
    apart = euclidean(both, both)
    n = min(rows, len(target))
    rng = np.random.default_rng(seed)
    signs = np.repeat([1.0 / n, -1.0 / len(mixed)], [n, len(mixed)])
    drawn = np.stack([signs, *(rng.permutation(signs) for _ in range(permutations))])
    energies = -np.einsum("pi,pi->p", drawn @ apart, drawn)  # 2 E|X - Y| - E|X - X'| - E|Y - Y'|
    return float((energies >= energies[0] - 1e-12).mean())


def _mixed(sources: Sequence[Array], weights: Array, size: int) -> tuple[Array, int]:
    """A sample of the mixture and its size: as many rows of each source as its weight asks for, as far as they go."""
    counts = np.array([len(points) for points in sources])
    used = weights > 0.005
    size = max(1, min(size, int((counts[used] / weights[used]).min())))
    taken = [min(len(points), round(float(weight) * size)) for points, weight in zip(sources, weights, strict=True)]
    rows = np.concatenate([points[:count] for points, count in zip(sources, taken, strict=True)])
    return rows, max(1, len(rows))


def _fresh_samples(parts: Sequence[Array], weights: Array, size: int) -> list[Array]:
    """Samples of about ``size`` rows from a mixture of the parts; none if the parts are empty."""
    counts = [min(len(points), round(float(weight) * size)) for points, weight in zip(parts, weights, strict=True)]
    if not sum(counts):
        return []
    # every part starts from the same seed, so that its place among them does not matter
    return [
        np.concatenate(
            [
                points[np.random.default_rng(draw).permutation(len(points))[:count]]
                for points, count in zip(parts, counts, strict=True)
            ]
        )
        for draw in range(FRESH)
    ]
