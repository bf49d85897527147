"""The 1-Wasserstein distance between two weighted point clouds, always with a certificate.

    W1 = min over plans g >= 0 with row sums a and column sums b of  sum g_ij d(x_i, y_j)
       = max over (u, v) with u_i + v_j <= d(x_i, y_j)           of  sum a_i u_i + sum b_j v_j

Any plan bounds W1 from above, any feasible (u, v) from below, whoever proposed them. So nothing here is taken on trust:
the network simplex (POT) proposes, a c-transform makes its potentials feasible, and both values are returned.

Small problems are solved whole, and the two values agree to rounding. Large ones are halved along their main direction,
again and again, until each piece is small: the pieces' plans together are a plan (an upper bound), their potentials,
glued by a c-transform over all points, are feasible (a lower bound). What is between the two is the error, stated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import ot
from numpy.typing import NDArray

Array = NDArray[Any]

EXACT_PAIRS = 4_000_000  # the largest n x m solved whole: a second or two, 100 MB
LOWER_PAIRS = 100_000_000  # distances spent on the lower bound of a larger problem: a few seconds
_CHUNK = 2_000_000  # distances in memory at once where the whole matrix is not needed
_CANCEL = 1e-13  # mass below which two clouds are the same at a point


@dataclass(frozen=True)
class Distance:
    """W1 = value, at most ``error`` off: lower <= W1 <= upper. ``exact``: solved whole, the three agree to rounding."""

    value: float
    error: float
    lower: float
    upper: float
    exact: bool

    @classmethod
    def between(cls, lower: float, upper: float, exact: bool) -> Distance:
        lower = min(max(lower, 0.0), upper)
        if exact:
            return cls(upper, upper - lower, lower, upper, True)
        return cls((lower + upper) / 2, (upper - lower) / 2, lower, upper, False)

    @classmethod
    def weighted_sum(cls, parts: list[tuple[float, Distance]]) -> Distance:
        """The weighted sum of distances, with the errors added up."""
        lower, upper = (float(sum(w * getattr(d, side) for w, d in parts)) for side in ("lower", "upper"))
        return cls.between(lower, upper, all(d.exact for _, d in parts))


@dataclass(frozen=True)
class Cloud:
    """Points (n, d) with masses (n,) that add up to one; labels (n,) where the ground distance counts them."""

    points: Array
    weights: Array
    labels: Array | None = None

    def __len__(self) -> int:
        return len(self.weights)

    def rows(self, index: Array | slice, weights: Array | None = None) -> Cloud:
        """Some of the points, with other masses if given."""
        labels = None if self.labels is None else self.labels[index]
        return Cloud(self.points[index], self.weights[index] if weights is None else weights, labels)


def cloud(points: Array, weights: Array | None = None, labels: Array | None = None) -> Cloud:
    """A cloud with masses scaled to one (uniform if none are given); points without mass are left out."""
    points = np.asarray(points, dtype=np.float64)
    if weights is None:
        return Cloud(points, np.full(len(points), 1.0 / len(points)), labels)
    kept = weights > 0
    weights = weights[kept] / weights[kept].sum()
    return Cloud(points[kept], weights, None if labels is None else labels[kept])


def row_keys(rows: Array) -> Array:
    """A 128-bit hash of each row (n,), the same for equal rows; sorts like any number, and as good as at random.

    >>> keys = row_keys(np.array([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]]))
    >>> bool(keys[0] == keys[1]), bool(keys[0] == keys[2])
    (True, False)
    """
    rows = np.ascontiguousarray(rows + 0.0)  # -0.0 and 0.0 are the same number
    return np.frombuffer(b"".join(hashlib.blake2b(row, digest_size=16).digest() for row in rows), dtype="V16")


def euclidean(x: Array, y: Array) -> Array:
    """Euclidean distances (n, d), (m, d) -> (n, m); exactly zero between equal rows.

    By matrix product, and once more by differences where that would cancel.

    >>> euclidean(np.array([[0.0, 0.0], [1e8, 1.0]]), np.array([[3.0, 4.0], [1e8, 1.0]])).diagonal().tolist()
    [5.0, 0.0]
    """
    centre = y.mean(axis=0)
    x, y = x - centre, y - centre
    scale = np.einsum("nd,nd->n", x, x)[:, None] + np.einsum("md,md->m", y, y)[None]
    squared = scale - 2.0 * (x @ y.T)
    near = np.flatnonzero(squared <= 1e-5 * scale)
    step = max(1, _CHUNK // x.shape[1])
    for start in range(0, len(near), step):
        i, j = np.divmod(near[start : start + step], len(y))
        difference = x[i] - y[j]
        squared[i, j] = np.einsum("nd,nd->n", difference, difference)
    return np.sqrt(squared, out=squared)


def ground(x: Cloud, y: Cloud, jump: float = 0.0) -> Array:
    """The ground distance (n, m): Euclidean, plus ``jump`` between points of different labels."""
    matrix = euclidean(x.points, y.points)
    if jump and x.labels is not None and y.labels is not None:
        matrix += jump * (x.labels[:, None] != y.labels[None])
    return matrix


def wasserstein(
    x: Cloud, y: Cloud, *, jump: float = 0.0, exact_pairs: int = EXACT_PAIRS, lower_pairs: int = LOWER_PAIRS
) -> Distance:
    """W1 between two clouds under ``ground``. Up to ``exact_pairs`` = n x m solved whole, beyond that bracketed.

    >>> left, right = cloud(np.array([[0.0], [1.0]])), cloud(np.array([[5.0], [7.0]]))
    >>> wasserstein(left, right).value, wasserstein(left, left).value
    (5.5, 0.0)
    """
    x, y, mass = _cancelled(x, y, jump)
    if mass == 0.0:
        return Distance(0.0, 0.0, 0.0, 0.0, True)
    if len(x) * len(y) <= exact_pairs:
        upper, lower = _solved(ground(x, y, jump), x.weights, y.weights)[:2]
        return Distance.between(mass * lower, mass * upper, True)
    upper, u = _upper_by_pieces(x, y, jump, exact_pairs)
    lower = max(_lower(x, y, u, jump, lower_pairs), float(np.linalg.norm(x.weights @ x.points - y.weights @ y.points)))
    return Distance.between(mass * lower, mass * upper, False)


def _solved(matrix: Array, a: Array, b: Array) -> tuple[float, float, Array]:
    """Cost of the network simplex's plan, the certified lower bound, and the potentials u that certify it."""
    b = b * (a.sum() / b.sum())
    cost, log = ot.emd2(a, b, matrix, numItermax=10**8, log=True, check_marginals=False)
    v = (matrix - log["u"][:, None]).min(axis=0)
    u = (matrix - v[None]).min(axis=1)
    return float(cost), float(a @ u + b @ v), u


def _cancelled(x: Cloud, y: Cloud, jump: float) -> tuple[Cloud, Cloud, float]:
    """The clouds without the mass that they share, scaled back to one, and how much was left of it.

    W1 depends on the difference of the two measures alone. Without shared points this changes nothing.
    """
    rows = np.concatenate([x.points, y.points])
    if jump and x.labels is not None and y.labels is not None:
        rows = np.column_stack([rows, np.concatenate([x.labels, y.labels])])
    _, first, where = np.unique(row_keys(rows), return_index=True, return_inverse=True)
    if len(first) == len(rows):
        return x, y, 1.0
    net = np.bincount(where, np.concatenate([x.weights, -y.weights]))
    both = Cloud(
        np.concatenate([x.points, y.points]),
        np.concatenate([x.weights, y.weights]),
        None if x.labels is None or y.labels is None else np.concatenate([x.labels, y.labels]),
    )
    order = np.argsort(first)  # rows stay in the order in which they came
    first, net = first[order], net[order]
    more, less = net > _CANCEL, net < -_CANCEL
    if not more.any() or not less.any():
        return x, y, 0.0
    mass = float(net[more].sum())
    left = both.rows(first[more], net[more] / mass)
    right = both.rows(first[less], net[less] / net[less].sum())
    return left, right, mass


def _upper_by_pieces(x: Cloud, y: Cloud, jump: float, pairs: int) -> tuple[float, Array]:
    """Cost of the plan put together from the pieces', and their potentials u (n,) put together.

    A piece's potentials are free up to a constant. It is chosen so that their mean over the piece is that of a rough
    potential of the whole, from some rows of both clouds.
    """
    some, others = (side.rows(_spread(len(side), int(pairs**0.5) // 2)) for side in (x, y))
    matrix = ground(some, others, jump)
    _, _, potential = _solved(matrix, some.weights / some.weights.sum(), others.weights / others.weights.sum())
    v = (matrix - potential[:, None]).min(axis=0)
    rough = np.concatenate([(ground(x.rows(part), others, jump) - v).min(axis=1) for part in _parts(len(x), len(v))])

    u = np.zeros(len(x))
    upper = 0.0
    # labels as coordinates, so that a cut does not part a label's mass on one side from that on the other
    kinds = 0 if not jump or x.labels is None or y.labels is None else 1 + int(max(x.labels.max(), y.labels.max()))
    sides = _coordinates(x, jump, kinds), _coordinates(y, jump, kinds)
    for i, a, j, b in _pieces(sides, np.arange(len(x)), x.weights, np.arange(len(y)), y.weights, pairs // 4):
        cost, _, potential = _solved(ground(x.rows(i), y.rows(j), jump), a, b)
        upper += cost
        u[i] = potential + a @ (rough[i] - potential) / a.sum()
    return upper, u


def _spread(rows: int, most: int) -> Array:
    """At most so many row numbers, evenly spread."""
    return np.unique(np.linspace(0, rows - 1, min(rows, max(most, 1))).round().astype(np.int64))


def _coordinates(side: Cloud, jump: float, kinds: int) -> Array:
    if not kinds:
        return side.points
    return np.column_stack([side.points, jump / np.sqrt(2.0) * np.eye(kinds)[side.labels]])


Piece = tuple[Array, Array, Array, Array]


def _pieces(sides: tuple[Array, Array], i: Array, a: Array, j: Array, b: Array, pairs: int) -> Iterator[Piece]:
    """Rows and masses of both clouds, halved along the main direction of their union until rows x columns <= pairs."""
    if len(i) * len(j) <= pairs or len(i) == 1 or len(j) == 1:
        yield i, a, j, b
        return
    rows = [sides[0][i], sides[1][j]]
    direction = _main_direction(np.concatenate(rows))
    halves = [
        _halved(index, mass, points @ direction) for index, mass, points in zip((i, j), (a, b), rows, strict=True)
    ]
    for (i_half, a_half), (j_half, b_half) in zip(*halves, strict=True):
        yield from _pieces(sides, i_half, a_half, j_half, b_half, pairs)


def _main_direction(points: Array) -> Array:
    """About the first principal axis (d,): power iteration, started from the point that lies farthest out."""
    points = points - points.mean(axis=0)
    direction = points[np.argmax(np.einsum("nd,nd->n", points, points))]
    for _ in range(12):
        direction = points.T @ (points @ direction)
        direction = direction / max(float(np.linalg.norm(direction)), 1e-300)
    return direction


def _halved(index: Array, mass: Array, position: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The lower and the upper half of the mass along ``position``; the row at the cut may go to both, in parts."""
    order = np.argsort(position, kind="stable")
    index, mass = index[order], mass[order]
    reached = np.cumsum(mass)
    half = reached[-1] / 2
    cut = int(np.searchsorted(reached, half))
    below, above = mass[: cut + 1].copy(), mass[cut:].copy()
    below[-1] -= reached[cut] - half
    above[0] = reached[cut] - half
    lower = index[: cut + 1], below
    upper = (index[cut:], above) if above[0] > 0 else (index[cut + 1 :], above[1:])
    return lower, upper


def _lower(x: Cloud, y: Cloud, u: Array, jump: float, pairs: int) -> float:
    """A feasible dual value from the potentials u (n,).

    v_j = min_i d_ij - u_i and u_i = min_j d_ij - v_j are feasible. Where that takes too many distances: the function
    f(z) = max_i u_i - d(x_i, z), over any of the x, is 1-Lipschitz, and W1 >= E_x f - E_y f.
    """
    if 2 * len(x) * len(y) <= pairs:
        v = np.full(len(y), np.inf)
        for part in _parts(len(x), len(y)):
            np.minimum(v, (ground(x.rows(part), y, jump) - u[part, None]).min(axis=0), out=v)
        best = 0.0
        for part in _parts(len(x), len(y)):
            best += float(x.weights[part] @ (ground(x.rows(part), y, jump) - v[None]).min(axis=1))
        return best + float(y.weights @ v)
    chosen = _spread(len(x), pairs // (len(x) + len(y)))
    anchors = x.rows(chosen)
    means = []
    for side in (x, y):
        mean = 0.0
        for part in _parts(len(side), len(anchors)):
            mean += float(side.weights[part] @ (u[chosen] - ground(side.rows(part), anchors, jump)).max(axis=1))
        means.append(mean)
    return means[0] - means[1]


def _parts(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _CHUNK // columns)
    for start in range(0, rows, step):
        yield slice(start, start + step)
