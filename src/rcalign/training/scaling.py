"""Training in half precision (fp16): gradients inside the network are scaled up, so that small ones do not vanish.

The gradient that enters the network from above is multiplied by a scale S, and the gradients of its parameters, which
are kept in single precision, are divided by it again. Everything outside the network, and so every algorithm, sees true
gradients, and features in single precision. Where a gradient overflows, the update is left out and S is halved; after
``PATIENCE`` updates without that S is doubled.

Paper: Micikevicius et al., Mixed Precision Training (2018). Departure: the scale surrounds the network, not the loss,
so that methods which take gradients themselves need not know of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

START, SMALLEST, LARGEST = 2.0**14, 1.0, 2.0**24
PATIENCE = 1000


class _Multiplied(torch.autograd.Function):
    """The same values, their gradients times a factor."""

    @staticmethod
    def forward(ctx: Any, factor: float, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.factor = factor
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, *(None if g is None else ctx.factor * g for g in gradients))


class GradientScale:
    """The scale S of a run and the optimizers whose updates it guards.

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> scale = GradientScale([torch.optim.SGD([weight], lr=0.1)])
    >>> (inside,) = scale.entering([weight])
    >>> scale.leaving(2 * inside).sum().backward()
    >>> weight.grad.item(), scale.value
    (2.0, 16384.0)
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self.value = START
        self._good = 0
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._guard)

    def entering(self, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The parameters as the network uses them."""
        return _Multiplied.apply(1 / self.value, *parameters) if parameters else ()

    def leaving(self, output: Tensor) -> Tensor:
        """What the network returns, in single precision: its gradient must not vanish before it is scaled."""
        (result,) = _Multiplied.apply(self.value, output.to(torch.promote_types(output.dtype, torch.float32)))
        return result

    def _guard(self, optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
        """Before an update: leaves it out where a gradient is not finite, and adapts the scale."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        # one number is read from the device, not one for each parameter
        if not gradients or bool(torch.isfinite(torch.stack(torch._foreach_norm(gradients))).all()):
            self._good += 1
            if self._good >= PATIENCE:
                self.value, self._good = min(2 * self.value, LARGEST), 0
            return
        self.value, self._good = max(self.value / 2, SMALLEST), 0
        optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, float]:
        return {"value": self.value, "good": self._good}

    def load(self, state: dict[str, float]) -> None:
        self.value, self._good = float(state["value"]), int(state["good"])
