"""Ratios of step times, measured by turns so that a noisy machine troubles both sides alike."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from rcalign.devices import keep_freed_memory

Row = dict[str, Any]
# for scripts in a process of their own; resource's ru_maxrss would begin with the memory of the process that started it
RESIDENT = """
def resident(field):
    'MiB of this process now (VmRSS) or at the highest (VmHWM).'
    return next(int(line.split()[1]) / 1024 for line in open('/proc/self/status') if line.startswith(field))
"""


def row(name: str, value: float, goal: str = "none") -> Row:
    """One line of the table. goal: "<= 1.12" or ">= 4"; "none": shown, not judged."""
    if goal == "none":
        return {"name": name, "value": round(value, 3), "goal": goal, "met": None}
    sign, limit = goal.split()
    met = value <= float(limit) if sign == "<=" else value >= float(limit)
    return {"name": name, "value": round(value, 3), "goal": goal, "met": bool(met)}


def interleaved(actions: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 2) -> dict[str, list[float]]:
    """Seconds of each action, one call each per round, in turn (the order reverses from round to round)."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    names = list(actions)
    keep_freed_memory()  # as the training loop does
    gc.collect()
    for k in range(warm_up + rounds):
        for name in names if k % 2 == 0 else reversed(names):
            start = time.perf_counter()
            actions[name]()
            if k >= warm_up:
                taken[name].append(time.perf_counter() - start)
    return taken


def ratio(taken: Mapping[str, list[float]], of: str, to: str, turns: int = 2) -> float:
    """Median over groups of ``turns`` rounds of the ratio within the group: some methods do different work by turns."""
    groups = [
        [sum(values[k : k + turns]) for k in range(0, len(values) - turns + 1, turns)]
        for values in (taken[of], taken[to])
    ]
    return statistics.median(a / b for a, b in zip(*groups, strict=True))


def peak_memory(setup: str, work: str) -> float:
    """MiB that ``work`` needs, at the highest, above what is resident after ``setup``; in a process of its own.

    The peak is the one that Linux keeps (VmHWM), set back to what is resident before the work begins.
    """
    watched = f"""{RESIDENT}
{setup}
open('/proc/self/clear_refs', 'w').write('5')
before = resident('VmRSS')
{work}
print(resident('VmHWM') - before)
"""
    done = subprocess.run([sys.executable, "-c", watched], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])
