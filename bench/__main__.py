"""``make bench``: every measurement as a ratio with its goal; ``bench/results.json`` holds the same rows.

Each part runs in a process of its own, and its rows are written when it ends: what was measured stays when a later part
is interrupted or fails. ``python -m bench PART ...`` measures some parts only.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import bench
from bench.timing import Row

RESULTS = Path(__file__).with_name("results.json")
MET = {True: "yes", False: "[red]no", None: ""}
PART = """
import importlib, json, sys
rows = importlib.import_module("bench." + sys.argv[1]).measure()
open(sys.argv[2], "w").write(json.dumps(rows))
"""


def parts() -> list[str]:
    """The modules of this folder that have ``measure``."""
    names = [part.name for part in pkgutil.iter_modules(bench.__path__) if part.name != "__main__"]
    return [name for name in names if hasattr(importlib.import_module(f"bench.{name}"), "measure")]


def measured(name: str) -> list[Row] | None:
    """The rows of a part; None if it failed, which it has said."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.json")
        done = subprocess.run([sys.executable, "-c", PART, name, str(file)], cwd=RESULTS.parent.parent, check=False)
        return json.loads(file.read_text()) if done.returncode == 0 else None


def keep(name: str, rows: list[Row]) -> None:
    """Writes the rows of a part in the place of its earlier ones."""
    others = [row for row in json.loads(RESULTS.read_text()) if row["of"] != name] if RESULTS.exists() else []
    rows = sorted([*others, *({"of": name, **row} for row in rows)], key=lambda row: row["of"])
    RESULTS.write_text(json.dumps(rows, indent=2) + "\n")


def show(rows: list[Row]) -> None:
    table = Table("measurement", "value", "goal", "met")
    for row in rows:
        table.add_row(row["name"], f"{row['value']:.3g}", row["goal"], MET[row["met"]])
    Console().print(table)


def main(wanted: list[str]) -> None:
    """Measures all parts, or those named; the rows of others are kept."""
    there = parts()
    for name in wanted:
        if name not in there:
            sys.exit(f"nothing called '{name}' is measured: there are {', '.join(there)}.")
    said, begun, failed = Console(stderr=True), time.monotonic(), []
    names = wanted or there
    for k, name in enumerate(names, start=1):
        said.print(f"{k} of {len(names)}: {name}", highlight=False)
        started = time.monotonic()
        rows = measured(name)
        if rows is None:
            failed.append(name)
            continue
        keep(name, rows)
        said.print(f"   {time.monotonic() - started:.0f} s", highlight=False)
    if RESULTS.exists():
        show([row for row in json.loads(RESULTS.read_text()) if row["of"] in names])
    said.print(f"{(time.monotonic() - begun) / 60:.0f} minutes in all", highlight=False)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}. Their earlier rows stay in {RESULTS.name}.")


if __name__ == "__main__":
    main(sys.argv[1:])
