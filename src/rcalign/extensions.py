"""Algorithms, data sets and metrics of other packages: found by their entry points, or imported by name.

An installed package names its modules under the entry points ``rcalign.algorithms``, ``rcalign.data`` or
``rcalign.metrics``; they are imported with ours. A module that is not installed is named by ``--import`` (the option
``imports`` of a run) and looked for in the current folder too. Importing a module registers what is in it.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterable
from importlib import metadata

from rcalign.errors import InputError


def import_entry_points(group: str) -> None:
    """Imports what installed packages offer under a group. One that fails is left out, with a warning."""
    for point in metadata.entry_points(group=group):
        try:
            point.load()
        except Exception as error:  # another package's fault must not stop this one
            why = f"{type(error).__name__}: {error}"
            warnings.warn(f"'{point.value}' ({group}) cannot be imported ({why}): it is left out.", stacklevel=2)


def import_modules(names: Iterable[str]) -> None:
    """Imports modules by name, from the current folder too.

    >>> import_modules(["json"])
    >>> import_modules(["no_such_module"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    rcalign.errors.InputError: there is no module 'no_such_module' to import: ...
    """
    for name in names:
        if name.endswith(".py") or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
            likely = os.path.basename(name).removesuffix(".py")
            raise InputError(f"'{name}' is not the name of a module: give its dotted name, such as '{likely}'.")
        if name in sys.modules:
            continue
        here = os.getcwd()
        if here not in sys.path and "" not in sys.path:
            sys.path.append(here)  # last: a file here hides no installed package
        importlib.invalidate_caches()
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise InputError(
                f"there is no module '{name}' to import: run from the folder that holds it, install it, or put its "
                "folder on PYTHONPATH."
            ) from None
