"""The folder of a sweep: what was planned, what is done, what runs now, what failed. Readable from anywhere.

``plan.json``; ``runs/ID`` (a run folder each); ``failures/ID.json`` (error and last lines); ``given-up/ID.json`` (draws
stopped early); ``running/ID.json`` (locked by the process that trains it); ``driver.json`` (locked by the driver).
Locks vanish with their process, whatever kills it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcalign.data import sources
from rcalign.errors import InputError
from rcalign.files import write_whole
from rcalign.records import RunFolder, write_json
from rcalign.sweeps.plan import FORMAT

Entry = Mapping[str, Any]  # of plan.json


class SweepFolder:
    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.plan_file = self.path / "plan.json"

    # --- the plan ------------------------------------------------------------------------------------------------

    def begin(self, name: str, seed_rule: str, entries: Sequence[Entry]) -> None:
        """Claims the folder for these runs, or agrees that they are what it holds, perhaps with more of them."""
        if self.plan_file.exists():
            planned = {entry["id"] for entry in entries}
            before = self._searched_before()
            foreign = [run for run in before if run not in planned]
            if foreign:
                raise InputError(
                    f"'{self.path}' holds another sweep ({len(foreign)} of its {len(before)} runs are not in this "
                    "plan): choose another --out."
                )
        elif self.path.exists() and any(item.name != "driver.json" for item in self.path.iterdir()):
            raise InputError(f"the output folder '{self.path}' holds other files: choose an empty or new one.")
        self.write_plan(name, seed_rule, entries)

    def _searched_before(self) -> list[str]:
        """What the folder was for; if its plan is damaged, what was begun."""
        try:
            json.loads(self.plan_file.read_text())
        except json.JSONDecodeError:
            return sorted(self.started())
        return [entry["id"] for entry in self.plan()["runs"] if entry["phase"] == "search"]

    def write_plan(self, name: str, seed_rule: str, entries: Sequence[Entry]) -> None:
        rows = ",\n".join(json.dumps(entry) for entry in entries)  # a line each: easy to read and to compare
        head = f'"format": {FORMAT}, "name": {json.dumps(name)}, "seed_rule": {json.dumps(seed_rule)}'
        text = f'{{{head}, "runs": [\n{rows}\n]}}\n'
        if not self.plan_file.exists() or self.plan_file.read_text() != text:
            write_whole(self.plan_file, text.encode())

    def plan(self) -> dict[str, Any]:
        if not self.plan_file.is_file():
            raise InputError(f"'{self.path}' is not a sweep (it has no plan.json): give a folder that 'sweep' wrote.")
        try:
            plan = json.loads(self.plan_file.read_text())
        except json.JSONDecodeError as error:
            raise InputError(f"'{self.plan_file}' is damaged ({error}): run the sweep again to restore it.") from None
        if plan.get("format", 0) > FORMAT:
            raise InputError(f"'{self.path}' was written by a newer rcalign (format {plan['format']}): update rcalign.")
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

    def forgive(self, run: str) -> None:
        """A failed run that is tried again, or succeeded."""
        (self.path / "failures" / f"{run}.json").unlink(missing_ok=True)

    def given_up(self) -> set[str]:
        return set(self._notes("given-up"))

    def give_up(self, run: str, step: int, validation: float) -> None:
        self._write("given-up", run, {"id": run, "step": step, "validation": validation})

    def take_up(self, run: str) -> None:
        """A draw that was given up and goes on."""
        (self.path / "given-up" / f"{run}.json").unlink(missing_ok=True)

    def last_sign(self, run: str) -> float:
        """When a run last wrote anything (a time of the file system, only good for comparing)."""
        found = [0.0]
        for folder in (self.run(run).path, self.run(run).path / "stage-1"):
            if folder.is_dir():
                found += [item.stat().st_mtime for item in os.scandir(folder)]
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
        try:
            return json.loads((self.path / kind / f"{run}.json").read_text())
        except (OSError, json.JSONDecodeError):
            return {"id": run, "kind": "error", "error": "its note cannot be read", "last_lines": []}

    # --- who is at work --------------------------------------------------------------------------------------------

    @contextmanager
    def driving(self) -> Iterator[None]:
        """One driver at a time. Creates the folder."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (PermissionError, FileExistsError, NotADirectoryError):
            raise InputError(f"'{self.path}' cannot be made a folder: choose another --out.") from None

        def busy(other: Mapping[str, Any]) -> InputError:
            return InputError(
                f"another sweep is at work in '{self.path}' (process {other.get('pid')} on {other.get('host')}): wait "
                "for it or stop it; 'rcalign sweep status' shows how far it is."
            )

        with _locked(self.path / "driver.json", 2.0, busy):
            yield

    @contextmanager
    def training(self, run: str, wait: float = 60.0) -> Iterator[None]:
        """One process at a time trains a run; after a kill of the driver its workers live on for some seconds."""

        def busy(other: Mapping[str, Any]) -> InputError:
            return InputError(
                f"run {run} is still being trained by process {other.get('pid')} on {other.get('host')}: stop it."
            )

        (self.path / "running").mkdir(exist_ok=True)
        with _locked(self.path / "running" / f"{run}.json", wait, busy):
            yield

    def driven(self) -> bool:
        return _is_locked(self.path / "driver.json")

    def running(self) -> dict[str, dict[str, Any]]:
        """Run id -> process, host and time of start, of those whose process is alive."""
        found = {}
        for run in self._notes("running"):
            if _is_locked(self.path / "running" / f"{run}.json"):
                found[run] = self._note("running", run)
        return found


@contextmanager
def _locked(file: Path, wait: float, busy: Callable[[Mapping[str, Any]], Exception]) -> Iterator[None]:
    """Holds a lock on a file that says who holds it; the file goes with the lock."""
    until = time.monotonic() + wait
    while True:
        handle = file.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            if time.monotonic() > until:
                raise busy(_content(file)) from None
            time.sleep(0.1)
            continue
        except OSError as error:
            handle.close()
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            raise InputError(f"the file system of '{file.parent}' knows no locks: choose another --out.") from None
        if file.exists() and os.path.samestat(os.fstat(handle.fileno()), file.stat()):
            break
        handle.close()  # its former holder removed it between opening and locking
    try:
        handle.truncate(0)
        handle.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}))
        handle.flush()
        yield
    finally:
        file.unlink(missing_ok=True)
        handle.close()


def _is_locked(file: Path) -> bool:
    try:
        with file.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _content(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except (OSError, json.JSONDecodeError):
        return {}


# --- status --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One algorithm on one data set: how many runs, and the largest validation accuracy so far."""

    data: str
    label: str
    planned: int
    finished: int
    failed: int
    best: float | None
    best_draw: int | None


@dataclass(frozen=True)
class Status:
    """How far a sweep is. seconds_left: None while nobody is at work or nothing is finished."""

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
    parts: tuple[Part, ...]
    failures: tuple[dict[str, Any], ...]


def status(path: Path | str) -> Status:
    """Reads the folder only: works while the sweep runs, after it, and on another machine that sees the folder."""
    folder = SweepFolder(path)
    plan = folder.plan()
    entries = plan["runs"]
    ids = {entry["id"] for entry in entries}
    finished, running = folder.finished() & ids, folder.running().keys() & ids
    failures = {run: note for run, note in folder.failures().items() if run in ids - finished - running}
    given_up = (folder.given_up() & ids) - finished
    results = {run: folder.run(run).result() or {} for run in finished}
    waiting = len(ids) - len(finished | running | failures.keys() | given_up)
    parts: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        parts.setdefault((entry["data"], entry["label"]), []).append(entry)
    failed = [entry for entry in entries if entry["id"] in failures]
    seconds = [float(result.get("seconds", 0)) for result in results.values()]
    left = None
    if seconds and running:
        left = sum(seconds) / len(seconds) * (waiting / len(running) + 0.5)
    return Status(
        name=plan["name"],
        folder=str(path),
        driven=folder.driven(),
        planned=len(ids),
        finished=len(finished),
        running=len(running),
        failed=len(failures),
        given_up=len(given_up),
        waiting=waiting,
        seconds_left=left,
        parts=tuple(_part(*key, own, results, failures.keys()) for key, own in parts.items()),
        failures=tuple({"run": describe(entry), **failures[entry["id"]]} for entry in failed),
    )


def _part(
    data: str, label: str, entries: Sequence[Entry], results: Mapping[str, Mapping[str, Any]], failed: Any
) -> Part:
    done = [entry for entry in entries if entry["id"] in results]
    best = max(done, key=lambda entry: float(results[entry["id"]]["validation"]), default=None)
    return Part(
        data=data,
        label=label,
        planned=len(entries),
        finished=len(done),
        failed=sum(entry["id"] in failed for entry in entries),
        best=None if best is None else float(results[best["id"]]["validation"]),
        best_draw=None if best is None else best["draw"],
    )


def describe(entry: Entry) -> str:
    """
    >>> describe({"label": "ERM", "data": "/d/rows.npz", "test_domains": ["a", "b"], "draw": 3, "seed": 1})
    'ERM on rows, a and b held out, draw 3, seed 1'
    """
    held_out = f", {' and '.join(entry['test_domains'])} held out" if entry["test_domains"] else ""
    return f"{entry['label']} on {short(entry['data'])}{held_out}, draw {entry['draw']}, seed {entry['seed']}"


def short(data: str) -> str:
    """A name without where it lies, or the stem of a path.

    >>> short("/d/rows.npz"), short("emoji-mlt:imbalance=20.5"), short("PACS:root=/d")
    ('rows', 'emoji-mlt:imbalance=20.5', 'PACS')
    """
    if sources.is_name(data):
        return re.sub(r"(?<=[:,])root=[^,]*", "", data).rstrip(":,")
    return Path(data).stem
