"""``make demo``: ERM and RC-Align on real drawings, two vendors in turn held out, in one table and one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rcalign import api
from rcalign.data import loading
from rcalign.data.cache import open_images
from rcalign.reports.plots import compare_runs

DATA = "emoji-mlt"  # each vendor has other frequent classes: both shifts at once
VENDORS = ("windows", "twitter")
ALGORITHMS = ("ERM", "RC-Align")
SEEDS = 3
Results = dict[str, dict[str, list[dict[str, Any]]]]  # algorithm -> vendor -> the result of each seed


def demo(
    out: Path | str = "demo", steps: int = 200, vendors: tuple[str, ...] = VENDORS, seeds: int = SEEDS
) -> dict[str, Any]:
    """Trains (or finds trained) a model per algorithm, held-out vendor and seed; returns results and a picture's path.

    A small network on features of a pretrained one, which are computed once: most of the time goes into those.
    """
    console = Console(stderr=True)
    results: Results = {name: {vendor: [] for vendor in vendors} for name in ALGORITHMS}
    for vendor in vendors:
        for name in ALGORITHMS:
            console.print(f"{name}, tested on the unseen vendor {vendor}, {seeds} seeds")
            for seed in range(seeds):
                result = api.train(
                    DATA,
                    name,
                    [vendor],
                    protocol="lodo",
                    freeze_backbone=True,
                    steps=steps,
                    evaluate_every=max(1, steps // 10),
                    seed=seed,
                    hparams={"batch_size": 32},
                    out=Path(out) / f"{name}-{vendor}-{seed}",
                    resume=True,
                    progress=seed == 0,
                )
                results[name][vendor].append(result)
    picture = compare_runs(results, Path(out) / "comparison.png", examples())
    return {"results": results, "picture": picture}


def examples(count: int = 2) -> dict[str, list[np.ndarray]]:
    """Vendor -> its drawings of a few emoji, of different classes."""
    dataset = loading.load("emoji")
    store = open_images(dataset, 72)
    assert dataset.group is not None
    chosen = [np.unique(dataset.group[dataset.y == c])[40] for c in range(1, 1 + count)]
    rows = {
        vendor: [int(np.flatnonzero((dataset.domain == k) & (dataset.group == group))[0]) for group in chosen]
        for k, vendor in enumerate(dataset.domains)
    }
    return {vendor: list(store.take(of_vendor).numpy()) for vendor, of_vendor in rows.items()}


def table(results: Results) -> Table:
    """Accuracy on each unseen vendor, mean over seeds, with the standard error of the average over seeds."""
    vendors = list(next(iter(results.values())))
    shown = Table("algorithm", *vendors, "average", "± (seeds)", "seconds", title="accuracy on an unseen vendor, %")
    for name, by_vendor in results.items():
        values = np.array([[result["average"] for result in by_vendor[vendor]] for vendor in vendors])
        by_seed = 100 * values.mean(0)
        error = by_seed.std(ddof=1) / len(by_seed) ** 0.5 if len(by_seed) > 1 else float("nan")
        seconds = sum(result["seconds"] for vendor in vendors for result in by_vendor[vendor])
        figures = [*(100 * values.mean(1)), by_seed.mean(), error]
        shown.add_row(name, *(f"{value:.1f}" for value in figures), f"{seconds:.0f}")
    return shown
