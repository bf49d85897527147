"""Still pictures of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from rcalign.store.run_folder import RunFolder

COLOURS = ("#6b7280", "#2563eb", "#d97706", "#059669", "#be185d", "#7c3aed")


def compare_runs(
    results: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
    path: Path | str,
    examples: Mapping[str, Sequence[np.ndarray]] | None = None,
) -> str:
    """Algorithm -> held-out domain -> results of its seeds (each with its run's "folder"): bars of accuracy, and
    accuracy along training.

    Bars are means over seeds and carry the standard error over seeds; lines are means over seeds.
    examples: domain -> images (h, w, 3), shown above as one column a domain. Returns the path.
    """
    domains = list(next(iter(results.values())))
    figure = plt.figure(figsize=(4.2 * (1 + len(domains)), 6.2 if examples else 3.8), layout="constrained")
    panels: Any = figure
    if examples:
        halves: Any = figure.subfigures(2, 1, height_ratios=(2, 3.4))
        above, panels = halves
        _strip(above, examples, domains)
    axes = panels.subplots(1, 1 + len(domains))
    bars = axes[0]
    width = 0.8 / len(results)
    seeds = max(len(found) for by_domain in results.values() for found in by_domain.values())
    for k, (name, by_domain) in enumerate(results.items()):
        values = [100 * np.array([result["average"] for result in by_domain[domain]]) for domain in domains]
        error = [found.std(ddof=1) / len(found) ** 0.5 if len(found) > 1 else 0.0 for found in values]
        place = np.arange(len(domains)) + (k - (len(results) - 1) / 2) * width
        means = [found.mean() for found in values]
        drawn = bars.bar(place, means, width * 0.92, yerr=error, color=COLOURS[k], label=name, capsize=3)
        bars.bar_label(drawn, [f"{mean:.1f}" for mean in means], label_type="center", color="white")
    bars.set_xticks(range(len(domains)), domains)
    bars.set_ylabel("accuracy on the unseen domain, %")
    bars.set_title(f"mean of {seeds} seeds ± standard error over seeds", fontsize=10)
    bars.legend(frameon=False, loc="upper center", ncols=len(results), bbox_to_anchor=(0.5, -0.08))
    for axis, domain in zip(axes[1:], domains, strict=True):
        for k, (name, by_domain) in enumerate(results.items()):
            found = [RunFolder(result["folder"]).records() for result in by_domain[domain]]
            runs = [[record for record in records if not record.averaged] for records in found]
            rows = list(zip(*runs, strict=False))  # with weight averaging a run may stop early
            steps = [row[0].step for row in rows]
            unseen = [100 * np.mean([record.accuracy[domain]["test"] for record in row]) for row in rows]
            axis.plot(steps, unseen, color=COLOURS[k], marker="o", label=f"{name}, unseen")
            seen = [100 * np.mean([record.validation for record in row]) for row in rows]
            axis.plot(steps, seen, color=COLOURS[k], linestyle=":", marker="o", markersize=3, label=f"{name}, seen")
        axis.set_title(f"unseen: {domain}", fontsize=10)
        axis.set_xlabel("step")
        axis.set_ylabel("accuracy, %")
    axes[-1].legend(frameon=False, fontsize=7, loc="center")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
        axis.set_axisbelow(True)
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return str(path)


def _strip(figure: Any, examples: Mapping[str, Sequence[np.ndarray]], held_out: Sequence[str]) -> None:
    """One column of example images for each domain; those held out in some run are marked."""
    rows = len(next(iter(examples.values())))
    grid = figure.subplots(rows, len(examples), squeeze=False)
    for k, (domain, images) in enumerate(examples.items()):
        for axis, image in zip(grid[:, k], images, strict=True):
            axis.imshow(image)
            axis.set_axis_off()
        unseen = domain in held_out
        grid[0, k].set_title(domain, fontsize=10, fontweight="bold" if unseen else "normal")
    figure.suptitle("the same things in every domain (bold: held out in turn)", fontsize=10, color="#4b5563")
