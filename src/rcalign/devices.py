"""Where tensors are computed."""

from __future__ import annotations

import ctypes
import sys

import torch

from rcalign.errors import InputError, unknown


def resolve_device(name: str) -> str:
    """ "auto" is cuda, else mps, else cpu; a device that is not there is an error.

    >>> resolve_device("cpu")
    'cpu'
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return next(kind for kind, here in available.items() if here)
    kind, _, number = name.partition(":")
    if kind not in available:
        raise unknown("device", name, ("auto", *available))
    if not available[kind]:
        raise InputError(f"device '{name}' is not available on this machine: use `device=auto` or `device=cpu`.")
    if number and not (number.isdecimal() and int(number) < _count(kind)):
        raise InputError(
            f"device '{name}' is not available on this machine, which has {_count(kind)} of {kind}: leave the number "
            f"out, or choose one from 0 to {_count(kind) - 1}."
        )
    return name


def _count(kind: str) -> int:
    return torch.cuda.device_count() if kind == "cuda" else 1


def keep_freed_memory() -> bool:
    """Makes glibc keep freed blocks for this process, and returns whether it does.

    Otherwise it gives blocks above 32 MB back to the system and asks for them again in every step of training on
    images, which costs a page fault for each 4 KB (see docs/architecture.md for what that takes).
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "mallopt"):
        return False
    trim_threshold, mmap_max = -1, -4
    return bool(library.mallopt(mmap_max, 0) and library.mallopt(trim_threshold, 2**31 - 1))
