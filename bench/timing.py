"""Ratios of step times, measured by turns so that a noisy machine troubles both sides alike."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
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


def peak_memory(setup: str, work: str) -> float:
    """MiB that ``work`` needs, at the highest, above what is resident after ``setup``; in a process of its own."""
    watched = f"""
import resource, threading, time
def resident():
    return int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize() / 2**20
{setup}
before, highest, stop = resident(), 0.0, False
def watch():
    global highest
    while not stop:
        highest = max(highest, resident())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
{work}
stop = True
thread.join()
print(highest - before)
"""
    done = subprocess.run([sys.executable, "-c", watched], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])
