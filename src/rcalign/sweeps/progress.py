"""How far a sweep is, shown while it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

LINE_EVERY = 30.0  # seconds, where there is no terminal to draw in


@dataclass(frozen=True)
class SweepProgress:
    """Numbers of runs; best: the largest validation accuracy so far and whose it is; seconds_left: None if unknown.

    first: what is computed now, once for all runs, before they can train."""

    planned: int
    finished: int
    running: int
    failed: int
    given_up: int
    best: str
    seconds_left: float | None
    first: str = ""

    def __str__(self) -> str:
        """
        >>> str(SweepProgress(10, 4, 2, 1, 0, "ERM 84.0 %", 3660))
        '2 running, 1 failed, best ERM 84.0 %, 1 h 1 min left'
        """
        pieces = [f"{self.running} running", f"{self.failed} failed"]
        pieces += [f"{self.given_up} given up"] if self.given_up else []
        pieces += [f"best {self.best}"] if self.best else []
        pieces += [f"{duration(self.seconds_left)} left"] if self.seconds_left is not None else []
        pieces += [self.first] if self.first else []
        return ", ".join(pieces)


def size_on_disk(count: int) -> str:
    """Bytes in words.

    >>> size_on_disk(3_000), size_on_disk(94_000_000), size_on_disk(17 * 2**30), size_on_disk(5 * 2**40)
    ('0.003 MB', '94 MB', '17.0 GiB', '5,120.0 GiB')
    """
    return f"{count / 1e6:,.3g} MB" if count < 2**29 else f"{count / 2**30:,.1f} GiB"


def duration(seconds: float) -> str:
    """Seconds in words, rounded to what matters.

    >>> duration(42.3), duration(600), duration(7500), duration(200_000)
    ('42 s', '10 min', '2 h 5 min', '2 d 7 h')
    """
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


class Board:
    """A bar in a terminal, a line now and then elsewhere, nothing if not wanted."""

    def __init__(self, name: str, wanted: bool) -> None:
        self.console = Console(stderr=True)
        self._draws = wanted and self.console.is_terminal
        self._prints = wanted and not self.console.is_terminal
        self._name = name
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[progress]}"),
            console=self.console,
            refresh_per_second=2,
            disable=not self._draws,
        )
        self._task = self._bar.add_task(name, total=None, progress="")
        self._printed = 0.0

    def show(self, progress: SweepProgress) -> None:
        self._bar.update(
            self._task, total=progress.planned, completed=progress.finished, progress=str(progress), refresh=False
        )
        if self._prints and time.monotonic() - self._printed > LINE_EVERY:
            self._printed = time.monotonic()
            self.say(f"{self._name}: {progress.finished}/{progress.planned} done, {progress}")

    def say(self, line: str) -> None:
        """A line that stays, above the bar."""
        if self._draws or self._prints:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
