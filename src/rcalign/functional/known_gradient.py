"""Numbers that were computed together with their gradient, outside of autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _KnownGradient(torch.autograd.Function):
    """A number of which the gradient with respect to one tensor is known."""

    @staticmethod
    def forward(ctx: Any, of: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return upstream * gradient, None, None


def with_gradient(of: Tensor, value: float, gradient: np.ndarray) -> Tensor:
    """The value as a tensor () on a CPU, in single precision, whose gradient with respect to ``of`` is the given one.

    >>> x = torch.tensor([2.0], requires_grad=True)
    >>> (3 * with_gradient(x, 4.0, np.array([5.0], np.float32))).backward()
    >>> x.grad
    tensor([15.])
    """
    return _KnownGradient.apply(of, torch.tensor(value, dtype=torch.float32), torch.from_numpy(gradient).to(of.dtype))


def for_loops(values: Tensor) -> bool:
    """Whether compiled loops take these values: in single precision, and on a CPU.

    >>> for_loops(torch.zeros(2)), for_loops(torch.zeros(2, dtype=torch.float64))
    (True, False)
    """
    return values.dtype == torch.float32 and values.device.type == "cpu"


def numbers(values: Tensor) -> np.ndarray:
    """The values as a contiguous array: the same memory where that is possible, single precision for half.

    >>> numbers(torch.ones(2, dtype=torch.bfloat16)).dtype
    dtype('float32')
    """
    plain = values.detach() if values.requires_grad else values
    plain = plain if plain.is_contiguous() else plain.contiguous()
    return (plain.float() if plain.dtype in (torch.bfloat16, torch.float16) else plain).numpy()
