"""How far ``fit`` is: a bar in a terminal, a line now and then elsewhere, nothing if not wanted."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

LINE_EVERY = 20.0  # seconds, where there is no terminal to draw in


class Ticker:
    """say: a line that stays. show: what goes on now, and how much of it is done."""

    def __init__(self, wanted: bool) -> None:
        self._console = Console(stderr=True)
        self._wanted = wanted
        self._bar = Progress(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            refresh_per_second=2,
            transient=True,
            disable=not (wanted and self._console.is_terminal),
        )
        self._task: TaskID | None = None
        self._printed = time.monotonic()

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        if self._wanted:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, done: int, planned: int, text: str) -> None:
        """Moves the bar."""
        if self._task is None:
            self._task = self._bar.add_task(text, total=planned)
        self._bar.update(self._task, completed=done, total=planned, description=text)
        if self._wanted and not self._console.is_terminal and time.monotonic() - self._printed > LINE_EVERY:
            self._printed = time.monotonic()
            self.say(f"  {done} of {planned} done: {text}")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()
