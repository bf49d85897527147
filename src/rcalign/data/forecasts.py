"""How long what comes before training will take, for whoever listens: ``fit``, for one, has a budget to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, float], None]
KNOWN_AFTER = 3.0  # seconds of work after which a forecast is worth something

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def forecasts_to(listener: Listener) -> Iterator[None]:
    """Inside, forecasts go to ``listener(what, seconds)``: what is computed, and how much longer it takes.

    >>> with forecasts_to(lambda what, seconds: print(f"{what}: {seconds:.0f} s")):
    ...     tell_time_left("features of 900 images", 40.0)
    features of 900 images: 40 s
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell_time_left(what: str, seconds: float) -> None:
    """Tells who listens, if anyone, that something takes that many seconds more."""
    listener = _listener.get()
    if listener is not None:
        listener(what, seconds)
