"""A look at the network one gradient step ahead, without copying it.

The adapted parameters are written into one preallocated buffer and the network is called with them
(``torch.func.functional_call``), so there is nothing to restore.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class LookAhead:
    """theta' = theta - rate * direction for a module, and calls of the module at theta'.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(net.weight, 2.0)
    >>> net(torch.ones(1, 1)).sum().backward()      # gradient 1
    >>> ahead = LookAhead(net)
    >>> ahead.move(rate=0.5)
    >>> ahead(torch.ones(1, 1)).item(), net.weight.item()
    (1.5, 2.0)
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._parameters: dict[str, nn.Parameter] = {}
        self._ahead: dict[str, Tensor] = {}
        self._buffers: dict[str, Tensor] = {}

    @torch.no_grad()
    def move(self, rate: float, direction: Sequence[Tensor] | None = None, *, accumulate: bool = True) -> None:
        """Sets theta' from the parameters' ``.grad`` (or the given direction).

        accumulate: a later backward at theta' adds to the parameters' own ``.grad`` (first-order sum of both
        gradients); otherwise it starts from zero and ``take_gradients`` hands it over.
        """
        trainable = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if {name: id(p) for name, p in trainable.items()} != {name: id(p) for name, p in self._parameters.items()}:
            self._parameters = trainable
            self._ahead = {name: torch.empty_like(p, requires_grad=True) for name, p in trainable.items()}
        sources = list(self._parameters.values())
        if direction is None:
            for p in sources:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
            direction = [p.grad for p in sources]  # type: ignore[misc]
        targets = list(self._ahead.values())
        for target, p, step in zip(targets, sources, direction, strict=True):
            torch.add(p.detach(), step, alpha=-rate, out=target.detach())  # one pass over memory
            target.grad = p.grad if accumulate else None
        # running statistics belong to the first pass: the second one works on throw-away copies
        self._buffers = {}
        for prefix, part in self.module.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training and part.track_running_stats:
                for name, value in part.named_buffers(recurse=False):
                    self._buffers[f"{prefix}.{name}" if prefix else name] = value.clone()

    def __call__(self, *inputs: Any) -> Any:
        """The module at theta'."""
        return torch.func.functional_call(self.module, {**self._ahead, **self._buffers}, inputs)

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """theta', by name: leaves of the graph of the calls above."""
        return self._ahead

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Makes the gradient found at theta' the parameters' own ``.grad``."""
        for name, p in self._parameters.items():
            p.grad = self._ahead[name].grad
