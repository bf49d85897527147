"""Loops over numbers, compiled by numba: for the work on a CPU that torch would do in many small operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numba
from numba import types
from numba.extending import intrinsic

# sums may be taken in any order, and a product and a sum rounded once: what makes loops over numbers quick. Numbers
# that are not numbers, infinities and signed zeros stay what they are.
ANY_ORDER = ("reassoc", "contract")


def compiled(relaxed: Iterable[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """Decorates a function of numpy arrays and numbers, to be compiled at its first call.

    relaxed: what the compiler may do beyond the letter of the code, such as ``ANY_ORDER``; without it every operation
    is made as written, to the bit. The machine code is kept beside the module, or in the user's cache folder where that
    cannot be written, so that the next process only loads it; where neither can, every process compiles anew. Other
    threads run meanwhile.

    >>> import numpy as np
    >>> @compiled()
    ... def total(values):
    ...     found = 0.0
    ...     for value in values:
    ...         found += value
    ...     return found
    >>> total(np.array([1.0, 2.0]))
    3.0
    """

    def decorate(function: Callable[..., Any]) -> Any:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(relaxed)}
        try:
            return numba.njit(function, cache=True, **options)
        except RuntimeError:  # no folder for the machine code
            return numba.njit(function, **options)

    return decorate


def instructions(write: Callable[..., Any]) -> Any:
    """Decorates a function that writes instructions of LLVM, to become one of three float32 numbers with a float32, for
    use in compiled functions."""

    def typed(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
        signature = types.float32(types.float32, types.float32, types.float32)
        return signature, lambda context, builder, signature, arguments: write(builder, *arguments)

    return intrinsic(typed)


@instructions
def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once: one instruction of processors that have it."""
    return builder.fma(a, b, c)
