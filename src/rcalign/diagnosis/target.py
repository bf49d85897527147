"""What can be said of an unlabelled target beside its place and its class shares: the accuracy to expect, and which of
its samples are like nothing in the sources."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student

from rcalign.diagnosis.findings import Expected, Unusual
from rcalign.diagnosis.transport import Array, euclidean

NEIGHBOURS = 5
MOST_UNUSUAL = 20
MOST_SOURCES = 4000  # source samples that unusual ones are compared with


def expected_accuracy(
    target: Array,
    probabilities: Array,
    labels: Array,
    domains: Array,
    *,
    names: tuple[str, ...],
    judges: Sequence[int],
    level: float = 0.9,
) -> Expected:
    """The mean confidence on the target, with an interval from how far it was off elsewhere.

    target (m, C), probabilities (n, C): calibrated; labels, domains (n,): positions. judges: the domains by which the
    estimate is judged; with e_k = accuracy - mean confidence of domain k, the half-width is t(K) times the root of
    mean(e^2) + p (1 - p) / m. No judge, no interval.

    >>> p = np.array([[0.9, 0.1]] * 100)
    >>> y, domain = (np.arange(100) % 10 == 0).astype(int), np.arange(100) // 50
    >>> found = expected_accuracy(p, p, y, domain, names=("a", "b"), judges=[0, 1])
    >>> round(found.accuracy, 3), [round(end, 3) for end in found.interval]
    (0.9, [0.812, 0.988])
    """
    accuracy = float(target.max(axis=1).mean())
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    errors = np.array([(right[domains == k].mean() - confidence[domains == k].mean()) for k in judges])
    chosen = tuple(names[k] for k in judges)
    if not len(errors):
        return Expected(accuracy, None, level, chosen)
    spread = np.sqrt((errors**2).mean() + accuracy * (1 - accuracy) / len(target))
    half = float(student.ppf((1 + level) / 2, len(errors)) * spread)
    return Expected(accuracy, (max(0.0, accuracy - half), min(1.0, accuracy + half)), level, chosen)


def unusual_samples(
    target: Array, sources: Array, names: Sequence[str], most: int = MOST_UNUSUAL
) -> tuple[Unusual, ...]:
    """The samples of the target (m, d) that are farthest from the sources (n, d), the farthest first.

    Far is the mean distance to the nearest five source samples, as a multiple of the median of that distance among the
    source samples themselves. Only what is farther than 19 of 20 source samples is listed.

    >>> sources = np.random.default_rng(0).normal(size=(200, 2))
    >>> [one.name for one in unusual_samples(np.array([[0.0, 0.0], [9.0, 9.0]]), sources, ["usual", "odd"])]
    ['odd']
    """
    known = sources[np.random.default_rng(0).permutation(len(sources))[:MOST_SOURCES]]
    near = min(NEIGHBOURS, len(known) - 1)
    if near < 1:
        return ()

    def nearest(points: Array, skip: int) -> Array:
        pieces = [
            np.sort(np.partition(euclidean(part, known), near + skip - 1, axis=1)[:, : near + skip], axis=1)[:, skip:]
            for part in np.array_split(points, max(1, len(points) // 500))
        ]
        return np.concatenate(pieces).mean(axis=1)

    usual = nearest(known, 1 if len(known) > near else 0)  # a sample is not its own neighbour
    middle, far = float(np.median(usual)), float(np.quantile(usual, 0.95))
    found = nearest(target, 0)
    order = np.argsort(-found, kind="stable")[:most]
    scale = middle if middle > 0 else 1.0
    return tuple(Unusual(int(row), names[row], float(found[row] / scale)) for row in order if found[row] > far)
