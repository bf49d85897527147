"""Where data sets come from. A named source is one function in one file of this folder, registered by its decorator::

    @register_source("emoji-mlt", summary="...")
    def emoji_mlt(*, imbalance: float = 50.0, order: int = 0, progress: bool = False) -> Dataset: ...

Its keyword arguments with a default are the parameters of ``emoji-mlt:imbalance=20,order=3``; ``skip_bad`` and
``progress`` come from the caller.
"""

from __future__ import annotations

import importlib
import pkgutil

from rcalign.data.sources import arrays, benchmark_sources, emoji, folder, hub, manifest, table
from rcalign.data.sources.named import entries, is_name, load, looks_like_name, register_source, source_names
from rcalign.extensions import import_entry_points

__all__ = [
    "arrays",
    "benchmark_sources",
    "emoji",
    "entries",
    "folder",
    "hub",
    "is_name",
    "load",
    "looks_like_name",
    "manifest",
    "register_source",
    "source_names",
    "table",
]

for _module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
import_entry_points("rcalign.data")
