"""When a training must end whether or not all its steps were made: a budget of time is kept by it."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class TimeLimit:
    """Ends a training after a step. until: the time.monotonic() from which on. fewest: steps that are made anyway.

    The weights are those of the last step, or the best of the evaluations that there were. The run keeps its state
    beside its result, and goes on from there if it is trained again with a later limit.

    >>> late = TimeLimit(time.monotonic() - 1, fewest=10)
    >>> late.reached(9), late.reached(10)
    (False, True)
    """

    until: float
    fewest: int = 1

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def reached(self, step: int) -> bool:
        """Whether the training ends after this step (the first is 1)."""
        return step >= self.fewest and self.is_over

    def first_half(self) -> TimeLimit:
        """The limit of the first of two stages: half of the time from now."""
        now = time.monotonic()
        return TimeLimit(now + max(0.0, self.until - now) / 2, self.fewest)
