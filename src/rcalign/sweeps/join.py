"""A process that joins a sweep: it trains runs that no other process trains, without Ray and without a driver.

Any number of such processes, on machines that share the folder, divide the runs among themselves: a process trains a
run while it holds the run's lock, which the system releases when the process ends, however it ends. What a killed
process left is taken up by whoever looks next, from its last checkpoint.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch

from rcalign.errors import InputError
from rcalign.interrupts import asked_to_stop
from rcalign.store.sweep_folder import PlanEntry, SweepFolder, describe_entry
from rcalign.sweeps.one_run import ATTEMPTS, last_known, outcome_of, repeats_now, train_entry
from rcalign.sweeps.plan import TUNE_THEN_REPEAT, PlannedRun, Sweep

WAIT = 2.0  # seconds between two looks, while other processes finish the search
STOPPED = "stopped"


def join_sweep(
    sweep: Sweep,
    search: Sequence[PlannedRun],
    folder: SweepFolder,
    *,
    threads: int = 1,
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> str | None:
    """Trains runs of the folder until there is none left to take. Returns None, or in a sentence why it stopped.

    Of a "tune-then-repeat" sweep it waits for runs of the search that other processes train, since the winners'
    repetitions follow; otherwise it ends while others still train.
    """
    torch.set_num_threads(threads)
    with folder.joined(), asked_to_stop() as stopped:
        while not stopped.is_set():
            entries = write_plan_now(sweep, search, folder)
            left = _left(entries, folder)
            reason, took = _train_next(left, folder, device, say)
            if reason is not None:
                return reason
            if not took:
                searching = any(entry["phase"] == "search" for entry in left)
                if not (searching and sweep.seed_rule == TUNE_THEN_REPEAT):
                    return None
                stopped.wait(WAIT)
        return STOPPED


def write_plan_now(sweep: Sweep, search: Sequence[PlannedRun], folder: SweepFolder) -> list[PlanEntry]:
    """The entries of the plan as it is now, with the repetitions of winners once they are known; also written."""
    if sweep.early_stopping is not None:
        raise InputError("early_stopping compares draws by a driver, and here is none: leave it out, or use Ray.")
    with folder.planning():
        entries: list[PlanEntry] = [sweep.entry(run) for run in [*search, *repeats_now(sweep, search, folder)]]
        folder.begin(sweep.name, sweep.seed_rule, entries)
    return entries


def _left(entries: Sequence[PlanEntry], folder: SweepFolder) -> list[PlanEntry]:
    over = folder.finished() | folder.failures().keys()
    return [entry for entry in entries if entry["id"] not in over]


def _train_next(
    left: Sequence[PlanEntry], folder: SweepFolder, device: str, say: Callable[[str], None]
) -> tuple[str | None, bool]:
    """Trains the first run whose lock is free. Why everything must stop, or None; and whether there was such a run."""
    for entry in left:
        run = entry["id"]
        with ExitStack() as held:
            try:
                held.enter_context(folder.training(run, wait=0.0))
            except InputError:
                continue  # another process trains it
            if not _left([entry], folder):
                continue  # another process finished it since we looked
            if not _may_try(entry, folder, say):
                continue
            say(f"{describe_entry(entry)} ({run}): begins")
            outcome = outcome_of(lambda entry=entry: train_entry(entry, folder, device))  # type: ignore[misc]
            if outcome["end"] != "finished":
                gc.collect()  # a traceback may keep the run's files, and its lock, open
            folder.clear_attempts(run)
            if outcome["end"] == "no room":
                return outcome["error"], True
            if outcome["end"] == "interrupted":
                return STOPPED, True
            if outcome["end"] == "failed":
                folder.fail(run, outcome["kind"], outcome["error"], outcome["last_lines"])
                say(f"{describe_entry(entry)} ({run}): failed: {outcome['error']}")
            else:
                folder.clear_failure(run)
                validation, seconds = 100 * outcome["validation"], outcome["seconds"]
                say(f"{describe_entry(entry)} ({run}): {validation:.1f} % validation, {seconds:.0f} s")
            return None, True
    return None, False


def _may_try(entry: PlanEntry, folder: SweepFolder, say: Callable[[str], None]) -> bool:
    """Counts one more attempt; a run whose process died too often without getting any further counts as failed."""
    run = entry["id"]
    if folder.count_attempt(run, folder.run(run).evaluated_steps()) <= ATTEMPTS:
        return True
    error = f"its process died {ATTEMPTS} times (out of memory?)"
    folder.fail(run, "died", error, [last_known(folder.run(run))])
    folder.clear_attempts(run)
    say(f"{describe_entry(entry)} ({run}): failed: {error}")
    return False
