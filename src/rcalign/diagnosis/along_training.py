"""What a run recorded along the way: does the inner step contract, does the alignment loss follow the gap?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import pearsonr

from rcalign.diagnosis.findings import Contraction, Correlation, Tracking
from rcalign.diagnosis.transport import Array
from rcalign.errors import InputError

SETTLED_FROM = 200  # the paper's figure


def contraction(
    steps: Sequence[int],
    before: Sequence[float],
    after: Sequence[float],
    *,
    alignment_after: Sequence[float] | None = None,
    alignment_weight: float = 1.0,
) -> Contraction:
    """Summary of J(theta) and J(theta+), measured around the inner step on the same support batch.

    The Lemma: J(theta+) - J* <= rho (J(theta) - J*) with rho < 1, so a step contracts iff after < before. The
    Proposition follows from weight * L_DA(theta+) <= J(theta+), true as the risk is not negative; it is counted.

    >>> seen = contraction([0, 1, 2, 3], [2.0, 1.8, 1.5, 1.0], [1.0, 1.7, 1.6, 0.5])
    >>> seen.share, [round(ratio, 3) for ratio in seen.ratios]
    (0.75, [0.5, 0.722, 1.03])
    """
    at, first, then = _aligned(steps=steps, before=before, after=after)
    positive = first > 0
    ratios = np.quantile(then[positive] / first[positive], [0.1, 0.5, 0.9]) if positive.any() else None
    holds = None
    if alignment_after is not None:
        _, loss = _aligned(steps=steps, alignment_after=alignment_after)
        holds = float((alignment_weight * loss <= then + 1e-9).mean())
    return Contraction(
        steps=tuple(int(step) for step in at),
        before=tuple(first.tolist()),
        after=tuple(then.tolist()),
        share=float((then < first).mean()),
        ratios=None if ratios is None else (float(ratios[0]), float(ratios[1]), float(ratios[2])),
        alignment_holds=holds,
    )


def tracking(
    steps: Sequence[int], alignment: Sequence[float], gap: Sequence[float], *, settled_from: int = SETTLED_FROM
) -> Tracking:
    """Alignment loss of the held-out domain against the generalisation gap, for all steps and for the settled ones.

    >>> seen = tracking([0, 100, 200, 300, 400], [5.0, 4.0, 3.0, 2.0, 1.0], [0.5, 0.5, 0.3, 0.2, 0.1])
    >>> round(seen.everything.r, 3), round(seen.settled.r, 3), seen.settled.n
    (0.972, 1.0, 3)
    """
    at, loss, difference = _aligned(steps=steps, alignment=alignment, gap=gap)
    late = at >= settled_from
    return Tracking(
        steps=tuple(int(step) for step in at),
        alignment=tuple(loss.tolist()),
        gap=tuple(difference.tolist()),
        settled_from=settled_from,
        everything=correlation(loss, difference),
        settled=correlation(loss[late], difference[late]),
    )


def correlation(x: Array, y: Array) -> Correlation:
    """Pearson's r, its p-value and the regression line of y on x."""
    n = len(x)
    if n < 3:
        return Correlation(n, None, None, None, None, f"{n} points: at least three are needed")
    for name, values in (("alignment loss", x), ("gap", y)):
        if np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())):
            return Correlation(n, None, None, None, None, f"the {name} is the same at every point")
    r, p = pearsonr(x, y)
    slope = float(r) * float(np.std(y)) / float(np.std(x))
    return Correlation(n, float(r), float(p), slope, float(np.mean(y)) - slope * float(np.mean(x)))


def _aligned(**given: Sequence[float]) -> list[Array]:
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in given.items()}
    sizes = {name: values.shape for name, values in arrays.items()}
    if len(set(sizes.values())) > 1 or len(next(iter(sizes.values()))) != 1:
        described = ", ".join(f"{name} {shape}" for name, shape in sizes.items())
        raise InputError(f"the recorded series have different shapes ({described}): expected one value for each step.")
    if not len(next(iter(arrays.values()))):
        raise InputError("the recorded series are empty: train with bound tracking on to record them.")
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            raise InputError(f"{name} has values that are not finite: leave those steps out.")
    return list(arrays.values())
