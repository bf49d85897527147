"""Weights for the gradients met along a path of gradient steps."""

from __future__ import annotations


def mean_point_weights(steps: int) -> tuple[float, ...]:
    """w_k = 2 (K - k + 1) / (K + 1), k = 1, ..., K: the direction to the mean of a path's points, scaled to sum to K.

    With theta_k = theta_{k-1} - a g_k, mean_k theta_k - theta_0 = -a sum_k ((K - k + 1) / K) g_k: the k-th gradient
    moves the K - k + 1 points that follow it.

    >>> mean_point_weights(3), sum(mean_point_weights(5))
    ((1.5, 1.0, 0.5), 5.0)
    """
    return tuple(2 * (steps - k + 1) / (steps + 1) for k in range(1, steps + 1))
