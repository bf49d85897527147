"""One planned run, in whichever process trains it: a worker of Ray's, or a process that joined the sweep by itself."""

from __future__ import annotations

import dataclasses
import errno
import functools
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from rcalign.data import loading
from rcalign.data.source import Dataset
from rcalign.errors import DivergedError, InputError
from rcalign.extensions import import_modules
from rcalign.store.run_folder import RunFolder
from rcalign.store.sweep_folder import PlanEntry, SweepFolder
from rcalign.sweeps.plan import TUNE_THEN_REPEAT, PlannedRun, Sweep, repeats
from rcalign.training import job
from rcalign.training.loop import Interrupted
from rcalign.training.options import options_from

ATTEMPTS = 3  # of a run whose process dies
LAST_LINES = 20
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def train_entry(entry: PlanEntry, folder: SweepFolder, device: str) -> dict[str, Any]:
    """Trains a planned run, from its checkpoint if there is one, and returns its result. The caller holds its lock."""
    run = folder.run(entry["id"])
    _tidy(run)
    options = options_from({**entry, "device": device})
    import_modules(options.imports)  # before the data, which may be one of theirs
    data = _dataset(entry["data"], options.skip_bad)
    return job.run_job(data, options, out=run.path, resume=run.config_file.exists())


def outcome_of(train: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Calls a training and says how it ended: ``end`` is "finished", "interrupted", "no room" or "failed"."""
    begun = time.monotonic()
    try:
        result = train()
        return {"end": "finished", "validation": float(result["validation"]), "seconds": time.monotonic() - begun}
    except Interrupted:
        return {"end": "interrupted"}
    except Exception as error:
        full = _full_disk(error)
        if full is not None:
            return {"end": "no room", "error": no_room(full)}
        lines = "".join(traceback.format_exception(error)).strip().splitlines()
        kind = "diverged" if isinstance(error, DivergedError) else "error"
        said = str(error) if isinstance(error, (InputError, DivergedError)) else f"{type(error).__name__}: {error}"
        return {"end": "failed", "kind": kind, "error": said, "last_lines": lines[-LAST_LINES:]}


def last_known(run: RunFolder) -> str:
    """How far a run had come, in words."""
    records = run.records()
    return f"last evaluation: step {records[-1].step}" if records else "it had not been evaluated yet"


def no_room(error: OSError) -> str:
    """Why a sweep stops when the disk is full."""
    where = f" while writing {error.filename}" if error.filename else ""
    return f"no room is left on the disk{where}: free some"


def repeats_now(sweep: Sweep, search: Sequence[PlannedRun], folder: SweepFolder) -> tuple[PlannedRun, ...]:
    """The repetitions of winners, once the whole search is over; a group with failed runs has none."""
    if sweep.seed_rule != TUNE_THEN_REPEAT:
        return ()
    finished, failures = folder.finished(), folder.failures()
    given_up = folder.given_up() if sweep.early_stopping is not None else set[str]()
    over = finished | failures.keys() | given_up
    if any(run.id not in over for run in search):
        return ()
    lost = given_up | {run for run, note in failures.items() if note["kind"] == "diverged"}
    validation: dict[str, float | None] = dict.fromkeys(lost)
    for run in finished:
        result = folder.run(run).result()
        assert result is not None
        validation[run] = result.validation
    return repeats(sweep, search, validation)[0]


def _full_disk(error: BaseException | None) -> OSError | None:
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return error
        error = error.__cause__ or error.__context__
    return None


def _tidy(run: RunFolder) -> None:
    """Removes what a kill left half-written. The configuration is the first thing that a run writes."""
    if run.path.exists() and not run.config_file.exists():
        shutil.rmtree(run.path)
    for leftover in run.path.rglob(".*.*"):
        leftover.unlink(missing_ok=True)


@functools.lru_cache(maxsize=2)
def _dataset(data: str, skip_bad: bool) -> Dataset:
    """Loaded once in a process; named as the plan names it, so that a run folder says where its data are."""
    return dataclasses.replace(loading.load(data, skip_bad=skip_bad), name=data)
