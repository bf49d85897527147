"""Parts of losses on small batches, as compiled loops: single precision in and out, double inside.

On rows of numbers a network takes no longer than some dozens of torch's operations, so that a loss made of sixty of
them would take most of a step. ``alignment`` and ``classification`` call these on a CPU; products of matrices are left
to torch.
"""

from __future__ import annotations

import math

import numpy as np

from rcalign.compiled import ANY_ORDER, compiled

SMALLEST = 1e-12  # length that a row is divided by at least, as in torch's ``normalize``


@compiled(ANY_ORDER)
def _length(row: np.ndarray) -> float:
    """Euclidean length of (h,) numbers."""
    total = 0.0
    for k in range(len(row)):
        value = np.float64(row[k])
        total += value * value
    return math.sqrt(total)


@compiled()
def _check(y: np.ndarray, domain: np.ndarray, num_domains: int, num_classes: int) -> None:
    """Raises an IndexError if a class or domain (n,) is not one of those that there are: nothing else would notice."""
    for i in range(len(y)):
        if not (0 <= y[i] < num_classes and 0 <= domain[i] < num_domains):
            raise IndexError("a class or domain position is out of range")


@compiled(ANY_ORDER)
def mean_directions(
    features: np.ndarray, y: np.ndarray, domain: np.ndarray, mu: np.ndarray, present: np.ndarray
) -> None:
    """Writes the centroids of ``alignment.centroids``, and which of them exist: those that have a row.

    features (n, h), y, domain (n,) -> into mu (K, C, h), which holds zeros, and present (K, C), which holds none.
    """
    num_classes, h = present.shape[1], features.shape[1]
    _check(y, domain, *present.shape)
    slot = np.full(present.size, -1, np.int64)  # where the sum of a pair is
    pairs = np.empty(len(features), np.int64)
    sums = np.zeros((len(features), h))
    found = 0
    for i in range(len(features)):
        pair = domain[i] * num_classes + y[i]
        if slot[pair] < 0:
            slot[pair], pairs[found] = found, pair
            found += 1
        here = sums[slot[pair]]
        scale = 1 / max(_length(features[i]), SMALLEST)
        for k in range(h):
            here[k] += features[i, k] * scale
    for q in range(found):
        d, c = pairs[q] // num_classes, pairs[q] % num_classes
        present[d, c] = True
        scale = 1 / max(_length(sums[q]), SMALLEST)
        for k in range(h):
            mu[d, c, k] = sums[q, k] * scale


@compiled(ANY_ORDER)
def unit_rows(features: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (n, h) over their lengths, in double precision; 1 / length (n,); and the squared lengths of the result."""
    n, h = features.shape
    unit, scale, squared = np.empty((n, h)), np.empty(n), np.empty(n)
    for i in range(n):
        length = _length(features[i])
        scale[i] = 1 / max(length, SMALLEST)
        squared[i] = (length * scale[i]) ** 2
        for k in range(h):
            unit[i, k] = features[i, k] * scale[i]
    return unit, scale, squared


@compiled(ANY_ORDER)
def existing_centroids(mu: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions (q,) of the centroids that exist among all K * C, and these in double precision (q, h) with their
    squared lengths (q,). mu (K, C, h), present (K, C)."""
    num_classes, h = present.shape[1], mu.shape[2]
    pairs = np.flatnonzero(present)
    centers, squared = np.empty((len(pairs), h)), np.empty(len(pairs))
    for q in range(len(pairs)):
        row = mu[pairs[q] // num_classes, pairs[q] % num_classes]
        squared[q] = _length(row) ** 2
        for k in range(h):
            centers[q, k] = row[k]
    return pairs, centers, squared


@compiled(ANY_ORDER)
def alignment_slopes(
    cosine: np.ndarray,
    row_squared: np.ndarray,
    center_squared: np.ndarray,
    pairs: np.ndarray,
    y: np.ndarray,
    domain: np.ndarray,
    present: np.ndarray,
    group: np.ndarray,
    weight: np.ndarray,
    temperature: float,
    negatives: bool,
    zero: float,
) -> tuple[float, np.ndarray]:
    """The loss of ``alignment.grouped_alignment``, and by how much it grows with each product of row and centroid.

    cosine (n, q): products of unit rows and existing centroids, whose positions are pairs (q,); row_squared (n,) and
    center_squared (q,): their squared lengths. y, domain (s, n); present (K, C); group (n,), weight (s, g). negatives:
    the denominator holds every centroid but the positives, otherwise every one but the row's own. zero: the distance
    below which a row is at a centroid; such a distance has no direction.

    Distances d^2 = |u|^2 + |m|^2 - 2 u m are off by some roundings of the number one; in double precision these do not
    show at any distance that single precision tells from zero.
    """
    labels, n = y.shape
    num_classes, found = present.shape[1], len(pairs)
    of_class = np.zeros(num_classes, np.int64)  # centroids of each class
    for q in range(found):
        of_class[pairs[q] % num_classes] += 1

    positives = np.zeros((labels, n), np.int64)  # those of a row, if it has a denominator
    totals = np.zeros(weight.shape)
    for s in range(labels):
        _check(y[s], domain[s], *present.shape)
        for i in range(n):
            own = 1 if present[domain[s, i], y[s, i]] else 0
            others = of_class[y[s, i]] - own
            if found > (others if negatives else own):
                positives[s, i] = others
                totals[s, group[i]] += others

    value = 0.0
    slope = np.zeros((n, found))
    logits, shares = np.empty(found), np.empty(found)
    for i in range(n):
        for q in range(found):
            square = row_squared[i] + center_squared[q] - 2 * cosine[i, q]
            distance = 0.0 if square < 0 else math.sqrt(square)
            logits[q] = 0.0 if distance < zero else -distance / temperature
        for s in range(labels):
            if positives[s, i] == 0:
                continue
            scale = weight[s, group[i]] / totals[s, group[i]]
            own = domain[s, i] * num_classes + y[s, i]
            top = -np.inf
            for q in range(found):
                positive = pairs[q] % num_classes == y[s, i] and pairs[q] != own
                if positive:
                    value -= scale * logits[q]
                    slope[i, q] -= scale
                left_out = positive if negatives else pairs[q] == own
                shares[q] = -np.inf if left_out else logits[q]
                top = max(top, shares[q])
            below = 0.0
            for q in range(found):
                shares[q] = math.exp(shares[q] - top)
                below += shares[q]
            value += scale * positives[s, i] * (top + math.log(below))
            for q in range(found):
                slope[i, q] += scale * positives[s, i] / below * shares[q]
        for q in range(found):  # from logits to products of row and centroid
            slope[i, q] = 0.0 if logits[q] == 0 else slope[i, q] / (-logits[q] * temperature**2)
    return value, slope


@compiled(ANY_ORDER)
def turning(
    moves: np.ndarray, slope: np.ndarray, cosine: np.ndarray, unit: np.ndarray, scale: np.ndarray, gradient: np.ndarray
) -> None:
    """Writes the gradient (n, h) with respect to rows from that with respect to their directions u, moves (n, h).

    A row that turns towards a centroid m moves along m - (u m) u. slope, cosine (n, q); unit (n, h) holds u, scale (n,)
    one over the length of the row.
    """
    for i in range(len(moves)):
        along = 0.0
        for q in range(slope.shape[1]):
            along += slope[i, q] * cosine[i, q]
        for k in range(moves.shape[1]):
            gradient[i, k] = (moves[i, k] - along * unit[i, k]) * scale[i]


@compiled(ANY_ORDER)
def cross_entropies(
    logits: np.ndarray,
    y: np.ndarray,
    domain: np.ndarray,
    group: np.ndarray,
    weight: np.ndarray,
    offsets: np.ndarray,
    smoothing: float,
    gradient: np.ndarray,
) -> float:
    """The loss of ``classification.grouped_cross_entropy``; writes its gradient with respect to the logits.

    logits, gradient (n, C); y, domain (s, n); group (n,), weight (s, g); offsets (K, C).
    """
    labels, n = y.shape
    num_classes = logits.shape[1]
    rows = np.zeros(weight.shape[1])  # of each group
    for i in range(n):
        rows[group[i]] += 1
    value = 0.0
    shares = np.empty(num_classes)
    gradient[:] = 0
    for s in range(labels):
        _check(y[s], domain[s], *offsets.shape)
        for i in range(n):
            scale = weight[s, group[i]] / rows[group[i]]
            top, total, mean = -np.inf, 0.0, 0.0
            for c in range(num_classes):
                shares[c] = np.float64(logits[i, c]) + offsets[domain[s, i], c]
                mean += shares[c] / num_classes
                top = max(top, shares[c])
            of_label = shares[y[s, i]]
            for c in range(num_classes):
                shares[c] = math.exp(shares[c] - top)
                total += shares[c]
            value += scale * (top + math.log(total) - (1 - smoothing) * of_label - smoothing * mean)
            for c in range(num_classes):
                gradient[i, c] += scale * (shares[c] / total - smoothing / num_classes)
            gradient[i, y[s, i]] -= scale * (1 - smoothing)
    return value
