"""The diagnosis: its cost at full size as a share of what is allowed, and its brackets against exact distances."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np

from bench.timing import RESIDENT, Row, row
from rcalign.diagnosis import Distance, cloud, wasserstein

SECONDS, GIBIBYTES = 60.0, 4.0

# in a process of its own, so that the peak memory is the diagnosis's
_WHOLE = f"""{RESIDENT}
import json, time
import numpy as np
from rcalign.diagnosis import diagnose_features
rng = np.random.default_rng(0)
samples, width, domains, classes, inner = 20_000, 512, 4, 7, 20
labels, domain = rng.integers(0, classes, samples), rng.integers(0, domains, samples)
features = rng.normal(size=(samples, inner)) @ rng.normal(size=(inner, width)) / 4
features += 0.2 * rng.normal(size=(samples, width)) + 0.3 * rng.normal(size=(domains, width))[domain]
features = np.maximum(features + 0.3 * rng.normal(size=(classes, width))[labels], 0).astype(np.float32)
head = 0.05 * rng.normal(size=(classes, width))
start, cpu = time.perf_counter(), time.process_time()
diagnose_features(features, labels, domain, head_weight=head, workers=2)
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
print(json.dumps(dict(seconds=seconds, cpu=cpu, gibibytes=resident("VmHWM") / 1024)))
"""


def measure() -> list[Row]:
    """20,000 x 512, 4 domains, 7 classes on two threads; then distances at growing n against the exact value."""
    return [*_whole(), *_brackets()]


def _whole() -> list[Row]:
    found = subprocess.run([sys.executable, "-c", _WHOLE], capture_output=True, text=True, check=True)
    cost = json.loads(found.stdout)
    name = "diagnosis of 20,000 x 512, 4 domains, 7 classes"
    return [
        row(f"{name}: time, share of {SECONDS:.0f} s", cost["seconds"] / SECONDS, "<= 1"),
        # what two idle cores would need at least; the line above also counts what else the machine does
        row(f"{name}: processor time on two cores, share of {SECONDS:.0f} s", cost["cpu"] / 2 / SECONDS, "<= 1"),
        row(f"{name}: peak memory, share of {GIBIBYTES:.0f} GiB", cost["gibibytes"] / GIBIBYTES, "<= 1"),
    ]


def _brackets() -> list[Row]:
    """Pieces of at most 100,000 pairs, so that ever more of them are needed; at the largest n also flat and wide data.

    Clouds of few inner dimensions have the widest brackets: there a cut moves many points far.
    """
    rows = []
    width = 64
    for n, inner in ((400, 10), (800, 10), (1600, 10), (1600, 3), (1600, 60)):
        rng = np.random.default_rng(0)
        shape = rng.normal(size=(inner, width)) / np.sqrt(inner)
        x = rng.normal(size=(n, inner)) @ shape + 0.05 * rng.normal(size=(n, width))
        y = rng.normal(size=(3 * n, inner)) @ shape + 0.05 * rng.normal(size=(3 * n, width)) + 0.1
        exact, exact_seconds = _timed(x, y, 10**9, turns=1)
        rough, rough_seconds = _timed(x, y, 400_000)
        assert exact.exact and not rough.exact and rough.lower <= exact.value <= rough.upper
        name = f"W1 of {n:,} x {3 * n:,} points of inner dimension {inner}, bracketed"
        rows += [
            row(f"{name}: stated error / W1", rough.error / exact.value, "<= 0.1"),
            row(f"{name}: true error / W1", abs(rough.value - exact.value) / exact.value, "<= 0.05"),
            row(f"{name}: time / exact time", rough_seconds / exact_seconds, "<= 1"),
        ]
    return rows


def _timed(x: np.ndarray, y: np.ndarray, exact_pairs: int, turns: int = 3) -> tuple[Distance, float]:
    """The best of some turns, in processor time: these take one thread."""
    taken = []
    for _ in range(turns):
        start = time.process_time()
        found = wasserstein(cloud(x), cloud(y), exact_pairs=exact_pairs)
        taken.append(time.process_time() - start)
    return found, min(taken)
