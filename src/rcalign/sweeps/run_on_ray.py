"""Runs a sweep on Ray: on this machine, or on a cluster by its address.

The driver hands out runs, one Ray task each, and keeps no state of its own: everything is in the sweep's folder, so it
may be killed at any instant and started again. A worker process is used for run after run and loads a data set once.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from rcalign.errors import InputError
from rcalign.interrupts import asked_to_stop
from rcalign.models import features
from rcalign.store.run_folder import RunFolder
from rcalign.store.sweep_folder import PlanEntry, SweepFolder, describe_entry
from rcalign.sweeps.address import last_line
from rcalign.sweeps.one_run import (
    ATTEMPTS,
    LAST_LINES,
    NO_ROOM,
    last_known,
    no_room,
    outcome_of,
    repeats_now,
    train_entry,
)
from rcalign.sweeps.plan import PlannedRun, Sweep, hopeless
from rcalign.sweeps.progress import Board, SweepProgress
from rcalign.sweeps.resources import Resources

POLL = 0.5  # seconds between two polls of Ray
CHECK_EVERY = 2.0  # seconds between two checks of the folders of runs
STOP_WITHIN = 30.0  # seconds for runs to save their state
OBJECT_STORE = 100 * 2**20  # bytes: results are small


def execute(
    sweep: Sweep,
    runs: Sequence[PlannedRun],
    folder: SweepFolder,
    resources: Resources,
    *,
    retry_failed: bool = False,
    progress: bool = False,
) -> str | None:
    """Trains what is not trained yet. Returns None, or in a sentence why it stopped before the end."""
    with folder.driving():
        search = list(runs)
        entries = [sweep.entry(run) for run in [*search, *repeats_now(sweep, search, folder)]]
        folder.begin(sweep.name, sweep.seed_rule, entries)
        if retry_failed:
            for run in folder.failures():
                folder.clear_failure(run)
        with Board(sweep.name, progress) as board:
            driver = _Driver(sweep, search, folder, resources, board)
            if not driver.plan_more():
                return None
            board.show(driver.progress())
            with connected(resources), asked_to_stop() as stopped:
                return driver.drive(stopped)


# --- the driver ----------------------------------------------------------------------------------------------------


@dataclass
class _InFlight:
    """A run that was submitted to Ray.

    last_heartbeat: when it last wrote a file; heartbeat_seen: when that was noticed, by this machine's clock.
    stop_cause: why it was told to stop ("hung", "hopeless"), if it was.
    """

    entry: PlanEntry
    last_heartbeat: float = -1.0
    heartbeat_seen: float = 0.0
    stop_cause: str = ""


class _Driver:
    def __init__(
        self,
        sweep: Sweep,
        search: Sequence[PlannedRun],
        folder: SweepFolder,
        resources: Resources,
        board: Board,
    ) -> None:
        self.sweep, self.search, self.folder = sweep, list(search), folder
        self.resources, self.board = resources, board
        self.entries: dict[str, PlanEntry] = {}
        self.queue: deque[PlanEntry] = deque()
        self.in_flight: dict[Any, _InFlight] = {}
        self.attempts: Counter[str] = Counter()
        self.failed = set(folder.failures())
        if sweep.early_stopping is None:  # what an earlier plan gave up goes on
            for run in folder.given_up():
                folder.mark_resumed(run)
        self.given_up = folder.given_up()
        self.validation: dict[str, float] = {}
        self.seconds: list[float] = []
        for run in folder.finished():
            result = folder.run(run).result()
            assert result is not None
            self.validation[run] = result.validation
            self.seconds.append(result.seconds)
        self.failed -= self.validation.keys()
        self.given_up -= self.validation.keys()
        self.slots = self.fit = 1
        self.running = 0  # at the last check; where a run ended since, Ray has begun another
        self.curves: dict[str, list[tuple[int, float]]] = {}
        self.stop_reason: str | None = None
        self._checked_at = self._counted = -1e9

    def plan_more(self) -> bool:
        """Queues what is planned and neither done nor failed: the search, then the repetitions of its winners."""
        again = repeats_now(self.sweep, self.search, self.folder)
        over = self.validation.keys() | self.failed | self.given_up
        for entry in (self.sweep.entry(run) for run in [*self.search, *again]):
            if entry["id"] not in self.entries:
                self.entries[entry["id"]] = entry
                if entry["id"] not in over:
                    self.queue.append(entry)
        return bool(self.queue)

    def drive(self, stopped: threading.Event) -> str | None:
        work = ray.remote(_work).options(
            num_cpus=self.resources.cpus_per_run, num_gpus=self.resources.gpus_per_run, max_retries=0
        )
        device = "auto" if self.resources.gpus_per_run > 0 else "cpu"
        try:
            while self.queue or self.in_flight:
                self._count_slots()
                while self.queue and len(self.in_flight) < self._at_once():
                    entry = self.queue.popleft()
                    ref = work.remote(dict(entry), str(self.folder.path.resolve()), self.resources, device)
                    self.in_flight[ref] = _InFlight(entry)
                self._collect(POLL)
                self._check_runs()
                self.board.show(self.progress())
                if stopped.is_set():
                    self.stop_reason = "stopped"
                if self.stop_reason is not None:
                    break
                if not self.queue and not self.in_flight and self.plan_more():
                    self.folder.write_plan(self.sweep.name, self.sweep.seed_rule, list(self.entries.values()))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.stop_reason = no_room(error)
        except RayError as error:
            self.in_flight.clear()
            self.stop_reason = f"the connection to Ray was lost ({last_line(str(error))})"
        finally:
            self._stop_all()
        self.board.show(self.progress())
        return self.stop_reason

    def _at_once(self) -> int:
        """How many runs to keep submitted: twice what runs at once, so that a free slot never waits for the driver.

        Only as many as run at once where Ray itself would run more than ``workers`` of them.
        """
        limits = self.resources
        ray_keeps_the_limit = limits.workers is None or (limits.address is None and self.slots == self.fit)
        return 2 * self.slots if ray_keeps_the_limit else self.slots

    def progress(self) -> SweepProgress:
        known = [run for run in self.entries if run in self.validation]
        best = max(known, key=lambda run: self.validation[run], default=None)
        leader = "" if best is None else f"{self.entries[best]['label']} {100 * self.validation[best]:.1f} % validation"
        left = len(self.queue) + len(self.in_flight)
        mean = sum(self.seconds) / len(self.seconds) if self.seconds else None
        return SweepProgress(
            planned=len(self.entries),
            finished=len(known),
            running=min(self.running, len(self.in_flight)),
            failed=len(self.failed & self.entries.keys()),
            given_up=len(self.given_up & self.entries.keys()),
            best=leader,
            seconds_left=None if mean is None else mean * left / self.slots,
            first="; ".join(map(str, features.underway())) if self.in_flight else "",
        )

    def _count_slots(self) -> None:
        """How many runs fit; a cluster may grow."""
        if time.monotonic() - self._counted < 10:
            return
        self._counted = time.monotonic()
        self.fit = fit = sum(_fitting(node["Resources"], self.resources) for node in ray.nodes() if node["Alive"])
        if fit == 0 and self._checked_at < 0:
            self.board.say("no node of the cluster has room for a run yet: waiting for one")
        self.slots = max(1, min(fit, self.resources.workers or fit))

    def _collect(self, wait: float) -> None:
        if not self.in_flight:
            return
        ready, _ = ray.wait(list(self.in_flight), num_returns=1, timeout=wait)
        if ready:
            ready, _ = ray.wait(list(self.in_flight), num_returns=len(self.in_flight), timeout=0)
        for ref in ready:
            task = self.in_flight.pop(ref)
            self._settle(task, _outcome(ref))

    def _settle(self, task: _InFlight, outcome: Mapping[str, Any]) -> None:
        """What became of a run goes into the folder."""
        run, end = task.entry["id"], outcome["end"]
        if end == "finished":
            self.folder.clear_failure(run)
            self.validation[run] = outcome["validation"]
            self.seconds.append(outcome["seconds"])
        elif end == "no room":
            self.stop_reason = outcome["error"]
            self.queue.appendleft(task.entry)
        elif task.stop_cause == "hopeless":
            records = self.folder.run(run).records()
            best = max((record.validation for record in records), default=0.0)
            self.folder.give_up(run, records[-1].step if records else 0, best)
            self.given_up.add(run)
        elif task.stop_cause == "hung":
            quiet = f"it wrote nothing for {self.resources.stalled_after:g} seconds and was stopped"
            self._fail(task.entry, "hung", quiet, [quiet, last_known(self.folder.run(run))])
        elif end == "failed":
            self._fail(task.entry, outcome["kind"], outcome["error"], outcome["last_lines"])
        elif end == "died":
            self.attempts[run] += 1
            if self.attempts[run] < ATTEMPTS:
                self.board.say(f"the process of {describe_entry(task.entry)} died: it goes on from its last checkpoint")
                self.queue.appendleft(task.entry)
            else:
                error = f"its process died {ATTEMPTS} times (out of memory?)"
                self._fail(task.entry, "died", error, [*outcome["last_lines"], last_known(self.folder.run(run))])
        else:  # interrupted, not by us: it has not had its turn yet
            self.queue.appendleft(task.entry)

    def _fail(self, entry: PlanEntry, kind: str, error: str, last_lines: Sequence[str]) -> None:
        self.folder.fail(entry["id"], kind, error, last_lines)
        self.failed.add(entry["id"])
        self.board.say(f"failed: {describe_entry(entry)}: {error}")

    def _check_runs(self) -> None:
        """Stops runs that hang, and draws that early stopping gives up."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_EVERY:
            return
        self._checked_at = now
        running = self.folder.running()
        self.running = sum(task.entry["id"] in running for task in self.in_flight.values())
        for ref, task in self.in_flight.items():
            run = task.entry["id"]
            if run not in running or task.stop_cause:
                continue
            heartbeat = self.folder.last_heartbeat(run)
            if heartbeat != task.last_heartbeat:
                task.last_heartbeat, task.heartbeat_seen = heartbeat, now
            if now - task.heartbeat_seen > self.resources.stalled_after:
                task.stop_cause = "hung"
                _kill(ref, running[run])
            elif self.sweep.early_stopping is not None and self._hopeless(task.entry):
                task.stop_cause = "hopeless"
                ray.cancel(ref)

    def _hopeless(self, entry: PlanEntry) -> bool:
        assert self.sweep.early_stopping is not None
        names = ("data", "label", "test_domains", "seed")
        peers = [
            run
            for run in self.validation.keys() & self.entries.keys()
            if all(self.entries[run][name] == entry[name] for name in names)
        ]
        for run in peers:
            if run not in self.curves:
                self.curves[run] = _curve(self.folder.run(run))
        curve = _curve(self.folder.run(entry["id"]))
        return hopeless(self.sweep.early_stopping, curve, [self.curves[run] for run in peers])

    def _stop_all(self) -> None:
        """Tells every run to save its state and end, and waits for them."""
        self.queue.clear()
        for ref in self.in_flight:
            ray.cancel(ref)
        until = time.monotonic() + STOP_WITHIN
        while self.in_flight and time.monotonic() < until:
            ready, _ = ray.wait(list(self.in_flight), num_returns=1, timeout=POLL)
            for ref in ready:
                task = self.in_flight.pop(ref)
                outcome = _outcome(ref)
                if outcome["end"] == "finished":
                    self._settle(task, outcome)
        for ref in self.in_flight:
            ray.cancel(ref, force=True)


def _curve(run: RunFolder) -> list[tuple[int, float]]:
    return [(record.step, record.validation) for record in run.records()]


def _kill(ref: Any, process: Mapping[str, Any]) -> None:
    """Ends a process that does not answer; here the kernel does it, elsewhere only Ray can."""
    if process.get("host") == socket.gethostname():
        with suppress(ProcessLookupError):
            os.kill(process["pid"], signal.SIGKILL)
    else:
        ray.cancel(ref, force=True)


def _outcome(ref: Any) -> Mapping[str, Any]:
    try:
        return ray.get(ref)
    except TaskCancelledError:
        return {"end": "interrupted"}
    except RayTaskError as error:
        lines = re.sub("\x1b\\[[0-9;]*m", "", str(error)).strip().splitlines()  # without colours
        return {"end": "failed", "kind": "error", "error": lines[-1], "last_lines": lines[-LAST_LINES:]}
    except RayError as error:
        return {"end": "died", "last_lines": str(error).strip().splitlines()[-LAST_LINES:]}


# --- any tasks -------------------------------------------------------------------------------------------------------


def run_tasks(
    function: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    workers: int,
    on_end: Callable[[int, Any], None],
    out_of_time: Callable[[], bool],
    may_begin: Callable[[int], bool] = lambda position: True,
) -> bool:
    """Calls a function with each tuple of arguments, ``workers`` at a time on this machine, in the order given.

    on_end: gets the position and what was returned, as each task ends; None for one whose process died or that was
    stopped. out_of_time: asked now and then; once it says so, what runs is asked to stop, is ended if it does not, and
    nothing more begins. may_begin: asked for each position when it is its turn; a task that may not begin is left out.
    Returns whether the turn of every task came.
    """
    waiting = deque(enumerate(tasks))
    flying: dict[Any, int] = {}
    with connected(Resources(workers=workers)), asked_to_stop() as stopped:
        work = ray.remote(_call).options(num_cpus=1, max_retries=0)
        given = ray.put(function)
        while waiting or flying:
            while waiting and len(flying) < workers:
                position, arguments = waiting.popleft()
                if may_begin(position):
                    flying[work.remote(given, arguments)] = position
            if not flying:
                break
            ready, _ = ray.wait(list(flying), num_returns=1, timeout=POLL)
            for ref in ready:
                on_end(flying.pop(ref), _returned(ref))
            if stopped.is_set() or out_of_time():
                for ref in flying:
                    ray.cancel(ref)
                until = time.monotonic() + STOP_WITHIN / 6
                while flying and time.monotonic() < until:
                    ready, _ = ray.wait(list(flying), num_returns=1, timeout=POLL)
                    for ref in ready:
                        on_end(flying.pop(ref), _returned(ref))
                for ref in flying:
                    ray.cancel(ref, force=True)
                if stopped.is_set():
                    raise KeyboardInterrupt
                return not waiting
    return True


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    torch.set_num_threads(1)
    return function(*arguments)


def _returned(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except RayError:
        return None


# --- in a worker process -------------------------------------------------------------------------------------------


def _work(entry: PlanEntry, path: str, resources: Resources, device: str) -> dict[str, Any]:
    """One run, in a process that lives on."""
    outcome = _attempt(entry, path, resources, device)
    if outcome["end"] != "finished":
        gc.collect()  # a traceback may keep the run's files, and its lock, open
    return outcome


def _attempt(entry: PlanEntry, path: str, resources: Resources, device: str) -> dict[str, Any]:
    """Trains one run in its folder, from its checkpoint if there is one. What went wrong is returned, not raised."""
    folder = SweepFolder(path)
    torch.set_num_threads(resources.cpus_per_run)

    def train() -> dict[str, Any]:
        if not folder.plan_file.exists():
            raise InputError(
                f"the sweep's folder '{path}' cannot be seen on {socket.gethostname()}: give an `out` that all nodes "
                "of the cluster share."
            )
        with folder.training(entry["id"]):
            return train_entry(entry, folder, device)

    return outcome_of(train)


# --- Ray -----------------------------------------------------------------------------------------------------------


@contextmanager
def connected(resources: Resources) -> Iterator[None]:
    """Inside, Ray runs on this machine or is connected to the cluster."""
    if ray.is_initialized():  # by the program that calls us: then it is not ours to end
        yield
        return
    start: dict[str, Any] = {"address": resources.address}
    if resources.address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own 15 lets a sweep stand still beside other work
        start = {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        if resources.workers is not None:  # else Ray counts the cores, also in a container
            start["num_cpus"] = resources.workers * resources.cpus_per_run
    try:
        ray.init(**start, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise InputError(
            f"Ray does not start ({last_line(str(error))}): correct that, or train without Ray (`join`)."
        ) from error
    try:
        if resources.address is None:
            _check_fit(resources)
        yield
    finally:
        ray.shutdown()


def _check_fit(resources: Resources) -> None:
    """On one machine, what does not fit will never fit."""
    has = ray.cluster_resources()
    if _fitting(has, resources) == 0:
        raise InputError(
            f"a run asks for {resources.cpus_per_run} cores and {resources.gpus_per_run:g} GPUs, but here are "
            f"{has.get('CPU', 0):g} and {has.get('GPU', 0):g}: ask for less."
        )


def _fitting(has: Mapping[str, float], resources: Resources) -> int:
    """How many runs a node takes at once.

    >>> _fitting({"CPU": 8.0, "GPU": 1.0}, Resources(cpus_per_run=2, gpus_per_run=0.5))
    2
    """
    by_cpu = int(has.get("CPU", 0) // resources.cpus_per_run)
    return min(by_cpu, int(has.get("GPU", 0) / resources.gpus_per_run)) if resources.gpus_per_run > 0 else by_cpu
