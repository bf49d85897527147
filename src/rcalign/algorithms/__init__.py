"""The algorithms: one file each, found by being here. Importing this package registers them, in alphabetical order."""

import importlib
import pkgutil

from rcalign.extensions import import_entry_points

for _module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

import_entry_points("rcalign.algorithms")
