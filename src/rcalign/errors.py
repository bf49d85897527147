"""What goes wrong on the user's side, said in one sentence: what was found, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Wrong input. The command line prints it without a traceback and exits with code 2."""


class DivergedError(RuntimeError):
    """Training produced a loss that is not a number. The command line treats it like an InputError."""


def unknown(kind: str, given: str, known: Iterable[str], hint: str = "") -> InputError:
    """The error for a name that does not exist, with the nearest name that does.

    >>> str(unknown("algorithm", "EMR", ["ERM", "RC-Align"]))
    "unknown algorithm 'EMR': did you mean 'ERM'? Known: ERM, RC-Align."
    """
    known = sorted(known)
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), by_lower, n=1, cutoff=0.4)
    guess = f" did you mean '{by_lower[near[0]]}'?" if near else ""
    listed = f" Known: {', '.join(known) or 'none'}." if len(known) <= 60 else ""  # nobody reads a longer list
    return InputError(f"unknown {kind} '{given}':{guess}{listed}{' ' + hint if hint else ''}")
