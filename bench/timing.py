"""Ratios of step times, measured by turns so that a noisy machine troubles both sides alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Row = dict[str, Any]


def row(name: str, value: float, goal: str) -> Row:
    """One line of the table. goal: "<= 1.12" or ">= 4"."""
    sign, limit = goal.split()
    met = value <= float(limit) if sign == "<=" else value >= float(limit)
    return {"name": name, "value": round(value, 3), "goal": goal, "met": bool(met)}


def interleaved(actions: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 2) -> dict[str, list[float]]:
    """Seconds of each action, one call each per round, in turn (the order reverses from round to round)."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    names = list(actions)
    gc.collect()
    for k in range(warm_up + rounds):
        for name in names if k % 2 == 0 else reversed(names):
            start = time.perf_counter()
            actions[name]()
            if k >= warm_up:
                taken[name].append(time.perf_counter() - start)
    return taken


def ratio(taken: Mapping[str, list[float]], of: str, to: str) -> float:
    """Median over pairs of rounds of the ratio within the pair: some methods do different work in alternate steps."""
    pairs = [[sum(values[k : k + 2]) for k in range(0, len(values) - 1, 2)] for values in (taken[of], taken[to])]
    return statistics.median(a / b for a, b in zip(*pairs, strict=True))
