"""A page that is written anew while the runs it reports on are trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rcalign.errors import InputError
from rcalign.files import write_whole
from rcalign.reports.html import make_page
from rcalign.reports.report import Report
from rcalign.store.sweep_folder import SweepFolder

EVERY = 30.0  # seconds


def watched(
    folder: Path,
    out: Path,
    make: Callable[[], Report],
    every: float = EVERY,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Writes the page until no driver is at work in the sweep's folder; yields a sentence after each writing.

    While it is written anew the page reloads itself; the last one does not.
    """
    sweep = SweepFolder(folder)
    sweep.plan()  # says so if it is no sweep
    while True:
        at_work = sweep.driven()
        try:
            report = make()
        except InputError as error:
            if not at_work:
                raise
            yield f"Waiting: {error}"
        else:
            write_whole(out, make_page(report, reload_after=every if at_work else None).encode())
            done = sum(run.problem is None for run in report.sweep.runs)
            yield f"{done} of {len(report.sweep.runs)} runs; report written to {out}"
        if not at_work:
            return
        wait(every)
