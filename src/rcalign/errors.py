"""What goes wrong on the user's side, said in one sentence: what was found, what was expected, what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable


class InputError(ValueError):
    """Wrong input. The command line prints it without a traceback and exits with code 2."""


def in_words_of(message: str, word: Callable[[str], str]) -> str:
    """An error with its `arguments` written as another interface calls them.

    The library writes the name of an argument, or `name=value`, between backticks. The command line and the sweep file
    have other words for it.

    >>> in_words_of("`steps` is 0: leave `protocol=mdlt` out.", lambda name: "--" + name)
    '--steps is 0: leave --protocol mdlt out.'
    """
    return re.sub(r"`(\w+)(?:=([^`]*))?`", lambda found: " ".join(filter(None, (word(found[1]), found[2]))), message)


NEAR = 0.55  # how alike names must be (difflib's ratio) for one to be suggested for the other


class DivergedError(RuntimeError):
    """Training produced a loss that is not a number. The command line treats it like an InputError."""


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The known name that is most like the given one, whatever the case; None if none is near.

    >>> nearest("emr", ["ERM", "RC-Align"]), nearest("berlin", ["windows", "apple"])
    ('ERM', None)
    """
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), by_lower, n=1, cutoff=NEAR)
    return by_lower[near[0]] if near else None


def unknown(kind: str, given: str, known: Iterable[str], hint: str = "") -> InputError:
    """The error for a name that does not exist, with the nearest name that does, if one is near.

    >>> str(unknown("algorithm", "EMR", ["ERM", "RC-Align"]))
    "unknown algorithm 'EMR': did you mean 'ERM'? Known: ERM, RC-Align."
    >>> str(unknown("domain", "berlin", ["windows", "apple"]))
    "unknown domain 'berlin': Known: apple, windows."
    """
    known = sorted(known)
    near = nearest(given, known)
    guess = f" did you mean '{near}'?" if near else ""
    listed = f" Known: {', '.join(known) or 'none'}." if len(known) <= 60 else ""  # nobody reads a longer list
    return InputError(f"unknown {kind} '{given}':{guess}{listed}{' ' + hint if hint else ''}")
