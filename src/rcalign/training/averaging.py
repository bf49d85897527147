"""Weight averaging beside any algorithm: EMA, polynomial decay, Beta, SWA, SWAD.

The loop hands over the weights after each step and the validation loss at each evaluation; training itself never sees
the average, so it is bit-identical with and without one. With theta_t the weights after step t = 1, 2, ...:

    ema   avg <- m avg + (1 - m) theta_t, from avg = theta_1
    polynomial  the same with 1 - m = (p + 1) / (t + p): theta_t weighs about (t / T)^p at the end of T steps, so that
          the average is of the last 1 / (p + 1) of a run, however long that is, and nothing is to be tuned
    beta  avg = mean of theta_0, ..., theta_T, theta_t weighing the density of Beta(b, b) at (t + 1/2) / (T + 1)
    swa   avg = mean of theta_t over t >= start; before that avg = theta_t
    swad  avg = mean of all theta_t inside one valley of the validation loss. L_k is the loss at evaluation k = 1, 2,
          ..., segment k the iterates after evaluation k - 1 up to evaluation k.
          begin: the first k with L_{k-Ns+1} = min(L_{k-Ns+1}, ..., L_k); ts = k - Ns + 1, limit = r * mean of those Ns.
          end:   the first k > ts with min(L_{k-Ne+1}, ..., L_k) > limit; te = k - Ne, and training may stop.
          Average of the iterates of segments ts, ..., te. A valley that never ends is cut after the last L_k <= limit.

What is averaged: the parameters. Integers (counters) and batch-norm statistics are copied with the last averaged
iterate. That is right for frozen batch norm; where it is trained, call ``recompute_batch_norm`` on the averaged model.

Papers: Shu et al., CLIPood (2023), Beta moving average; Shamir and Zhang, Stochastic Gradient Descent for Non-smooth
Optimization (2013), polynomial-decay averaging; Izmailov et al., Averaging Weights Leads to Wider Optima (2018); Cha
et al., SWAD (2021), Algorithm 1. Departure from the public SWAD code: iterates weigh the same, not segments, and
nothing before ts is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rcalign.errors import InputError, unknown

Weights = Mapping[str, Tensor]


class Mean:
    """A mean of weights: ``count`` iterates in it, parameters averaged, everything else as it was last.

    parameters: the names to average (None: every floating tensor that is no batch-norm statistic).

    >>> mean = Mean()
    >>> for value in (1.0, 2.0, 6.0):
    ...     mean.add({"w": torch.tensor(value), "steps": torch.tensor(int(value))})
    >>> mean.weights()
    {'w': tensor(3.), 'steps': tensor(6)}
    """

    def __init__(self, parameters: Collection[str] | None = None) -> None:
        self.parameters = None if parameters is None else frozenset(parameters)
        self.count = 0
        self._averaged: dict[str, Tensor] = {}
        self._copied: dict[str, Tensor] = {}
        self._types: dict[str, torch.dtype] = {}

    @torch.no_grad()
    def add(self, weights: Weights, share: float | None = None) -> None:
        """One more iterate. share: its part of the new mean (None: as much as every other's)."""
        share = 1 / (self.count + 1) if share is None else share
        if not self.count:
            self._types = {name: value.dtype for name, value in weights.items() if self._is_averaged(name, value)}
            # at least single precision: a mean of thousands of half-precision values would stop moving
            self._averaged = {
                name: weights[name].detach().to(torch.promote_types(dtype, torch.float32), copy=True)
                for name, dtype in self._types.items()
            }
        else:
            # a loaded mean may still be on another device than the weights
            self._averaged = {name: value.to(weights[name].device) for name, value in self._averaged.items()}
            self._move([weights[name].detach() for name in self._averaged], share)
        self._copied = {name: value.detach().clone() for name, value in weights.items() if name not in self._averaged}
        self.count += 1

    @torch.no_grad()
    def merge(self, other: Mean) -> None:
        """Takes in the iterates of a later mean, each weighing the same."""
        if not other.count:
            return
        if not self.count:
            self.load(other.state())
            return
        self._move(list(other._averaged.values()), other.count / (self.count + other.count))
        self._copied = {name: value.clone() for name, value in other._copied.items()}
        self.count += other.count

    def _move(self, towards: list[Tensor], share: float) -> None:
        targets = list(self._averaged.values())
        torch._foreach_lerp_(targets, [b.to(a) for a, b in zip(targets, towards, strict=True)], share)

    def _is_averaged(self, name: str, value: Tensor) -> bool:
        if self.parameters is not None:
            return name in self.parameters and value.is_floating_point()
        return value.is_floating_point() and name.rpartition(".")[2] not in ("running_mean", "running_var")

    def weights(self) -> dict[str, Tensor] | None:
        """The mean in the weights' own types, safe to keep; None if it is empty."""
        if not self.count:
            return None
        averaged = {name: value.to(self._types[name], copy=True) for name, value in self._averaged.items()}
        return {**averaged, **{name: value.clone() for name, value in self._copied.items()}}

    def state(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "averaged": {name: value.clone() for name, value in self._averaged.items()},
            "copied": {name: value.clone() for name, value in self._copied.items()},
            "types": {name: str(dtype).removeprefix("torch.") for name, dtype in self._types.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])
        self._averaged = {name: value.clone() for name, value in state["averaged"].items()}
        self._copied = {name: value.clone() for name, value in state["copied"].items()}
        self._types = {name: getattr(torch, kind) for name, kind in state["types"].items()}


class Averaging:
    """The interface that the training loop knows."""

    def take_start(self, weights: Weights) -> None:
        """Takes the weights before the first step."""

    def update(self, weights: Weights) -> None:
        """Takes the weights after a step: a ``state_dict``; nothing of it is kept, only copies."""
        raise NotImplementedError

    def observe(self, validation_loss: float) -> None:
        """Takes the mean validation loss of the source domains at an evaluation."""

    @property
    def finished(self) -> bool:
        """Whether nothing more can enter the average, so that training may stop."""
        return False

    def averaged(self) -> dict[str, Tensor] | None:
        """The averaged weights as they stand now; None before the first step."""
        raise NotImplementedError

    @property
    def note(self) -> str:
        """What the average consists of, in words."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Everything the next call depends on: nested dicts and lists of tensors, numbers and strings."""
        raise NotImplementedError

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of ``state``."""
        raise NotImplementedError


class EMA(Averaging):
    """avg <- m avg + (1 - m) theta after each step; momentum m."""

    def __init__(self, momentum: float = 0.999, parameters: Collection[str] | None = None) -> None:
        _within("momentum", momentum, 0, 1)
        self.momentum = momentum
        self._mean = Mean(parameters)

    def update(self, weights: Weights) -> None:
        self._mean.add(weights, share=1 - self.momentum)

    def averaged(self) -> dict[str, Tensor] | None:
        return self._mean.weights()

    @property
    def note(self) -> str:
        return f"exponential moving average with momentum {self.momentum:g} over {self._mean.count} steps"

    def state(self) -> dict[str, Any]:
        return {"mean": self._mean.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        self._mean.load(state["mean"])


class Polynomial(Averaging):
    """avg <- avg + (p + 1) / (t + p) (theta_t - avg) after step t; power p. The mean age of what is in it grows with t.

    >>> average = Polynomial(power=1)
    >>> for value in (1.0, 2.0, 3.0):
    ...     average.update({"w": torch.tensor(value)})
    >>> average.averaged()  # (1 * 1 + 2 * 2 + 3 * 3) / (1 + 2 + 3)
    {'w': tensor(2.3333)}
    """

    def __init__(self, power: float = 8, parameters: Collection[str] | None = None) -> None:
        _within("power", power, 0)
        self.power = power
        self._mean = Mean(parameters)

    def update(self, weights: Weights) -> None:
        self._mean.add(weights, share=(self.power + 1) / (self._mean.count + 1 + self.power))

    def averaged(self) -> dict[str, Tensor] | None:
        return self._mean.weights()

    @property
    def note(self) -> str:
        share = 100 / (self.power + 1)
        return f"polynomial decay: mostly the last {share:.0f} % of {self._mean.count} steps"

    def state(self) -> dict[str, Any]:
        return {"mean": self._mean.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        self._mean.load(state["mean"])


class BetaAverage(Averaging):
    """Mean of the weights from before the first step to after the last; those after step t weigh the density of a
    Beta(beta, beta) distribution at (t + 1/2) / (steps + 1): for beta < 1 mostly the first and the last ones.

    >>> average = BetaAverage(steps=2, beta=1.0)  # a flat density
    >>> average.take_start({"w": torch.tensor(0.0)})
    >>> for value in (1.0, 5.0):
    ...     average.update({"w": torch.tensor(value)})
    >>> average.averaged()
    {'w': tensor(2.)}
    """

    def __init__(self, steps: int, beta: float = 0.5, parameters: Collection[str] | None = None) -> None:
        _within("steps", steps, 1)
        _within("beta", beta, 1e-3)
        self.steps, self.beta = steps, beta
        self._mean, self._sum = Mean(parameters), 0.0

    def take_start(self, weights: Weights) -> None:
        self.update(weights)

    def update(self, weights: Weights) -> None:
        place = (self._mean.count + 0.5) / (self.steps + 1)
        weight = (place * (1 - place)) ** (self.beta - 1)  # up to a factor
        self._sum += weight
        self._mean.add(weights, share=weight / self._sum)

    def averaged(self) -> dict[str, Tensor] | None:
        return self._mean.weights()

    @property
    def note(self) -> str:
        return f"Beta({self.beta:g}, {self.beta:g}) moving average of {self._mean.count - 1} steps and their start"

    def state(self) -> dict[str, Any]:
        return {"sum": self._sum, "mean": self._mean.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        self._sum = float(state["sum"])
        self._mean.load(state["mean"])


class SWA(Averaging):
    """Uniform mean of the weights after each step from step ``start`` on (the first step is 1)."""

    def __init__(self, start: int, parameters: Collection[str] | None = None) -> None:
        _within("start", start, 0)
        self.start = start
        self._steps = 0
        self._parameters = parameters
        self._mean = Mean(parameters)

    def update(self, weights: Weights) -> None:
        self._steps += 1
        if self._steps <= self.start:
            self._mean = Mean(self._parameters)  # up to here the mean is the last iterate alone
        self._mean.add(weights)

    def averaged(self) -> dict[str, Tensor] | None:
        return self._mean.weights()

    @property
    def note(self) -> str:
        if self._steps < self.start:
            return (
                f"never started: the last weights (averaging begins at step {self.start}, training made {self._steps})"
            )
        return f"mean of {self._mean.count} steps, from step {max(self.start, 1)}"

    def state(self) -> dict[str, Any]:
        return {"steps": self._steps, "mean": self._mean.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        self._steps = int(state["steps"])
        self._mean.load(state["mean"])


class SWADAveraging(Averaging):
    """Mean of all iterates inside a valley of the validation loss (see above).

    begin_patience: Ns. end_patience: Ne. tolerance: r, at least 1, so that the valley holds its own beginning.
    Holds at most Ns + 1 sets of weights before the valley begins and three after.
    """

    def __init__(
        self,
        begin_patience: int = 3,
        end_patience: int = 6,
        tolerance: float = 1.3,
        parameters: Collection[str] | None = None,
    ) -> None:
        _within("begin_patience", begin_patience, 1)
        _within("end_patience", end_patience, 1)
        _within("tolerance", tolerance, 1)
        self.begin_patience, self.end_patience, self.tolerance = begin_patience, end_patience, tolerance
        self._parameters = parameters
        self._evaluations = 0
        self._segment = Mean(parameters)  # the iterates since the last evaluation
        self._recent: list[tuple[float, Mean]] = []  # before the valley: the last Ns segments with their losses
        self._valley = Mean(parameters)  # the segments ts, ..., te as far as known
        self._waiting = Mean(parameters)  # those after te, all above the limit: in, once a loss falls below it again
        self._above = 0  # how many segments are waiting
        self.limit: float | None = None
        self.begin: int | None = None  # ts
        self.end: int | None = None  # te, so far

    def update(self, weights: Weights) -> None:
        if not self.finished:
            self._segment.add(weights)

    def observe(self, validation_loss: float) -> None:
        if self.finished or not self._segment.count:
            return
        self._evaluations += 1
        loss = math.inf if math.isnan(validation_loss) else float(validation_loss)
        segment, self._segment = self._segment, Mean(self._parameters)
        if self.limit is not None:
            self._walk(self._evaluations, loss, segment)
            return
        self._recent = [*self._recent, (loss, segment)][-self.begin_patience :]
        losses = [value for value, _ in self._recent]
        if len(losses) < self.begin_patience or losses[0] > min(losses) or math.isinf(max(losses)):
            return
        self.begin = self._evaluations - self.begin_patience + 1
        self.limit = self.tolerance * sum(losses) / len(losses)
        for k, (value, part) in enumerate(self._recent, start=self.begin):
            self._walk(k, value, part)
        self._recent = []

    def _walk(self, k: int, loss: float, segment: Mean) -> None:
        """Segment k of the valley: in if its loss is within the limit, else it waits for a later one that is."""
        assert self.limit is not None
        if self.finished:
            return
        self._waiting.merge(segment)
        self._above += 1
        if loss <= self.limit:
            self._valley.merge(self._waiting)
            self._waiting, self._above, self.end = Mean(self._parameters), 0, k

    @property
    def finished(self) -> bool:
        return self._above >= self.end_patience and self.limit is not None

    def averaged(self) -> dict[str, Tensor] | None:
        if self._valley.count:
            return self._valley.weights()
        return (self._recent[-1][1] if self._recent else self._segment).weights()

    @property
    def note(self) -> str:
        if self.begin is None:
            return f"never started: last segment (no valley in {self._evaluations} evaluations)"
        span = f"mean of {self._valley.count} steps, evaluations {self.begin} to {self.end}"
        return span if self.finished else f"{span} (the valley never ended)"

    def state(self) -> dict[str, Any]:
        return {
            "evaluations": self._evaluations,
            "segment": self._segment.state(),
            "recent": [[loss, mean.state()] for loss, mean in self._recent],
            "valley": self._valley.state(),
            "waiting": self._waiting.state(),
            "above": self._above,
            "limit": self.limit,
            "begin": self.begin,
            "end": self.end,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self._evaluations = int(state["evaluations"])
        self._segment.load(state["segment"])
        self._recent = []
        for loss, mean in state["recent"]:
            part = Mean(self._parameters)
            part.load(mean)
            self._recent.append((float(loss), part))
        self._valley.load(state["valley"])
        self._waiting.load(state["waiting"])
        self._above = int(state["above"])
        self.limit = state["limit"]
        self.begin = state["begin"]
        self.end = state["end"]


_KINDS: dict[str, Callable[..., Averaging]] = {
    "beta": BetaAverage,
    "ema": EMA,
    "polynomial": Polynomial,
    "swa": SWA,
    "swad": SWADAveraging,
}


def make_averaging(kind: str, **options: Any) -> Averaging:
    """The averaging of a name, with its options (see the classes). All take ``parameters``, the names to average.

    >>> average = make_averaging("swa", start=0)
    >>> for value in (1.0, 3.0):
    ...     average.update({"w": torch.tensor(value)})
    >>> average.averaged(), average.note
    ({'w': tensor(2.)}, 'mean of 2 steps, from step 1')
    """
    if kind not in _KINDS:
        raise unknown("weight averaging", kind, _KINDS)
    return _KINDS[kind](**options)


@torch.no_grad()
def recompute_batch_norm(module: nn.Module, inputs: Iterable[Any], limit: int = 500) -> int:
    """New running statistics for the batch-norm layers that train: the mean over up to ``limit`` training inputs.

    For an averaged model whose batch norm is trained: its statistics belong to one iterate, not to the average. Frozen
    layers (in evaluation mode although the module trains) are left alone; with none that train, nothing is read.
    Everything but those layers runs in evaluation mode, so no random number is drawn. Returns the inputs read.

    >>> net = nn.BatchNorm1d(1)
    >>> recompute_batch_norm(net, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [7.0]])]), net.running_mean
    (2, tensor([4.]))
    """
    modes = [(part, part.training) for part in module.modules()]
    module.train()
    layers = [
        part
        for part in module.modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training and part.track_running_stats
    ]
    momenta = [layer.momentum for layer in layers]
    read = 0
    try:
        module.eval()
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # torch's name for a cumulative mean
            layer.training = True
        for x in inputs if layers else ():
            if read == limit:
                break
            module(x)
            read += 1
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for part, mode in modes:
            part.training = mode
    return read


def _within(name: str, value: float, low: float, high: float = math.inf) -> None:
    if not low <= value <= high:
        allowed = f"at least {low}" if math.isinf(high) else f"from {low} to {high}"
        raise InputError(f"the averaging option '{name}' is {value}, but must be {allowed}.")
