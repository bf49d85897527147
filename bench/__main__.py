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
    """Runs every module of this folder that has ``measure``, or those named; the rows of others are kept."""
    modules = [
        importlib.import_module(f"bench.{part.name}")
        for part in pkgutil.iter_modules(bench.__path__)
        if part.name != "__main__"
    ]
    found = {module.__name__.split(".")[1]: module for module in modules if hasattr(module, "measure")}
    for name in wanted:
        if name not in found:
            sys.exit(f"nothing called '{name}' is measured: there are {', '.join(found)}.")
    names = wanted or list(found)
    rows = [row for row in json.loads(RESULTS.read_text()) if row["of"] not in names] if RESULTS.exists() else []
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("measuring", total=len(names))
        for name in names:
            progress.update(bar, description=f"measuring {name}")
            rows += [{"of": name, **row} for row in found[name].measure()]
            progress.advance(bar)
    rows.sort(key=lambda row: row["of"])
    table = Table("measurement", "value", "goal", "met")
    for row in rows:
        table.add_row(row["name"], f"{row['value']:.3g}", row["goal"], MET[row["met"]])
    Console().print(table)
    RESULTS.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
