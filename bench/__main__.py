"""``make bench``: every measurement as a ratio with its goal; ``bench/results.json`` holds the same rows."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import bench

RESULTS = Path(__file__).with_name("results.json")
MET = {True: "yes", False: "[red]no", None: ""}


def main(wanted: list[str]) -> None:
    """Runs every module of this folder that has ``measure``, or those named; others' rows are kept."""
    modules = [
        importlib.import_module(f"bench.{found.name}")
        for found in pkgutil.iter_modules(bench.__path__)
        if found.name != "__main__"
    ]
    chosen = [m for m in modules if hasattr(m, "measure") and (not wanted or m.__name__.split(".")[1] in wanted)]
    kept = {row["name"]: row for row in json.loads(RESULTS.read_text())} if wanted and RESULTS.exists() else {}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("measuring", total=len(chosen))
        for module in chosen:
            progress.update(bar, description=f"measuring {module.__name__.split('.')[1]}")
            kept.update({row["name"]: row for row in module.measure()})
            progress.advance(bar)
    table = Table("measurement", "value", "goal", "met")
    for row in kept.values():
        table.add_row(row["name"], f"{row['value']:.3g}", row["goal"], MET[row["met"]])
    Console().print(table)
    RESULTS.write_text(json.dumps(list(kept.values()), indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
