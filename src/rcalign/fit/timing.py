"""Time: how much of a budget is left, what steps take, and stopping when it is over."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from rcalign.errors import InputError
from rcalign.store.run_folder import Record
from rcalign.training.callbacks import Callback, RunStart


class Clock:
    """How much of the budget is left. budget: seconds. begun: the time.monotonic() from which it counts, or now."""

    def __init__(self, budget: float, begun: float | None = None) -> None:
        self.budget = budget
        self._started = time.monotonic() if begun is None else begun

    @property
    def spent(self) -> float:
        return time.monotonic() - self._started

    @property
    def left(self) -> float:
        return self.budget - self.spent


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
    """The seconds after which tasks that begin in this order have ended at the latest (Graham's bound).

    >>> at_once([4.0] * 3, 2), at_once([4.0] * 4, 1)
    (8.0, 16.0)
    """
    return sum(seconds) / workers + (1 - 1 / workers) * max(seconds, default=0.0)


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


ASK_AGAIN = 3.0  # seconds; who is asked a second time stops at once


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
