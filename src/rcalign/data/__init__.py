"""Data: what a data set is, where it comes from, how it is split, decoded, augmented and drawn in batches.

What is here is imported when it is first used: looking at lists of data should not take the seconds of importing torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_FROM = {
    "Augmentation": "rcalign.data.augment",
    "Batches": "rcalign.data.batches",
    "evaluation_batches": "rcalign.data.batches",
    "ImageStore": "rcalign.data.cache",
    "open_images": "rcalign.data.cache",
    "Arrays": "rcalign.data.source",
    "Dataset": "rcalign.data.source",
    "ImageArray": "rcalign.data.source",
    "Images": "rcalign.data.source",
    "describe": "rcalign.data.source",
    "load": "rcalign.data.loading",
    "Splits": "rcalign.data.splits",
    "split": "rcalign.data.splits",
}
__all__ = sorted(_FROM)


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module 'rcalign.data' has no attribute '{name}'")
    return getattr(importlib.import_module(_FROM[name]), name)
