"""Fine-tuning as people do it now, around the optimizers of any algorithm. All of it is off unless asked for.

With base learning rate r, step t = 0, 1, ..., T - 1 and layer l of L (0 is the one that reads the input, L the head):

    learning rate   r * warm(t) * schedule(t) * layer_decay^(L - l)
    warm(t)         min(1, (t + 1) / w)
    schedule(t)     1, or with "cosine" (1 + cos(pi s)) / 2, s = max(0, t - w) / (T - w), w = schedule_warm_up
    adamw           weight decay taken off the weights themselves, not added to the gradient
    clip_gradient   the gradient of each optimizer's parameters scaled to at most this length
    label_smoothing the target of a row is 1 - e + e / C for its label and e / C for each other of the C classes
    warm_up_head    for so many steps the featurizer's parameters are not updated: the head first, then everything

Papers: Szegedy et al., Rethinking the Inception Architecture (label smoothing, 2016); Loshchilov and Hutter, AdamW
(2019); Kumar et al., Fine-tuning can distort pretrained features (LP-FT, 2022).
Layers of timm's networks are timm's own groups.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from rcalign.algorithms.base import Algorithm
from rcalign.errors import InputError


class FineTuning:
    """What is changed about the optimizers and the loss of a model, and its learning rates before each step.

    >>> from rcalign.algorithms.erm import ERM
    >>> from rcalign.algorithms.base import Network
    >>> from rcalign.spec import DataSpec
    >>> model = ERM(DataSpec(("a", "b"), ("one",), ((4, 4),), (5,)), Network(nn.Linear(5, 4), 4, 2))
    >>> tuning = FineTuning(model, steps=10, schedule="cosine", schedule_warm_up=2)
    >>> rates = []
    >>> for step in range(10):
    ...     tuning.before(step)
    ...     rates.append(model.optimizer.param_groups[0]["lr"] / 5e-5)
    >>> [round(rate, 2) for rate in rates]
    [0.5, 1.0, 1.0, 0.96, 0.85, 0.69, 0.5, 0.31, 0.15, 0.04]
    """

    def __init__(
        self,
        model: Algorithm,
        *,
        steps: int,
        adamw: bool = False,
        schedule: str = "constant",
        schedule_warm_up: int = 0,
        layer_decay: float = 1.0,
        clip_gradient: float | None = None,
        warm_up_head: int = 0,
        label_smoothing: float = 0.0,
    ) -> None:
        self._model, self._steps = model, steps
        self._adamw, self._schedule, self._warm_up = adamw, schedule, schedule_warm_up
        self._clip, self._warm_up_head = clip_gradient, warm_up_head
        self._scales = layer_scales(model, layer_decay) if layer_decay != 1 else {}
        model.label_smoothing = label_smoothing
        self._step = 0
        self._known: list[torch.optim.Optimizer] = []
        self._adopt()

    def before(self, step: int) -> None:
        """Sets the learning rates of a step."""
        self._step = step
        self._adopt()
        for optimizer in self._model.optimizers.values():
            for group in optimizer.param_groups:
                # an algorithm may change its rate itself: what it set stays a factor of the result
                base = group["lr"] / group.get("lr_factor", 1.0)
                group["lr_factor"] = self.factor(step) * group.get("lr_scale", 1.0)
                group["lr"] = base * group["lr_factor"]

    def factor(self, step: int) -> float:
        """Warm-up and schedule at a step: positive, at most 1."""
        warm = min(1.0, (step + 1) / self._warm_up) if self._warm_up else 1.0
        if self._schedule == "constant":
            return warm
        share = max(0, step - self._warm_up) / max(1, self._steps - self._warm_up)
        return warm * (1 + math.cos(math.pi * share)) / 2

    def _adopt(self) -> None:
        """Changes optimizers that are not yet changed: some algorithms make new ones along the way."""
        for optimizer in self._model.optimizers.values():
            if any(optimizer is known for known in self._known):
                continue
            self._known.append(optimizer)
            if self._adamw:
                for group in optimizer.param_groups:
                    if "decoupled_weight_decay" not in group:
                        raise InputError(
                            f"{self._model.name} has an optimizer that is not Adam, so that `adamw` means "
                            "nothing for it: leave it out."
                        )
                    group["decoupled_weight_decay"] = True
            if self._scales:
                optimizer.param_groups[:] = [part for group in optimizer.param_groups for part in self._split(group)]
            optimizer.register_step_pre_hook(self._guard)

    def _split(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """A group of parameters as one group for each layer."""
        by_scale: dict[float, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            by_scale.setdefault(self._scales.get(id(parameter), 1.0), []).append(parameter)
        return [{**group, "params": params, "lr_scale": scale} for scale, params in by_scale.items()]

    def _guard(self, optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
        """Before an update: no gradient for the featurizer while the head warms up, and none that is too long."""
        if self._step < self._warm_up_head:
            for parameter in self._model.featurizer.parameters():
                parameter.grad = None
        if self._clip is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            nn.utils.clip_grad_norm_(parameters, self._clip)


def layer_scales(model: Algorithm, decay: float) -> dict[int, float]:
    """The factor of each parameter's learning rate, by its ``id``: decay^(L - l) in the featurizer, else 1."""
    layers = _layers(model.featurizer)
    return {id(p): decay ** (len(layers) - depth) for depth, layer in enumerate(layers) for p in layer}


def _layers(featurizer: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters of a featurizer, layer by layer: timm's groups, else its modules in order."""
    network: Any = getattr(featurizer, "network", featurizer)
    if hasattr(network, "group_matcher"):
        from timm.models import group_parameters

        named = dict(network.named_parameters())
        groups = group_parameters(network, network.group_matcher(coarse=False), reverse=False)
        found = [[named[name] for name in names if name in named] for _, names in sorted(groups.items())]
    else:
        found = [list(part.parameters(recurse=False)) for part in network.modules()]
    return [layer for layer in found if layer]
