"""Prediction sets on domains with a known answer."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from rcalign.errors import InputError
from rcalign.evaluation.metrics import softmax
from rcalign.fit.conformal import PredictionSets, abstention, highest_level, threshold
from rcalign.fit.pipeline import calibrated_sets


def domain(rng: np.random.Generator, rows: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of one domain: how far the truth is from what the model thinks differs by domain."""
    logits = rng.normal(0, 1.5, (rows, 4))
    truth = logits * np.exp(rng.normal(0, spread)) + rng.normal(0, spread, 4)
    shares = np.exp(truth - truth.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    y = (shares.cumsum(1) > rng.random((rows, 1))).argmax(1)
    return logits, y


def learned(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[PredictionSets, float]:
    """Sets and temperature from domains, by the function that ``fit`` calls."""
    logits, y = ({f"d{k}": part[place] for k, part in enumerate(parts)} for place in (0, 1))
    temperature, _, _, sets = calibrated_sets(logits, y)
    return sets, temperature


def coverage(domains: int, level: float, spread: float, problems: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(problems):
        sets, temperature = learned([domain(rng, int(rng.integers(20, 80)), spread) for _ in range(domains)])
        for _ in range(20):
            z, y = domain(rng, 50, spread)
            found.append(sets.sets(softmax(z / temperature), level)[np.arange(50), y].mean())
    return float(np.mean(found))


@pytest.mark.parametrize(("domains", "level", "spread"), [(40, 0.9, 0.7), (40, 0.8, 1.0), (50, 0.9, 0.3)])
def test_coverage_on_new_domains_is_within_three_points(domains: int, level: float, spread: float) -> None:
    assert abs(coverage(domains, level, spread, problems=30, seed=domains) - level) < 0.03


@pytest.mark.parametrize(("domains", "level"), [(4, 0.8), (6, 0.8), (9, 0.9), (15, 0.9)])
def test_few_domains_never_promise_too_much(domains: int, level: float) -> None:
    """With few domains the sets are larger than needed, never smaller."""
    assert coverage(domains, level, 0.8, problems=60, seed=domains) > level - 0.03


def test_counting_rows_instead_of_domains_would_promise_too_much() -> None:
    """What the method is for: pooled rows of few domains, each different, fall short on a new one."""
    rng = np.random.default_rng(0)
    short, kept = [], []
    for _ in range(300):
        offsets = rng.normal(0, 1, 5)
        scores = [offset + 0.05 * rng.normal(size=30) for offset in offsets[:4]]
        fresh = offsets[4] + 0.05 * rng.normal(size=30)
        pooled = np.sort(np.concatenate(scores))
        short.append((fresh <= pooled[int(np.ceil(0.7 * (len(pooled) + 1))) - 1]).mean())
        kept.append((fresh <= threshold(scores, 0.7)).mean())
    assert np.mean(kept) > 0.67
    assert np.mean(short) < 0.65


def test_too_few_domains_say_which_level_is_possible() -> None:
    rng = np.random.default_rng(0)
    parts = [domain(rng, 30, 0.5) for _ in range(4)]
    sets, temperature = learned(parts)
    p = softmax(parts[0][0] / temperature)
    assert sets.highest == highest_level(4) == 0.8
    with pytest.raises(InputError, match=r"with 4 domains: at most 80 % \(give `coverage=0.8`\); 90 % takes 9 domains"):
        sets.sets(p, 0.9)
    assert sets.sets(p, 0.8).any(1).all()
    with pytest.raises(InputError, match="between 0 and 1"):
        sets.sets(p, 90)


def test_sets_grow_with_the_level_and_survive_json() -> None:
    rng = np.random.default_rng(1)
    parts = [domain(rng, 40, 0.5) for _ in range(30)]
    sets, temperature = learned(parts)
    p = softmax(parts[0][0] / temperature)
    again = PredictionSets.from_json(json.loads(json.dumps(sets.to_json())))
    sizes = []
    for level in (0.6, 0.75, 0.9, 0.95):
        inside = sets.sets(p, level)
        assert (inside == again.sets(p, level)).all() and inside.any(1).all()
        sizes.append(int(inside.sum()))
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_abstaining_helps_where_confidence_means_something() -> None:
    rng = np.random.default_rng(2)
    parts = {str(k): domain(rng, 400, 0.1) for k in range(3)}
    rows = abstention({name: softmax(z) for name, (z, _) in parts.items()}, {name: y for name, (_, y) in parts.items()})
    assert rows[0]["answered"] == 1.0 and rows[-1]["accuracy"] > rows[0]["accuracy"] + 0.2
    assert all(a["answered"] >= b["answered"] for a, b in itertools.pairwise(rows))
