"""rcalign: classifiers for domains they have never seen.

The functions of ``rcalign.api`` are here too, and the modules ``rcalign.api`` and ``rcalign.estimator``, loaded when
first used: torch takes seconds to import.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
_FROM_API = (
    "data_info",
    "diagnose",
    "evaluate",
    "export",
    "leave_one_out",
    "load",
    "predict",
    "push",
    "report",
    "sweep",
    "sweep_status",
    "train",
)
_MODULES = ("api", "estimator")
_FROM_ESTIMATOR = ("DomainClassifier", "DomainStratifiedShuffleSplit", "LeaveOneDomainOut")
__all__ = ["__version__", *_FROM_API, *_FROM_ESTIMATOR]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"rcalign.{name}")
    if name in _FROM_API:
        from rcalign import api

        return getattr(api, name)
    if name in _FROM_ESTIMATOR:
        from rcalign import estimator

        return getattr(estimator, name)
    raise AttributeError(f"module 'rcalign' has no attribute '{name}'")
