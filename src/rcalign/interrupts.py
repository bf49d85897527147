"""Ctrl-C and SIGTERM as a request to stop at the next good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def asked_to_stop() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets, so that state can be saved; a second Ctrl-C ends at once.

    >>> with asked_to_stop() as asked:
    ...     signal.raise_signal(signal.SIGINT)
    ...     asked.is_set()
    True
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread only
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
