"""``make demo``: plain training and RC-Align on real drawings, two vendors in turn held out: a table and a picture."""

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
METHODS: dict[str, dict[str, Any]] = {
    "ERM": {"algorithm": "ERM"},
    "SWAD": {"algorithm": "SWAD"},  # ERM with the weight averaging that RC-Align has inside: what of the gain is that
    "RC-Align": {"algorithm": "RC-Align"},
}
SEEDS = 3
SeedResults = dict[str, dict[str, list[dict[str, Any]]]]  # method -> vendor -> the result of each seed


def demo(
    out: Path | str = "demo", steps: int = 200, vendors: tuple[str, ...] = VENDORS, seeds: int = SEEDS
) -> dict[str, Any]:
    """Trains (or finds trained) a model per method, held-out vendor and seed; returns results and the picture's path.

    A small network on features of a pretrained one, which are computed once: most of the time goes into those.
    """
    console = Console(stderr=True)
    results: SeedResults = {name: {vendor: [] for vendor in vendors} for name in METHODS}
    for vendor in vendors:
        for k, (name, method) in enumerate(METHODS.items()):
            console.print(f"{name}, tested on the unseen vendor {vendor}, {seeds} seeds")
            for seed in range(seeds):
                options = {**method, "hparams": {"batch_size": 32, **method.get("hparams", {})}}
                result = api.train(
                    DATA,
                    test_domains=[vendor],
                    protocol="lodo",
                    freeze_backbone=True,
                    steps=steps,
                    evaluate_every=max(1, steps // 10),
                    seed=seed,
                    out=Path(out) / f"{vendor}-{k}-{seed}",
                    resume=True,
                    progress=seed == 0,
                    **options,
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


def table(results: SeedResults) -> Table:
    """Accuracy on each unseen vendor, mean over seeds, with the standard error of the average over seeds."""
    vendors = list(next(iter(results.values())))
    shown = Table("method", *vendors, "average", "± (seeds)", "seconds", title="accuracy on an unseen vendor, %")
    for name, by_vendor in results.items():
        values = np.array([[result["average"] for result in by_vendor[vendor]] for vendor in vendors])
        by_seed = 100 * values.mean(0)
        error = by_seed.std(ddof=1) / len(by_seed) ** 0.5 if len(by_seed) > 1 else float("nan")
        seconds = sum(result["seconds"] for vendor in vendors for result in by_vendor[vendor])
        figures = [*(100 * values.mean(1)), by_seed.mean(), error]
        shown.add_row(name, *(f"{value:.1f}" for value in figures), f"{seconds:.0f}")
    return shown
