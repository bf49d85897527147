"""What a classifier's outputs are worth: pure functions of numpy arrays.

Everywhere: logits (n, C) floats, probabilities (n, C) with rows that sum to one, y (n,) class positions, domain (n,)
domain positions, counts (K, C) training samples of each (domain, class) pair. A figure of no rows is an error, not a
silent nan.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax

from rcalign.errors import InputError

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]

TEMPERATURES = (0.01, 100.0)  # where ``fit_temperature`` looks


def softmax(logits: ArrayLike) -> Floats:
    """Probabilities from logits, along the last axis; no overflow for logits of any size.

    >>> softmax([[0.0, 0.0], [1000.0, 0.0]]).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    return np.exp(log_softmax(_floats(logits), axis=-1))


def accuracy(logits: ArrayLike, y: ArrayLike) -> float:
    """Share of rows whose largest logit is the label's (of equal logits the first counts).

    >>> accuracy([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]], [0, 1, 1])
    0.6666666666666666
    """
    scores, labels = _rows(logits, y)
    return float((scores.argmax(1) == labels).mean())


def recalls(logits: ArrayLike, y: ArrayLike) -> list[float | None]:
    """Share of each class's rows whose largest logit is the label's, C values; None for a class without rows.

    >>> recalls([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], [0, 1, 1])
    [1.0, 0.5, None]
    """
    scores, labels = _rows(logits, y)
    table = confusion(scores.argmax(1), labels, scores.shape[1])
    return [float(right / rows) if rows else None for right, rows in zip(np.diag(table), table.sum(1), strict=True)]


def balanced_accuracy(logits: ArrayLike, y: ArrayLike) -> float:
    """Mean of the recalls of the classes that occur in ``y``.

    >>> balanced_accuracy([[1.0, 0.0, 0.0]] * 4, [0, 0, 0, 1])
    0.5
    """
    return float(np.mean([value for value in recalls(logits, y) if value is not None]))


def worst_class_recall(logits: ArrayLike, y: ArrayLike) -> float:
    """The smallest recall of the classes that occur in ``y``.

    >>> worst_class_recall([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [0, 1, 1])
    0.5
    """
    return min(value for value in recalls(logits, y) if value is not None)


def macro_f1(logits: ArrayLike, y: ArrayLike) -> float:
    """Mean over the classes that occur in ``y`` of F1, the harmonic mean of precision and recall.

    >>> round(macro_f1([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [0, 1, 1]), 4)
    0.6667
    """
    from sklearn.metrics import f1_score

    scores, labels = _rows(logits, y)
    return float(f1_score(labels, scores.argmax(1), labels=np.unique(labels), average="macro", zero_division=0.0))


def auroc(probabilities: ArrayLike, y: ArrayLike) -> float | None:
    """Mean area under the ROC curve of each class that occurs in ``y`` against the rest; None if only one occurs.

    >>> auroc([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3]], [0, 0, 1]), auroc([[0.9, 0.1]], [0])
    (0.5, None)
    """
    from sklearn.metrics import roc_auc_score

    shares, labels = _probabilities(probabilities, y)
    present = np.unique(labels)
    if len(present) < 2:
        return None
    return float(np.mean([roc_auc_score(labels == c, shares[:, c]) for c in present]))


def brier_score(probabilities: ArrayLike, y: ArrayLike) -> float:
    """Mean over rows of the squared distance between probabilities and the label's one-hot vector, from 0 to 2.

    >>> round(brier_score([[0.8, 0.2], [0.5, 0.5]], [0, 1]), 4)
    0.29
    """
    shares, labels = _probabilities(probabilities, y)
    return float(((shares - np.eye(shares.shape[1])[labels]) ** 2).sum(1).mean())


def log_loss(probabilities: ArrayLike, y: ArrayLike) -> float:
    """Mean of -log of the label's probability, in nats (a probability below 2e-16 counts as that).

    >>> round(log_loss([[0.5, 0.5]], [1]), 4)
    0.6931
    """
    from sklearn import metrics

    shares, labels = _probabilities(probabilities, y)
    return float(metrics.log_loss(labels, shares, labels=np.arange(shares.shape[1])))


def shot_accuracy(
    correct: ArrayLike, y: ArrayLike, domain: ArrayLike, counts: ArrayLike, many: int = 100, few: int = 20
) -> dict[str, float | None]:
    """Mean accuracy of the (domain, class) pairs in each group of training counts; None for a group without test rows.

    correct (n,) bool. A pair with n training samples is zero (n = 0), few (n <= ``few``), many (n > ``many``), else
    medium. Every pair that has test rows counts once in its group, however many rows it has.

    >>> shot_accuracy([True, False, True, True], [0, 0, 1, 1], [0, 0, 0, 1], [[500, 7], [500, 0]])
    {'many': 0.5, 'medium': None, 'few': 1.0, 'zero': 1.0}
    """
    table = np.asarray(counts)
    right, labels, domains = np.asarray(correct, dtype=bool), _integers(y, "y"), _integers(domain, "domain")
    if table.ndim != 2:
        raise InputError(f"counts have shape {table.shape}, but one row of class counts per domain is expected.")
    if not len(right) == len(labels) == len(domains):
        raise InputError(
            f"correct, y and domain have {len(right)}, {len(labels)} and {len(domains)} rows, but must have the same."
        )
    if many < few:
        raise InputError(f"shot thresholds are many={many} and few={few}, but many must not be the smaller one.")
    _within(labels, table.shape[1], "y")
    _within(domains, table.shape[0], "domain")
    tested, hits = np.zeros(table.shape), np.zeros(table.shape)
    np.add.at(tested, (domains, labels), 1)
    np.add.at(hits, (domains, labels), right)
    groups = {
        "many": table > many,
        "medium": (table > few) & (table <= many),
        "few": (table > 0) & (table <= few),
        "zero": table == 0,
    }
    found: dict[str, float | None] = {}
    for name, group in groups.items():
        seen = group & (tested > 0)
        found[name] = float((hits[seen] / tested[seen]).mean()) if seen.any() else None
    return found


def expected_calibration_error(probabilities: ArrayLike, y: ArrayLike, bins: int = 15) -> float:
    """Mean over rows of |accuracy - mean top probability| of the row's bin; ``bins`` equal widths over (0, 1].

    >>> round(expected_calibration_error([[0.8, 0.2]] * 10, [0] * 8 + [1] * 2), 12)
    0.0
    >>> expected_calibration_error([[1.0, 0.0]] * 10, [0] * 5 + [1] * 5)
    0.5
    """
    shares, labels = _probabilities(probabilities, y)
    if bins < 1:
        raise InputError(f"the number of calibration bins is {bins}, but must be at least 1.")
    top = shares.max(1)
    right = shares.argmax(1) == labels
    # bin b holds (b / bins, (b + 1) / bins]
    where = np.clip(np.ceil(top * bins).astype(np.int64) - 1, 0, bins - 1)
    gap = np.bincount(where, weights=right - top, minlength=bins)
    return float(np.abs(gap).sum() / len(top))


def negative_log_likelihood(logits: ArrayLike, y: ArrayLike) -> float:
    """Mean of -log softmax(logits) at the label, in nats.

    >>> round(negative_log_likelihood([[0.0, 0.0]], [1]), 4)
    0.6931
    """
    scores, labels = _rows(logits, y)
    return float(-log_softmax(scores, axis=1)[np.arange(len(labels)), labels].mean())


def fit_temperature(logits: ArrayLike, y: ArrayLike) -> float:
    """The T in ``TEMPERATURES`` that minimises the negative log likelihood of logits / T (on validation data).

    The likelihood is convex in b = 1 / T, with derivative mean_i(sum_c p_ic z_ic - z_iy), p = softmax(b z): its only
    root is found by bisection. Where every row is right (or none), T is the end of the interval.

    >>> z = np.log([[0.8, 0.2]] * 10)
    >>> y = [0] * 8 + [1] * 2
    >>> round(fit_temperature(z, y), 6), round(fit_temperature(3 * z, y), 6)
    (1.0, 3.0)
    """
    from scipy.optimize import brentq  # here and below: what takes long to import is imported when it is needed

    scores, labels = _rows(logits, y)
    at_label = scores[np.arange(len(labels)), labels]

    def slope(log_temperature: float) -> float:
        return float(((softmax(scores * math.exp(-log_temperature)) * scores).sum(1) - at_label).mean())

    low, high = (math.log(bound) for bound in TEMPERATURES)
    if slope(low) <= 0:  # sharper is still better
        return TEMPERATURES[0]
    if slope(high) >= 0:
        return TEMPERATURES[1]
    return float(math.exp(brentq(slope, low, high, xtol=1e-12)))


def next_value_interval(values: ArrayLike, level: float = 0.9) -> tuple[float, float]:
    """Where one more value, drawn like the given ones, lies with probability ``level``: two-sided, cut to [0, 1].

    With m and s the mean and standard deviation of k values: m -+ t s sqrt(1 + 1 / k), t the quantile of Student's
    distribution with k - 1 degrees of freedom. Fewer than two values say nothing: (0, 1).

    >>> low, high = next_value_interval([0.6, 0.7, 0.8], level=0.9)
    >>> round(low, 3), round(high, 3)
    (0.363, 1.0)
    """
    from scipy.stats import t as student_t

    known = _floats(values)
    if not 0 < level < 1:
        raise InputError(f"the level of the interval is {level:g}, but a probability between 0 and 1 is expected.")
    if len(known) < 2:
        return 0.0, 1.0
    spread = float(known.std(ddof=1) * math.sqrt(1 + 1 / len(known)) * student_t.ppf((1 + level) / 2, len(known) - 1))
    mean = float(known.mean())
    return max(0.0, mean - spread), min(1.0, mean + spread)


def confusion(predicted: ArrayLike, y: ArrayLike, classes: int) -> Integers:
    """(C, C) numbers of rows: the true class in rows, the predicted one in columns.

    >>> confusion([0, 1, 1], [0, 0, 1], 2).tolist()
    [[1, 1], [0, 1]]
    """
    guesses, labels = _integers(predicted, "predicted"), _integers(y, "y")
    if len(guesses) != len(labels):
        raise InputError(f"there are {len(guesses)} predictions and {len(labels)} labels, but one of each is expected.")
    _within(guesses, classes, "predicted")
    _within(labels, classes, "y")
    return np.bincount(labels * classes + guesses, minlength=classes * classes).reshape(classes, classes)


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)


def _integers(values: ArrayLike, name: str) -> Integers:
    array = np.asarray(values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"{name} has values of type {array.dtype}, but whole positions are expected.")
    return array.astype(np.int64)


def _within(values: Integers, size: int, name: str) -> None:
    if values.size and (values.min() < 0 or values.max() >= size):
        raise InputError(f"{name} holds {values.min()} to {values.max()}, but 0 to {size - 1} is expected.")


def _rows(scores: ArrayLike, y: ArrayLike) -> tuple[Floats, Integers]:
    """Both checked against each other."""
    table, labels = _floats(scores), _integers(y, "y")
    if table.ndim != 2 or len(table) != len(labels):
        raise InputError(
            f"the scores have shape {table.shape} for {len(labels)} labels, but (n, classes) for n labels is expected."
        )
    if not len(labels):
        raise InputError("there are no rows to measure: give at least one sample.")
    if np.isnan(table).any():
        raise InputError(
            "the scores contain values that are not numbers, so the model that made them diverged: train it "
            "again with a lower learning rate."
        )
    _within(labels, table.shape[1], "y")
    return table, labels


def _probabilities(values: ArrayLike, y: ArrayLike) -> tuple[Floats, Integers]:
    """Like ``_rows``, of rows that are distributions."""
    shares, labels = _rows(values, y)
    if (shares < 0).any() or not np.allclose(shares.sum(1), 1, atol=1e-3):
        raise InputError("rows of probabilities must be non-negative and sum to one: apply softmax to logits first.")
    return shares, labels
