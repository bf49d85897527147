"""A look at the network one step ahead, of plain gradient descent or of its own optimizer, without copying it.

The adapted parameters are written into buffers that are kept, and stand in the place of the network's own for as long
as a call takes. The network's modules are walked once, not in every step: on rows of numbers that would show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from rcalign.functional.known_gradient import for_loops

BLOCK = 2**19  # numbers that are worked on at a time: copies of the optimizer's state take 4 MB, whatever the network


class _Place(NamedTuple):
    """Where a module keeps a parameter, and what stands there in a call at theta' (None: the parameter itself)."""

    store: dict[str, Any]
    leaf: str
    parameter: nn.Parameter
    ahead: Tensor | None

    def is_as_before(self) -> bool:
        """Whether the module still has this parameter there, and trains it as before."""
        return self.store.get(self.leaf) is self.parameter and self.parameter.requires_grad == (self.ahead is not None)


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
        self._places: list[_Place] = []  # of all parameters, also those that are not trained
        self._norms: list[nn.modules.batchnorm._BatchNorm] = []
        self._parameters: dict[str, nn.Parameter] = {}
        self._ahead: dict[str, Tensor] = {}
        self._written: list[Tensor] = []  # the memory of ``_ahead``, outside any graph
        self._buffers: list[tuple[dict[str, Any], str, Tensor]] = []  # copies of running statistics, and whose they are

    @torch.no_grad()
    def move(self, rate: float, direction: Sequence[Tensor] | None = None, *, accumulate: bool = True) -> None:
        """Sets theta' from the parameters' ``.grad`` (or the given direction).

        accumulate: a later backward at theta' adds to the parameters' own ``.grad`` (first-order sum of both
        gradients); otherwise it starts from zero and ``take_gradients`` hands it over.
        """
        self._prepare()
        steps = [p.grad for p in self._parameters.values()] if direction is None else direction
        for out, p, step in zip(self._written, self._parameters.values(), steps, strict=True):
            assert step is not None
            torch.add(p, step, alpha=-rate, out=out)  # one pass over memory
        self._finish(accumulate)

    @torch.no_grad()
    def move_by(self, optimizer: torch.optim.Optimizer, *, accumulate: bool = True) -> None:
        """Sets theta' to what the optimizer's next step with the parameters' ``.grad`` would make of them.

        The optimizer (Adam, AdamW, or SGD without momentum) and its state stay as they are, so that the step that
        follows is its first and only one. A parameter that it does not train stays in place.

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
        outs = {id(p): out for out, p in zip(self._written, self._parameters.values(), strict=True)}
        for group in optimizer.param_groups:
            _step_ahead(optimizer, group, [(p, outs.pop(id(p))) for p in group["params"] if id(p) in outs])
        for p in self._parameters.values():
            if id(p) in outs:
                outs[id(p)].copy_(p)
        self._finish(accumulate)

    def _prepare(self) -> None:
        """Makes the buffers for theta', and a gradient of zero where a parameter has none."""
        if not self._places or not all(place.is_as_before() for place in self._places):
            self._walk()
        for p in self._parameters.values():
            if p.grad is None:
                p.grad = torch.zeros_like(p)

    def _walk(self) -> None:
        """Finds the parameters and batch norm layers of the module."""
        self._parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self._ahead = {name: torch.empty_like(p, requires_grad=True) for name, p in self._parameters.items()}
        self._written = [value.detach() for value in self._ahead.values()]
        targets = {id(p): self._ahead[name] for name, p in self._parameters.items()}
        self._places = [
            _Place(part._parameters, leaf, p, targets.get(id(p)))  # a parameter may have several places
            for part in self.module.modules()
            for leaf, p in part._parameters.items()
            if p is not None
        ]
        self._norms = [part for part in self.module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]

    def _finish(self, accumulate: bool) -> None:
        """Where gradients at theta' go, and copies of the running statistics."""
        for target, p in zip(self._ahead.values(), self._parameters.values(), strict=True):
            target.grad = p.grad if accumulate else None
        # running statistics belong to the first pass: the second one works on throw-away copies
        self._buffers = [
            (part._buffers, leaf, value.clone())
            for part in self._norms
            if part.training and part.track_running_stats
            for leaf, value in part._buffers.items()
            if value is not None
        ]

    def __call__(self, *inputs: Any) -> Any:
        """The module at theta'."""
        own = [(store, leaf, store[leaf]) for store, leaf, _ in self._buffers]
        try:
            for place in self._places:
                if place.ahead is not None:
                    place.store[place.leaf] = place.ahead
            for store, leaf, value in self._buffers:
                store[leaf] = value
            return self.module(*inputs)
        finally:
            for place in self._places:
                place.store[place.leaf] = place.parameter
            for store, leaf, value in own:
                store[leaf] = value

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """theta', by name: leaves of the graph of the calls above."""
        return self._ahead

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Makes the gradient found at theta' the parameters' own ``.grad``."""
        for name, p in self._parameters.items():
            p.grad = self._ahead[name].grad


def _step_ahead(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], targets: Sequence[tuple[nn.Parameter, Tensor]]
) -> None:
    """Writes what a step of the optimizer makes of parameters of one group to where they say; changes nothing else."""
    if isinstance(optimizer, torch.optim.SGD) and not group["momentum"]:
        for p, out in targets:
            assert p.grad is not None
            torch.add(p, p.grad.add(p, alpha=group["weight_decay"]), alpha=-group["lr"], out=out)
        return
    if not isinstance(optimizer, torch.optim.Adam) or group["amsgrad"]:
        raise NotImplementedError(f"no look-ahead by a step of {type(optimizer).__name__} with these options")
    beta1, beta2 = group["betas"]
    names = ("lr", "weight_decay", "decoupled_weight_decay", "eps", "maximize", "foreach", "capturable", "fused")
    same = {name: group[name] for name in names}
    # torch's own function, on copies: to the bit what the optimizer's step will make of the same gradient
    for block in _blocks(optimizer, group, _without_loops(optimizer, group, targets)):
        ahead, parameters, gradients, *state = (list(values) for values in zip(*block, strict=True))
        torch._foreach_copy_(ahead, parameters)
        first, second, steps = ([value.clone() for value in values] for values in state)
        adam(ahead, gradients, first, second, [], steps, amsgrad=False, beta1=beta1, beta2=beta2, **same)


def _without_loops(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], targets: Sequence[tuple[nn.Parameter, Tensor]]
) -> list[tuple[nn.Parameter, Tensor]]:
    """Makes the step of Adam where a compiled loop can, with a third of the traffic; returns the other targets."""
    if not group["fused"] or group["maximize"] or isinstance(group["lr"], Tensor):
        return list(targets)
    from rcalign.functional.step_kernels import adam_ahead, adam_constants  # compiled when it is needed

    options = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
    constants: dict[float, Any] = {}  # of the step that a parameter is at: mostly one for all
    others = []
    for p, out in targets:
        state = optimizer.state.get(p)
        assert p.grad is not None
        tensors = (p.detach(), p.grad, state["exp_avg"], state["exp_avg_sq"], out) if state else ()
        if not state or not for_loops(p) or not all(t.is_contiguous() for t in tensors):
            others.append((p, out))
            continue
        step = state["step"].item() + 1
        if step not in constants:
            constants[step] = adam_constants(step, **options, decoupled=group["decoupled_weight_decay"])
        *values, ahead = (t.view(-1).numpy() for t in tensors)
        adam_ahead(*values, constants[step], ahead)
    return others


def _blocks(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], targets: Sequence[tuple[nn.Parameter, Tensor]]
) -> Iterator[list[tuple[Tensor, ...]]]:
    """Where the result goes, the parameter, its gradient, both moments and the number of steps so far.

    Large tensors are cut, and small ones put together, into blocks of about ``BLOCK`` numbers.
    """
    block: list[tuple[Tensor, ...]] = []
    room = BLOCK
    for p, out in targets:
        assert p.grad is not None
        state = optimizer.state.get(p)
        if not state:
            none, where = torch.zeros_like(p), p.device if group["fused"] or group["capturable"] else "cpu"
            state = {"exp_avg": none, "exp_avg_sq": none, "step": torch.zeros((), dtype=torch.float32, device=where)}
        values = (out, p.detach(), p.grad, state["exp_avg"], state["exp_avg_sq"])
        rows = max(1, BLOCK * len(p) // max(1, p.numel())) if p.dim() else 1
        cut = p.dim() > 0 and rows < len(p)
        for start in range(0, len(p), rows) if cut else [0]:
            part = [value[start : start + rows] for value in values] if cut else values
            if block and part[0].numel() > room:
                yield block
                block, room = [], BLOCK
            block.append((*part, state["step"]))
            room -= part[0].numel()
    if block:
        yield block
