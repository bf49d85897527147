"""``make demo``: ERM and RC-Align on real drawings, each vendor in turn held out, in one table and one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rcalign import api
from rcalign.data import source
from rcalign.data.cache import open_images
from rcalign.reports.plots import compare_runs

VENDORS = ("windows", "twitter")
ALGORITHMS = ("ERM", "RC-Align")


def demo(out: Path | str = "demo", steps: int = 120, vendors: tuple[str, ...] = VENDORS) -> dict[str, Any]:
    """Trains (or finds trained) one model per algorithm and held-out vendor; returns results and the picture's path.

    Six source vendors with eight drawings each per step, so a step sees 48 images.
    """
    console = Console(stderr=True)
    results: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in ALGORITHMS}
    for vendor in vendors:
        for name in ALGORITHMS:
            folder = Path(out) / f"{name}-{vendor}"
            known = (folder / "result.json").exists()
            console.print(f"{'Found' if known else 'Training'} {name}, tested on the unseen vendor {vendor}")
            results[name][vendor] = api.train(
                "emoji",
                name,
                [vendor],
                steps=steps,
                evaluate_every=40,
                hparams={"batch_size": 8, "learning_rate": 1e-4},
                out=folder,
                resume=True,
                progress=True,
            )
    picture = compare_runs(results, Path(out) / "comparison.png", examples())
    return {"results": results, "picture": picture}


def examples(count: int = 2) -> dict[str, list[np.ndarray]]:
    """Vendor -> its drawings of a few emoji, of different classes."""
    dataset = source.load("emoji")
    store = open_images(dataset, 72)
    assert dataset.group is not None
    chosen = [np.unique(dataset.group[dataset.y == c])[40] for c in range(1, 1 + count)]
    rows = {
        vendor: [int(np.flatnonzero((dataset.domain == k) & (dataset.group == group))[0]) for group in chosen]
        for k, vendor in enumerate(dataset.domains)
    }
    return {vendor: list(store.take(of_vendor).numpy()) for vendor, of_vendor in rows.items()}


def table(results: dict[str, dict[str, dict[str, Any]]]) -> Table:
    """Accuracy on each unseen vendor, their average, the worst, and the seconds it took."""
    vendors = list(next(iter(results.values())))
    shown = Table("algorithm", *vendors, "average", "worst", "seconds", title="accuracy on an unseen vendor, per cent")
    for name, by_vendor in results.items():
        values = [by_vendor[vendor]["average"] for vendor in vendors]
        seconds = sum(by_vendor[vendor]["seconds"] for vendor in vendors)
        figures = [*values, sum(values) / len(values), min(values)]
        shown.add_row(name, *(f"{100 * value:.1f}" for value in figures), f"{seconds:.0f}")
    return shown
