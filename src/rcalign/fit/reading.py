"""Reading data within a budget: all rows if there is time for them, else a sample of each domain and class.

Texts must be embedded and images decoded and put through the backbone before anything can be trained. How long that
takes is known after a few seconds of it (``data.forecasts``). If it would take more than its share of what is left of
the budget, it ends there, and as many rows are read instead as fit. What was read is kept in the cache, so that a call
with more time goes on with all rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from rcalign.data.forecasts import Forecast, forecasts_to
from rcalign.errors import InputError
from rcalign.files import write_whole
from rcalign.fit.timing import Clock
from rcalign.sweeps.progress import duration

READING_SHARE = 0.5  # of what is left of the budget, at most
SPARE = 0.8  # of that, what a sample is planned with
FEWEST_ROWS = 100  # of a sample: fewer say nothing
MORE_ROWS = 1.5  # times as many as an earlier call had, from which a sample is worth reading anew
FILE = "sample.json"

T = TypeVar("T")


@dataclass(frozen=True)
class RowSample:
    """The rows that a budget had room to read. rows: how many. of: all. budget: seconds."""

    rows: int
    of: int
    budget: float

    @property
    def sentence(self) -> str:
        return (
            f"Only {self.rows:,} of {self.of:,} rows are used, of each domain and class its share: the budget of "
            f"{exactly(self.budget)} has no room to read more. All figures are for a model of these rows. The same "
            "command with a larger budget reads more, or all."
        )


class TooLong(Exception):
    """Reading all takes too long. rows: how many may be read. of: how many there are."""

    def __init__(self, rows: int, of: int) -> None:
        super().__init__(f"{rows} of {of} rows")
        self.rows, self.of = rows, of


def exactly(seconds: float) -> str:
    """A time that is compared with another: in seconds if it is short.

    >>> exactly(95.2), exactly(3600.0)
    ('95 s', '1 h 0 min')
    """
    return f"{seconds:.0f} s" if seconds < 600 else duration(seconds)


class ReadingWatch:
    """Listens to forecasts: says the first of each kind, and ends what would take too long by ``TooLong``."""

    def __init__(self, clock: Clock, say: Callable[[str], None]) -> None:
        self._clock, self._say = clock, say
        self._said: set[str] = set()

    def __call__(self, forecast: Forecast) -> None:
        clock = self._clock
        if math.isnan(forecast.whole):
            self._check_begin(forecast.what)
            return
        available = READING_SHARE * max(0.0, clock.left - clock.closing)
        if clock.budget == 0 or forecast.left <= available:
            if forecast.what not in self._said:
                self._said.add(forecast.what)
                self._say(f"Before training: {forecast.what}, about {exactly(forecast.left)}.")
            return
        rows = int(SPARE * available * forecast.rows / forecast.whole)
        if rows < FEWEST_ROWS:
            fewest = min(FEWEST_ROWS, forecast.rows)
            seconds = forecast.whole * fewest / forecast.rows
            least = clock.spent + clock.closing + seconds / (SPARE * READING_SHARE)
            raise InputError(
                f"the budget of {exactly(clock.budget)} does not suffice to read enough rows: {forecast.what}, takes "
                f"about {exactly(forecast.whole)}, and {exactly(seconds)} for {fewest} of {forecast.rows:,} rows. Give "
                f"at least {exactly(least)}, or 0 for no limit."
            )
        raise TooLong(rows, forecast.rows)

    def _check_begin(self, what: str) -> None:
        """Ends work that begins when no time is left, before what it needs is loaded."""
        clock = self._clock
        if clock.budget > 0 and clock.left <= clock.closing:
            least = 2 * (clock.spent + clock.closing)  # as much again to read and to train in
            raise InputError(
                f"the budget of {exactly(clock.budget)} is used up before {what}: the program took "
                f"{exactly(clock.spent)} to start, and {exactly(clock.closing)} are kept for its end. Give at least "
                f"{exactly(least)}, or 0 for no limit."
            )


def read_in_time(
    read: Callable[[int | None], T], clock: Clock, say: Callable[[str], None], out: Path
) -> tuple[T, RowSample | None]:
    """What ``read(rows)`` gives for all rows (None), or else for a ``RowSample`` that there is time for.

    out: the folder of the fit. A sample that an earlier call remembered there is read again if the budget is no larger.
    """
    before = _remembered(out)
    sample = before if before is not None and 0 < clock.budget <= before.budget else None
    while True:
        try:
            with forecasts_to(ReadingWatch(clock, say)):
                found = read(None if sample is None else sample.rows)
            break
        except TooLong as end:
            of = end.of if sample is None else sample.of
            rows = end.rows
            if sample is None and before is not None and before.rows <= rows < MORE_ROWS * before.rows:
                rows = before.rows
            sample = RowSample(rows, of, clock.budget)
            say(f"Reading {rows:,} of {of:,} rows: the budget has no room for more.")
    return found, sample


def remember_sample(out: Path, sample: RowSample | None) -> None:
    """Writes into the folder of a fit which rows it has; None: all."""
    if sample is None:
        (out / FILE).unlink(missing_ok=True)
    else:
        write_whole(out / FILE, json.dumps(asdict(sample)).encode())


def _remembered(out: Path) -> RowSample | None:
    try:
        return RowSample(**json.loads((out / FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None
