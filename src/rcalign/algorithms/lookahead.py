"""A look at the network one step ahead, of plain gradient descent or of its own optimizer, without copying it.

The adapted parameters are written into one preallocated buffer and the network is called with them
(``torch.func.functional_call``), so there is nothing to restore.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

BLOCK = 2**16  # numbers that are worked on at a time, so that all of an optimizer's passes find them in the CPU's cache


class LookAhead:
    """theta' = theta - rate * direction, or theta after a step of its optimizer, and calls of the module at theta'.

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
        self._prepare()
        steps = [p.grad for p in self._parameters.values()] if direction is None else direction
        for target, p, step in zip(self._ahead.values(), self._parameters.values(), steps, strict=True):
            assert step is not None
            torch.add(p.detach(), step, alpha=-rate, out=target.detach())  # one pass over memory
        self._finish(accumulate)

    @torch.no_grad()
    def move_by(self, optimizer: torch.optim.Optimizer, *, accumulate: bool = True) -> None:
        """Sets theta' to what the optimizer's next step with the parameters' ``.grad`` would make of them.

        The optimizer (Adam, or SGD without momentum) and its state stay as they are, so that the step that follows is
        its first and only one. A parameter that it does not train stays in place.

        >>> net = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(net.weight, 2.0)
        >>> optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        >>> net(torch.ones(1, 1)).sum().backward()
        >>> ahead = LookAhead(net)
        >>> ahead.move_by(optimizer)
        >>> optimizer.step()
        >>> bool(ahead(torch.ones(1, 1)) == net.weight)
        True
        """
        self._prepare()
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        for target, p in zip(self._ahead.values(), self._parameters.values(), strict=True):
            if id(p) in groups:
                _stepped(p, optimizer, groups[id(p)], out=target.detach())
            else:
                target.detach().copy_(p)
        self._finish(accumulate)

    def _prepare(self) -> None:
        """Makes the buffer for theta', and a gradient of zero where a parameter has none."""
        trainable = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if {name: id(p) for name, p in trainable.items()} != {name: id(p) for name, p in self._parameters.items()}:
            self._parameters = trainable
            self._ahead = {name: torch.empty_like(p, requires_grad=True) for name, p in trainable.items()}
        for p in self._parameters.values():
            if p.grad is None:
                p.grad = torch.zeros_like(p)

    def _finish(self, accumulate: bool) -> None:
        """Where gradients at theta' go, and copies of the running statistics."""
        for target, p in zip(self._ahead.values(), self._parameters.values(), strict=True):
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


def _stepped(parameter: nn.Parameter, optimizer: torch.optim.Optimizer, group: Mapping[str, Any], out: Tensor) -> None:
    """Writes to ``out`` what a step of the optimizer makes of a parameter; changes nothing else."""
    p, gradient, decay = parameter.detach(), parameter.grad, group["weight_decay"]
    assert gradient is not None
    if isinstance(optimizer, torch.optim.SGD) and not group["momentum"]:
        torch.add(p, gradient.add(p, alpha=decay), alpha=-group["lr"], out=out)
        return
    if type(optimizer) is not torch.optim.Adam or group["amsgrad"] or group["maximize"]:
        raise NotImplementedError(f"no look-ahead by a step of {type(optimizer).__name__} with these options")
    beta1, beta2 = group["betas"]
    state = optimizer.state.get(parameter)
    time = float(state["step"]) + 1 if state else 1.0
    unbias = (1 - beta2**time) ** 0.5  # m / (sqrt(v) / unbias + eps) = unbias * m / (sqrt(v) + unbias * eps)
    rate = group["lr"] / (1 - beta1**time) * unbias
    rows = max(1, BLOCK * len(p) // max(1, p.numel())) if p.dim() else 1
    for start in range(0, len(p) if p.dim() else 1, rows):
        part: Any = slice(start, start + rows) if p.dim() else ...
        g = gradient[part].add(p[part], alpha=decay) if decay else gradient[part]
        if state:
            m = torch.lerp(state["exp_avg"][part], g, 1 - beta1)
            v = (state["exp_avg_sq"][part] * beta2).addcmul_(g, g, value=1 - beta2)
        else:
            m, v = g * (1 - beta1), (g * g).mul_(1 - beta2)
        torch.addcdiv(p[part], m, v.sqrt_().add_(unbias * group["eps"]), value=-rate, out=out[part])
