"""Steps of optimizers as compiled loops, for parameters on a CPU."""

from __future__ import annotations

import math

import numpy as np

from rcalign.compiled import compiled, fma


def adam_constants(
    step: float, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, decoupled: bool
) -> np.ndarray:
    """What ``adam_ahead`` needs to know of the ``step``-th step (from 1) of Adam, or of AdamW: decoupled."""
    beta1, beta2 = betas
    kept = 1 - lr * weight_decay if decoupled else 1.0
    decay = 0.0 if decoupled else weight_decay
    rate, root = lr / (1 - beta1**step), math.sqrt(1 - beta2**step)
    return np.array([kept, decay, 1 - beta1, beta2, 1 - beta2, root, eps, -rate], np.float32)


@compiled()
def adam_ahead(
    parameter: np.ndarray,
    gradient: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    constants: np.ndarray,
    out: np.ndarray,
) -> None:
    """Writes what a step of Adam makes of a parameter, its moments staying as they are. All (n,), single precision.

    One pass over memory. Rounded where torch's fused step for AVX2 and AVX512 rounds, so that the bits are the same.
    """
    kept, decay, new_first, old_second, new_second, root, eps, rate = constants
    for k in range(len(parameter)):
        slope = fma(parameter[k], decay, gradient[k])
        mean = fma(new_first, slope - first[k], first[k])
        square = fma(new_second * slope, slope, second[k] * old_second)
        out[k] = parameter[k] * kept + rate * mean / (np.sqrt(square) / root + eps)
