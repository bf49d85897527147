"""Processor seconds until the command line answers, and what the imports of the slowest answer cost."""

from __future__ import annotations

import re
import resource
import statistics
import subprocess
import sys
import tempfile

from bench.timing import Row, row

ROUNDS = 3
COMMANDS = {
    "rcalign --help": ["--help"],
    "rcalign train --help": ["train", "--help"],
    "rcalign data list": ["data", "list"],
    "rcalign algorithms": ["algorithms"],
    "rcalign algorithms NAME": ["algorithms", "RC-Align"],
    "rcalign report, of nothing": ["report", "nothing"],
    "an unknown algorithm": ["train", "emoji", "--algorithm", "EMR"],
}
PROFILED = "rcalign.reports.render"  # the most that any of them imports
SHOWN = 6


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        found = [
            row(
                f"start: processor seconds of {name}",
                statistics.median(_spent(words, folder) for _ in range(ROUNDS)),
                "<= 1.5",
            )
            for name, words in COMMANDS.items()
        ]
    profile = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {PROFILED}"], capture_output=True, text=True, check=True
    )
    lines = re.findall(r"^import time: +\d+ \| +(\d+) \| *(\S+)$", profile.stderr, flags=re.MULTILINE)
    packages = {name: int(total) for total, name in lines if "." not in name or name.startswith("rcalign.")}
    slowest = sorted(packages, key=lambda name: -packages[name])[:SHOWN]
    return found + [
        row(f"start: seconds to import {name}, with what it imports", packages[name] / 1e6) for name in slowest
    ]


def _spent(words: list[str], folder: str) -> float:
    """Processor seconds of one command, in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "rcalign.cli", *words], cwd=folder, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
