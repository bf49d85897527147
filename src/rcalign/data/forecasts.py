"""How long what comes before training will take, for whoever listens: ``fit``, for one, has a budget to keep."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

KNOWN_AFTER = 3.0  # seconds of work after which a forecast is worth something, and between two of them


@dataclass(frozen=True)
class Forecast:
    """what: is computed. left: seconds that it still takes. whole: seconds for as many other rows: as long as all of it
    where those would be computed from the beginning, and ``left`` where they share what is done. rows: of the data.

    left and whole are nan before anything of it was measured (``tell_begin``).
    """

    what: str
    left: float
    whole: float
    rows: int


Listener = Callable[[Forecast], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def forecasts_to(listener: Listener) -> Iterator[None]:
    """Inside, forecasts go to ``listener``, which may raise to end the work.

    >>> with forecasts_to(lambda found: print(f"{found.what}: {found.left:.0f} s")):
    ...     tell_time_left(Forecast("features of 900 images", 40.0, 60.0, 900))
    features of 900 images: 40 s
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell_time_left(forecast: Forecast) -> None:
    """Tells who listens, if anyone."""
    listener = _listener.get()
    if listener is not None:
        listener(forecast)


def tell_begin(what: str, rows: int) -> None:
    """Tells who listens that some work begins, before what it needs is loaded, which takes time too."""
    tell_time_left(Forecast(what, math.nan, math.nan, rows))


class ForecastWork:
    """Work that tells after some seconds, and again from time to time, how much longer it takes.

    total: all of the work, in any unit that time is proportional to, where another sample of the rows would be done
    from the beginning; None: see ``advance``. rows: of the data that it is done for.
    """

    def __init__(self, what: str, rows: int, total: float | None = None) -> None:
        self._what, self._rows, self._total = what, rows, total
        self._done = 0.0
        self._begun = self._told = time.monotonic()

    def advance(self, amount: float, left: float) -> None:
        """So much was done just now, and so much is left: also of another sample of the rows, if there is no total."""
        self._done += amount
        now = time.monotonic()
        if now > self._told + KNOWN_AFTER:
            self._told = now
            per_unit = (now - self._begun) / self._done
            whole = left if self._total is None else self._total
            tell_time_left(Forecast(self._what, per_unit * left, per_unit * whole, self._rows))
