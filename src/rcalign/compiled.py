"""Loops over numbers, compiled by numba: for the work on a CPU that torch would do in many small operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numba
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


def _fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once, in a compiled function: one instruction of processors that have it.

    >>> import numpy as np
    >>> @compiled()
    ... def once(a, b, c):
    ...     return fma(a, b, c)
    >>> tiny = np.float32(2**-12)
    >>> bool(once(1 + tiny, 1 - tiny, np.float32(-1)) == -tiny * tiny)  # rounded twice it would be zero
    True
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, a, a), generate


fma: Any = intrinsic(_fma)
