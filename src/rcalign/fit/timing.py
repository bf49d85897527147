"""Time: how much of a budget is left, what steps take, and stopping when it is over."""

from __future__ import annotations

import heapq
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from rcalign.errors import InputError
from rcalign.evaluation.evaluate import BATCH, logits_of
from rcalign.fit.folds import Fold, evaluate_every, read_outcome
from rcalign.store.run_folder import Record, RunFolder
from rcalign.training.callbacks import Callback, RunStart
from rcalign.training.job import Job
from rcalign.training.run import make_model
from rcalign.training.time_limit import TimeLimit

CLOSING = 6.0  # seconds for what follows the last training: calibration, the page, the end of the program
ASK_AGAIN = 3.0  # seconds; who is asked a second time stops at once
LOOK_EVERY = 2.0  # seconds between two looks at how far running folds are
MEASURED_STEPS = (2, 30)  # at least and at most, beside the first one, which takes longer
MEASURED_SECONDS = 1.0  # after which no more are measured


class Clock:
    """How much of the budget is left. budget: seconds. begun: the time.monotonic() from which it counts, or now.

    start: the seconds until this clock was made: what the program took to start. closing: what to keep for its end,
    more on a machine on which it started slowly.
    """

    def __init__(self, budget: float, begun: float | None = None) -> None:
        self.budget = budget
        self._started = time.monotonic() if begun is None else begun
        self.start = self.spent
        self.closing = max(CLOSING, self.start / 2)

    @property
    def spent(self) -> float:
        return time.monotonic() - self._started

    @property
    def left(self) -> float:
        return self.budget - self.spent

    def limit(self, rest: float, fewest: int) -> TimeLimit | None:
        """Ends a training so that ``rest`` seconds are left after it, but not before the fewest steps.

        None without a budget: then nothing is ended.
        """
        return TimeLimit(self._started + self.budget - rest, fewest) if self.budget > 0 else None


def seconds_of(text: str) -> float:
    """A budget in seconds, from text such as "30m", "90s", "1.5h" or "0".

    >>> seconds_of("30m"), seconds_of("90s"), seconds_of("1.5h"), seconds_of("0"), seconds_of("45")
    (1800.0, 90.0, 5400.0, 0.0, 45.0)
    """
    plain = text.strip().lower()
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(plain[-1:])
    number = plain[:-1] if unit is not None else plain
    try:
        value = float(number) * (unit or 1.0)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise InputError(f"the budget is '{text}', but a time such as 30m, 90s, 1h or 0 is expected.")
    return value


def at_once(seconds: Sequence[float], workers: int) -> float:
    """The seconds after which tasks have ended that begin in this order, each as soon as a worker is free.

    >>> at_once([4.0] * 3, 2), at_once([4.0] * 4, 1), at_once([1.0, 1.0, 5.0], 2)
    (8.0, 16.0, 6.0)
    """
    free_at = [0.0] * workers
    for item in seconds:
        heapq.heapreplace(free_at, free_at[0] + item)
    return max(free_at)


def threads_of_fold(workers: int) -> int:
    """The threads of torch with which a fold is trained: one in a process of its own, else as here."""
    return 1 if workers > 1 else torch.get_num_threads()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Inside, torch uses that many threads.

    >>> with torch_threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class StepTimes(Callback):
    """What the steps and the evaluations of a run take.

    steps, evaluations: seconds of one, as often as it was measured. first: how much longer the first steps took, since
    the first training in a process takes longer.
    """

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.evaluations: list[float] = []
        self._at = 0.0
        self._step = 0

    @property
    def first(self) -> float:
        """Seconds by which the first steps were above the median."""
        return max(0.0, self._first - self._first_steps * float(np.median(self.steps))) if self.steps else 0.0

    def on_start(self, run: RunStart) -> None:
        self._at, self._step = time.perf_counter(), 0

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        now = time.perf_counter()
        if step > self._step:
            if not self.steps:
                self._first, self._first_steps = now - self._at, step - self._step
            self.steps.append((now - self._at) / (step - self._step))
        self._at, self._step = now, step

    def on_evaluation(self, record: Record) -> None:
        self.evaluations.append(time.perf_counter() - self._at)
        self._at, self._step = time.perf_counter(), record.step


@dataclass(frozen=True)
class TrainingCosts:
    """Seconds. start: to build the model. row: to predict one row. step: of one training step, on how many rows."""

    start: float
    row: float
    step: float
    rows_in_step: int


def measure_costs(job: Job, enough: Callable[[TrainingCosts], bool] = lambda least: True) -> TrainingCosts | None:
    """What the training of a job takes now, by some steps of a model that is thrown away.

    enough: told what it takes at the very least, as soon as that is known; None if it says no.
    """
    begun = time.monotonic()
    model = make_model(job.task, job.config)
    start = time.monotonic() - begun
    rows = np.concatenate(list(job.task.splits.train.values()))[:BATCH]
    begun = time.monotonic()
    logits_of(model.predict, job.task.inputs.batches(rows), model.spec.num_classes)
    row = (time.monotonic() - begun) / len(rows)
    in_step = model.hparams.batch_size * len(job.task.splits.train)
    if not enough(TrainingCosts(start, row, 2 * row * in_step, in_step)):  # forwards and backwards
        return None
    batches = job.task.batches(model.hparams.batch_size, job.config.seed, model.traits.balanced_sampling)
    fewest, most = MEASURED_STEPS
    times: list[float] = []
    for batch in batches.iterate(0, 1 + most):
        if model.refresh_due():
            model.refresh(*job.task.training_features(model))
        model.step(batch)
        times.append(time.monotonic())
        if len(times) > fewest and times[-1] - times[0] > MEASURED_SECONDS:
            break
    return TrainingCosts(start, row, (times[-1] - times[0]) / (len(times) - 1), in_step)


class Pace:
    """How fast folds are, from the evaluations that they write while they train.

    expected: the seconds that a fold takes, by what was measured first.
    """

    def __init__(self, folds: Sequence[Fold], expected: Callable[[Fold], float]) -> None:
        self._folds, self._expected = folds, expected
        self.steps = folds[0].steps
        self._begun, self._looked = time.time(), time.monotonic()
        self._first: dict[str, tuple[float, int]] = {}  # folder -> when its first evaluation was written, which step

    def look(self) -> tuple[list[float], float] | None:
        """What is expected of the rest of each fold, in seconds, and how many times as long it takes; None if the last
        look was a moment ago."""
        if time.monotonic() < self._looked + LOOK_EVERY:
            return None
        self._looked = time.monotonic()
        left, slow = [], 0.0
        for fold in self._folds:
            if read_outcome(fold) is None:
                expected = self._expected(fold)
                step, per_step = self._seen(fold)
                left.append(expected * (1 - step / fold.steps))
                slow = max(slow, per_step * fold.steps / expected)
        return left, slow

    def _seen(self, fold: Fold) -> tuple[int, float]:
        """The steps that a fold has, and what one takes at least, in seconds, its share of the evaluations included."""
        folder = RunFolder(fold.folder)
        records = folder.records()
        step = records[-1].step if records else 0
        latest = folder.records_file if records else folder.config_file
        written = latest.stat().st_mtime if latest.exists() else 0.0
        if written < self._begun:  # not begun, or by an earlier call
            return step, 0.0
        begun, first = self._first.setdefault(fold.folder, (written, step))
        so_far = (written - begun) / (step - first) if step > first else 0.0
        since = (time.time() - written) / evaluate_every(fold.steps) if step < fold.steps else 0.0
        return step, max(so_far, since)  # the next evaluation is still to come


class interrupt_when:
    """Asks this process to stop, as Ctrl-C would, once a condition holds; only the main thread can be asked."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if threading.current_thread() is threading.main_thread():
            self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            if self._condition():
                signal.raise_signal(signal.SIGINT)
                # again if nothing has come of it: whoever was asked may just have been replaced by another
                self._ended.wait(ASK_AGAIN)

    def __enter__(self) -> None:
        if self._thread is not None:
            self._thread.start()

    def __exit__(self, *exception: object) -> None:
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
