"""Prediction sets whose coverage holds for a row of a *new domain*, and a curve to choose an abstention threshold by.

Ordinary conformal prediction counts rows, as if they were independent; rows of one domain are not, and with many rows
of few domains it promises far too much for the next one. Hierarchical conformal prediction counts domains. With scores
s_ki = 1 - p(y_i) of the rows i = 1..n_k of domains k = 1..K, each domain left out of the model that scored it, the
threshold for a level is the quantile, at that level, of

    sum_k sum_i  delta(s_ki) / ((K + 1) n_k)   +   delta(infinity) / (K + 1)

and the set of a row has every class with 1 - p <= threshold. If domains are exchangeable, a row of the next domain has
its class in the set with at least that probability, however much rows of a domain depend on each other. The mass at
infinity is the next domain's own: no level above K / (K + 1) is possible with K domains.

Papers: Lee, Barber, Willett, Distribution-free Inference with Hierarchical Data (2023), Algorithm 1 (HCP); Dunn,
Wasserman, Ramdas, Distribution-Free Prediction Sets for Two-Layer Hierarchical Models (2022). Departures: the scores
are of K models that left one domain out, where the papers have one model and separate calibration domains; the
likeliest class is always in the set, so that no set is empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rcalign.errors import InputError

GRID = tuple(round(0.5 + 0.005 * k, 3) for k in range(100))  # the levels at which thresholds are kept
SHOWN = (0.7, 0.8, 0.9, 0.95)


def highest_level(domains: int) -> float:
    """The highest coverage that so many domains can promise for one more.

    >>> highest_level(4), highest_level(9)
    (0.8, 0.9)
    """
    return domains / (domains + 1)


def scores_of(probabilities: np.ndarray, y: np.ndarray) -> np.ndarray:
    """1 - p of the true class: (n, C), (n,) -> (n,)."""
    return 1 - np.asarray(probabilities, dtype=np.float64)[np.arange(len(y)), y]


def threshold(scores: Sequence[np.ndarray], level: float) -> float:
    """The score up to which classes are in the set; infinite where K domains cannot promise the level.

    scores: of each domain, left out of the model that scored it.

    >>> threshold([np.array([0.1, 0.2]), np.array([0.3]), np.array([0.4])], 0.75)
    0.4
    >>> threshold([np.array([0.1])] * 4, 0.9)
    inf
    """
    return thresholds(scores, [level])[0]


def thresholds(scores: Sequence[np.ndarray], levels: Sequence[float]) -> list[float]:
    """The ``threshold`` of each level."""
    for level in levels:
        if not 0 < level < 1:
            raise InputError(f"the coverage is {level:g}, but a probability between 0 and 1 is expected.")
    kept = [np.asarray(part, dtype=np.float64) for part in scores if len(part)]
    count = len(kept)
    if not count:
        return [math.inf] * len(levels)
    values = np.concatenate(kept)
    weights = np.concatenate([np.full(len(part), 1 / ((count + 1) * len(part))) for part in kept])
    order = np.argsort(values, kind="stable")
    reached = np.searchsorted(np.cumsum(weights[order]), np.asarray(levels) - 1e-9)
    found = values[order][np.minimum(reached, len(values) - 1)]
    possible = highest_level(count) + 1e-12
    return [float(value) if level <= possible else math.inf for value, level in zip(found, levels, strict=True)]


@dataclass(frozen=True)
class PredictionSets:
    """Thresholds by level, as they are kept in the run folder. domains: how many they were learned from.

    held: domain -> level -> share of its rows whose class was in the set, thresholds from the *other* domains.
    """

    domains: int
    thresholds: Mapping[float, float]
    held: Mapping[str, Mapping[float, float]]

    @property
    def highest(self) -> float:
        return highest_level(self.domains)

    def threshold(self, level: float) -> float:
        """The threshold of the next higher level that is kept; an error says which levels are possible."""
        if not 0 < level < 1:
            raise InputError(f"the coverage is {level:g}, but a probability between 0 and 1 is expected.")
        if level > self.highest + 1e-9:
            need = math.ceil(round(level / (1 - level), 6))
            raise InputError(
                f"a coverage of {100 * level:g} % on a new domain cannot be promised with {self.domains} domains: at "
                f"most {100 * math.floor(1000 * self.highest) / 1000:g} % (give "
                f"`coverage={math.floor(1000 * self.highest) / 1000:g}`); {100 * level:g} % takes {need} domains."
            )
        known = [value for value in sorted(self.thresholds) if value >= level - 1e-9]
        return self.thresholds[known[0]] if known else self.thresholds[max(self.thresholds)]

    def sets(self, probabilities: np.ndarray, level: float) -> np.ndarray:
        """(n, C) -> (n, C) bool: which classes are in each row's set."""
        limit = self.threshold(level)
        table = np.asarray(probabilities, dtype=np.float64)
        inside = 1 - table <= limit + 1e-12
        inside[np.arange(len(table)), table.argmax(1)] = True
        return inside

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the run folder."""
        return {
            "domains": self.domains,
            "thresholds": {f"{level:g}": value for level, value in self.thresholds.items()},
            "held": {name: {f"{level:g}": v for level, v in row.items()} for name, row in self.held.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PredictionSets:
        """The inverse of ``to_json``."""
        thresholds = {float(level): float(value) for level, value in values["thresholds"].items()}
        held = {name: {float(level): float(v) for level, v in row.items()} for name, row in values["held"].items()}
        return cls(int(values["domains"]), thresholds, held)


def learn_sets(probabilities: Mapping[str, np.ndarray], y: Mapping[str, np.ndarray]) -> PredictionSets:
    """Prediction sets from left-out predictions: domain -> (n, C) probabilities and domain -> (n,) labels.

    >>> rng = np.random.default_rng(0)
    >>> y = {f"d{k}": rng.integers(0, 3, 50) for k in range(9)}
    >>> p = {name: np.eye(3)[labels] * 0.7 + 0.1 for name, labels in y.items()}
    >>> sets = learn_sets(p, y)
    >>> sets.highest, sets.sets(p["d0"], 0.8).sum(1).tolist()[:3]
    (0.9, [1, 1, 1])
    """
    scores = {name: scores_of(probabilities[name], y[name]) for name in probabilities if len(y[name])}
    count = len(scores)
    top = highest_level(count)
    levels = sorted({*(level for level in GRID if level <= top + 1e-9), top})
    limits = dict(zip(levels, thresholds(list(scores.values()), levels), strict=True))
    held: dict[str, dict[float, float]] = {}
    for name, own in scores.items():
        others = [part for other, part in scores.items() if other != name]
        shown = [level for level in SHOWN if level <= highest_level(count - 1) + 1e-9]
        best = probabilities[name].argmax(1) == y[name]
        held[name] = {
            level: float(((own <= limit) | best).mean())
            for level, limit in zip(shown, thresholds(others, shown), strict=True)
        }
    return PredictionSets(count, limits, held)


def abstention(
    probabilities: Mapping[str, np.ndarray], y: Mapping[str, np.ndarray], points: int = 21
) -> list[dict[str, float]]:
    """How right the model is when it answers only above a confidence, on left-out domains.

    Rows: ``threshold``, ``answered`` (share of rows, mean over domains), ``accuracy`` of the answers (mean over domains
    that have any) and ``worst`` (of those with at least ten answers).

    >>> p = {"u": np.array([[0.9, 0.1], [0.6, 0.4]])}
    >>> [round(row["accuracy"], 2) for row in abstention(p, {"u": np.array([0, 1])}, points=3)]
    [0.5, 1.0]
    """
    classes = next(iter(probabilities.values())).shape[1]
    rows = []
    for value in np.linspace(1 / classes, 1, points):
        answered, right = [], []
        worst = []
        for name, table in probabilities.items():
            sure = table.max(1) >= value - 1e-12
            answered.append(float(sure.mean()))
            if sure.any():
                accuracy = float((table.argmax(1) == y[name])[sure].mean())
                right.append(accuracy)
                if sure.sum() >= 10:
                    worst.append(accuracy)
        if not right:
            break
        rows.append(
            {
                "threshold": float(value),
                "answered": float(np.mean(answered)),
                "accuracy": float(np.mean(right)),
                "worst": float(min(worst)) if worst else float("nan"),
            }
        )
    return rows
