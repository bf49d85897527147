"""The folder of a sweep: what was planned, what is done, what runs now, what failed. Readable from anywhere.

``plan.json``; ``runs/ID`` (a run folder each); ``failures/ID.json`` (error and last lines); ``given-up/ID.json`` (draws
stopped early); ``running/ID.json`` (the process that trains it, which holds its lock); ``driver.json`` (the driver);
``joined/`` (processes that train without a driver); ``attempts/ID.json`` (how often they began a run).
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcalign.errors import InputError
from rcalign.files import write_whole
from rcalign.store import locks
from rcalign.store.json_files import read_object, write_json
from rcalign.store.names import short_data_name
from rcalign.store.results import RunResult
from rcalign.store.run_folder import RunFolder

PLAN_FORMAT = 1  # of plan.json; a reader refuses a newer one
PlanEntry = Mapping[str, Any]  # one planned run
OWN_FILES = ("driver.json", ".driver.lock", ".plan.lock", "joined")  # those that are there before the plan


class SweepFolder:
    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.plan_file = self.path / "plan.json"

    # --- the plan ------------------------------------------------------------------------------------------------

    def begin(self, name: str, seed_rule: str, entries: Sequence[PlanEntry]) -> None:
        """Claims the folder for these runs, or agrees that they are what it holds, perhaps with more of them."""
        if self.plan_file.exists():
            planned = {entry["id"] for entry in entries}
            before = self._searched_before()
            foreign = [run for run in before if run not in planned]
            if foreign:
                raise InputError(
                    f"'{self.path}' holds another sweep ({len(foreign)} of its {len(before)} runs are not in this "
                    "plan): choose another `out`."
                )
        elif self.path.exists() and any(item.name not in OWN_FILES for item in self.path.iterdir()):
            raise InputError(f"the output folder '{self.path}' holds other files: choose an empty or new one.")
        self.write_plan(name, seed_rule, entries)

    def _searched_before(self) -> list[str]:
        """The runs that the folder's plan searches; if the plan is damaged, those that were started."""
        if read_object(self.plan_file) is None:
            return sorted(self.started())
        return [entry["id"] for entry in self.plan()["runs"] if entry["phase"] == "search"]

    def write_plan(self, name: str, seed_rule: str, entries: Sequence[PlanEntry]) -> None:
        rows = ",\n".join(json.dumps(entry) for entry in entries)  # a line each: easy to read and to compare
        head = f'"format": {PLAN_FORMAT}, "name": {json.dumps(name)}, "seed_rule": {json.dumps(seed_rule)}'
        text = f'{{{head}, "runs": [\n{rows}\n]}}\n'
        if not self.plan_file.exists() or self.plan_file.read_text() != text:
            write_whole(self.plan_file, text.encode())

    def plan(self) -> dict[str, Any]:
        """The content of ``plan.json``: ``name``, ``seed_rule`` and ``runs``, one entry for each."""
        if not self.plan_file.is_file():
            raise InputError(f"'{self.path}' is not a sweep (it has no plan.json): give a folder that 'sweep' wrote.")
        try:
            plan = json.loads(self.plan_file.read_text())
            if plan.get("format", 0) > PLAN_FORMAT:
                raise InputError(
                    f"'{self.plan_file}' was written by a newer rcalign (format {plan['format']}): update rcalign."
                )
            for entry in plan["runs"]:
                entry["id"], entry["data"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"'{self.plan_file}' is damaged ({type(error).__name__}: {error}): run the sweep again to restore it, "
                "or report on the folder of its runs."
            ) from None
        return plan

    # --- runs ----------------------------------------------------------------------------------------------------

    def run(self, run: str) -> RunFolder:
        return RunFolder(self.path / "runs" / run)

    def finished(self) -> set[str]:
        return {name for name in self._names("runs") if (self.path / "runs" / name / "result.json").exists()}

    def started(self) -> set[str]:
        return set(self._names("runs"))

    def failures(self) -> dict[str, dict[str, Any]]:
        """Run id -> its failure, of runs that are not finished."""
        return {run: self._note("failures", run) for run in self._notes("failures")}

    def fail(self, run: str, kind: str, error: str, last_lines: Sequence[str]) -> None:
        """kind: "error", "diverged", "died" (its process) or "hung"."""
        self._write("failures", run, {"id": run, "kind": kind, "error": error, "last_lines": list(last_lines)})

    def clear_failure(self, run: str) -> None:
        """Removes the note of a failure, of a run that is tried again or succeeded."""
        (self.path / "failures" / f"{run}.json").unlink(missing_ok=True)

    def given_up(self) -> set[str]:
        return set(self._notes("given-up"))

    def give_up(self, run: str, step: int, validation: float) -> None:
        self._write("given-up", run, {"id": run, "step": step, "validation": validation})

    def mark_resumed(self, run: str) -> None:
        """Removes the note that a draw was given up, when it goes on."""
        (self.path / "given-up" / f"{run}.json").unlink(missing_ok=True)

    def count_attempt(self, run: str, step: int) -> int:
        """Notes that a process begins a run at a step, and returns how many did so without getting any further."""
        before = self.noted("attempts", run) or {}
        count = before.get("count", 0) + 1 if before.get("step") == step else 1
        self._write("attempts", run, {"id": run, "step": step, "count": count})
        return count

    def clear_attempts(self, run: str) -> None:
        """Removes the count of attempts, of a run whose process did not die."""
        (self.path / "attempts" / f"{run}.json").unlink(missing_ok=True)

    def last_heartbeat(self, run: str) -> float:
        """When a run last wrote anything: a time of the file system, only to be compared with others of it."""
        found = [0.0]
        for training in self.run(run).trainings():
            if training.path.is_dir():
                found += [item.stat().st_mtime for item in os.scandir(training.path)]
        return max(found)

    def _write(self, kind: str, run: str, value: Mapping[str, Any]) -> None:
        (self.path / kind).mkdir(exist_ok=True)
        write_json(self.path / kind / f"{run}.json", value)

    def _names(self, kind: str) -> list[str]:
        folder = self.path / kind
        return [name for name in os.listdir(folder) if not name.startswith(".")] if folder.is_dir() else []

    def _notes(self, kind: str) -> list[str]:
        return [name.removesuffix(".json") for name in self._names(kind)]

    def _note(self, kind: str, run: str) -> dict[str, Any]:
        unreadable = {"id": run, "kind": "error", "error": "its note cannot be read", "last_lines": []}
        return read_object(self.path / kind / f"{run}.json") or unreadable

    def noted(self, kind: str, run: str) -> dict[str, Any] | None:
        """The note on a run of kind "failures", "given-up" or "attempts"; empty if damaged, None if there is none."""
        file = self.path / kind / f"{run}.json"
        return (read_object(file) or {}) if file.is_file() else None

    # --- who is at work --------------------------------------------------------------------------------------------

    @contextmanager
    def driving(self) -> Iterator[None]:
        """One driver at a time, and none beside processes that joined without one. Creates the folder."""
        self._create()

        def busy(other: Mapping[str, Any]) -> InputError:
            return InputError(
                f"another sweep is at work in '{self.path}' (process {other.get('pid')} on {other.get('host')}): wait "
                "for it or stop it; 'rcalign sweep status' shows how far it is."
            )

        with locks.announced(self.path / "driver.json", 2.0, busy):
            others = self.processes()
            if others:
                raise InputError(
                    f"{len(others)} processes of a cluster's job are at work in '{self.path}': wait for them, or "
                    "cancel the job."
                )
            yield

    @contextmanager
    def planning(self) -> Iterator[None]:
        """One process at a time writes the plan. Creates the folder."""
        self._create()
        with locks.waited_for(self.path / ".plan.lock", "sweep folder", lambda: None):
            yield

    @contextmanager
    def joined(self) -> Iterator[None]:
        """This process takes part in the sweep without a driver: any number may, but not beside a driver."""
        self._create()
        driver = locks.holder(self.path / "driver.json")
        if driver is not None:
            raise InputError(
                f"a sweep with a driver is at work in '{self.path}' (process {driver.get('pid')} on "
                f"{driver.get('host')}): wait for it or stop it."
            )
        (self.path / "joined").mkdir(exist_ok=True)
        name = f"{socket.gethostname()}-{os.getpid()}.json"
        twice = InputError(f"this process trains runs of '{self.path}' already: join a sweep once in a process.")
        try:
            with locks.announced(self.path / "joined" / name, 2.0, lambda other: twice):
                yield
        finally:
            locks.lock_file(self.path / "joined" / name).unlink(missing_ok=True)

    def processes(self) -> dict[str, dict[str, Any]]:
        """Name -> process, host and time of start, of those that joined and are alive."""
        found = {name: locks.holder(self.path / "joined" / f"{name}.json") for name in self._notes("joined")}
        return {name: holder for name, holder in found.items() if holder is not None}

    def _create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (PermissionError, FileExistsError, NotADirectoryError):
            raise InputError(f"'{self.path}' cannot be made a folder: choose another `out`.") from None

    @contextmanager
    def training(self, run: str, wait: float = 60.0) -> Iterator[None]:
        """One process at a time trains a run; after a kill of the driver its workers live on for some seconds."""

        def busy(other: Mapping[str, Any]) -> InputError:
            return InputError(
                f"run {run} is still being trained by process {other.get('pid')} on {other.get('host')}: wait "
                "for it or stop it."
            )

        (self.path / "running").mkdir(exist_ok=True)
        with locks.announced(self.path / "running" / f"{run}.json", wait, busy):
            yield

    def driven(self) -> bool:
        """Whether a driver is at work in the folder."""
        return locks.holder(self.path / "driver.json") is not None

    def running(self) -> dict[str, dict[str, Any]]:
        """Run id -> process, host and time of start, of those whose process is alive."""
        found = {run: locks.holder(self.path / "running" / f"{run}.json") for run in self._notes("running")}
        return {run: holder for run, holder in found.items() if holder is not None}


# --- status --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StatusRow:
    """One algorithm on one data set: how many runs, and the largest validation accuracy so far."""

    data: str
    label: str
    planned: int
    finished: int
    failed: int
    best: float | None
    best_draw: int | None


@dataclass(frozen=True)
class SweepStatus:
    """How far a sweep is.

    driven: a driver is at work, or processes without one. seconds_left: None while nobody is at work or nothing is
    finished.
    """

    name: str
    folder: str
    driven: bool
    planned: int
    finished: int
    running: int
    failed: int
    given_up: int
    waiting: int
    seconds_left: float | None
    parts: tuple[StatusRow, ...]
    failures: tuple[dict[str, Any], ...]


def read_status(path: Path | str) -> SweepStatus:
    """Reads the folder only: works while the sweep runs, after it, and on another machine that sees the folder."""
    folder = SweepFolder(path)
    plan = folder.plan()
    entries = plan["runs"]
    ids = {entry["id"] for entry in entries}
    finished, running = folder.finished() & ids, folder.running().keys() & ids
    failures = {run: note for run, note in folder.failures().items() if run in ids - finished - running}
    given_up = (folder.given_up() & ids) - finished
    results = {run: result for run in finished if (result := folder.run(run).result()) is not None}
    waiting = len(ids) - len(finished | running | failures.keys() | given_up)
    parts: dict[tuple[str, str], list[PlanEntry]] = {}
    for entry in entries:
        parts.setdefault((entry["data"], entry["label"]), []).append(entry)
    failed = [entry for entry in entries if entry["id"] in failures]
    seconds = [result.seconds for result in results.values()]
    left = None
    if seconds and running:
        left = sum(seconds) / len(seconds) * (waiting / len(running) + 0.5)
    return SweepStatus(
        name=plan["name"],
        folder=str(path),
        driven=folder.driven() or bool(folder.processes()),
        planned=len(ids),
        finished=len(finished),
        running=len(running),
        failed=len(failures),
        given_up=len(given_up),
        waiting=waiting,
        seconds_left=left,
        parts=tuple(_status_row(*key, own, results, failures.keys()) for key, own in parts.items()),
        failures=tuple({"run": describe_entry(entry), **failures[entry["id"]]} for entry in failed),
    )


def _status_row(
    data: str, label: str, entries: Sequence[PlanEntry], results: Mapping[str, RunResult], failed: Collection[str]
) -> StatusRow:
    done = [entry for entry in entries if entry["id"] in results]
    best = max(done, key=lambda entry: results[entry["id"]].validation, default=None)
    return StatusRow(
        data=data,
        label=label,
        planned=len(entries),
        finished=len(done),
        failed=sum(entry["id"] in failed for entry in entries),
        best=None if best is None else results[best["id"]].validation,
        best_draw=None if best is None else best["draw"],
    )


def same_failures(failures: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Failures with the same error, whatever numbers and names in quotes it holds; those of most runs first.

    >>> notes = [{"id": "a", "kind": "error", "error": "no file '/x/1'"},
    ...          {"id": "b", "kind": "died", "error": "killed"},
    ...          {"id": "c", "kind": "error", "error": "no file '/x/2'"}]
    >>> [[note["id"] for note in alike] for alike in same_failures(notes)]
    [['a', 'c'], ['b']]
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for failure in failures:
        words = re.sub(r"'[^']*'|\d[\d.,e+-]*", "#", failure["error"])
        groups.setdefault((failure["kind"], words), []).append(failure)
    return sorted(groups.values(), key=len, reverse=True)


def describe_entry(entry: PlanEntry) -> str:
    """What a planned run is, in words.

    >>> describe_entry({"label": "ERM", "data": "/d/rows.npz", "test_domains": ["a", "b"], "draw": 3, "seed": 1})
    'ERM on rows, a and b held out, draw 3, seed 1'
    """
    held_out = f", {' and '.join(entry['test_domains'])} held out" if entry["test_domains"] else ""
    data = short_data_name(entry["data"])
    return f"{entry['label']} on {data}{held_out}, draw {entry['draw']}, seed {entry['seed']}"
