"""One run on several workers: the only module that talks to other processes.

Every worker holds the whole network and draws the whole batch, but reads and passes through the featurizer only its
share of the rows: positions ``share`` of every domain. The features of all rows are then gathered, so that heads,
losses and penalties are computed by every worker on the whole batch, exactly as one worker would. That is why no
algorithm needs code of its own for this. Three pairs of operations carry values and, exactly transposed, gradients:

    copied    value -> the same value for this worker's rows           gradient: summed over the workers
    summed    one part on each worker -> the sum on every worker       gradient: as it is
    gathered  this worker's rows -> the rows of all, in batch order    gradient: this worker's rows of it

Each one's gradient is another of them, so gradients of gradients are right too. Results equal those of one process up
to the order of summation. Where there is one worker, nothing here costs anything.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.checkpoint import checkpoint

from rcalign.errors import InputError

BUCKET_BYTES = 2**24  # gradients that are summed in one message; larger blocks are not reused by the allocator
MESSAGE_BYTES = 2**10  # of an error that workers tell each other
ARRIVAL_SECONDS = 60  # that workers wait for each other at the start
SILENCE_SECONDS = 1800  # after which a worker that does not answer counts as lost

T = TypeVar("T")


@dataclass(frozen=True)
class Workers:
    """How many processes share a run, and which of them this is.

    >>> [Workers(rank, 3).share(8) for rank in range(3)]
    [(0, 2), (2, 5), (5, 8)]
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this worker writes the files of the run."""
        return self.rank == 0

    def share(self, rows: int) -> tuple[int, int]:
        """First position and end of this worker's part of ``rows`` rows."""
        return rows * self.rank // self.size, rows * (self.rank + 1) // self.size

    def shares(self, rows: int) -> list[int]:
        """The number of rows of every worker."""
        bounds = [rows * rank // self.size for rank in range(self.size + 1)]
        return [end - start for start, end in itertools.pairwise(bounds)]

    def positions(self, domains: int, rows: int) -> np.ndarray:
        """Positions of this worker's rows in a batch of so many domains with ``rows`` rows each.

        >>> Workers(1, 2).positions(2, 4).tolist()
        [2, 3, 6, 7]
        """
        start, end = self.share(rows)
        return (np.arange(domains)[:, None] * rows + np.arange(start, end)).reshape(-1)


def workers() -> Workers:
    """This process among those of the run: one of one, unless torch's process group says otherwise.

    >>> workers()
    Workers(rank=0, size=1)
    """
    if not (dist.is_available() and dist.is_initialized()):
        return Workers()
    return Workers(dist.get_rank(), dist.get_world_size())


@dataclass
class Traffic:
    """Bytes that this worker handed to collective operations, by kind; what ``docs/scale.md`` predicts."""

    sent: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, tensor: Tensor) -> None:
        self.sent[kind] = self.sent.get(kind, 0) + tensor.numel() * tensor.element_size()


TRAFFIC = Traffic()


def bytes_per_step(
    size: int,
    *,
    parameters: int,
    domains: int,
    batch_size: int,
    features: int,
    backward_passes: int = 1,
    rows_passed: int | None = None,
    width: int = 4,
) -> dict[str, int]:
    """What one worker of ``size`` hands to collective operations in a step: {"summed": bytes, "gathered": bytes}.

    parameters: trained numbers of the featurizer, summed once for each backward pass that reaches them. rows_passed:
    rows that go through the featurizer in a step (by default every row of the batch once); ``features`` numbers of each
    are gathered. width: bytes of a number. On the wire a ring sends 2 (size - 1) / size of what is summed and
    (size - 1) times what is gathered.

    >>> bytes_per_step(2, parameters=1000, domains=3, batch_size=32, features=8)
    {'summed': 4000, 'gathered': 1536}
    """
    rows = domains * batch_size if rows_passed is None else rows_passed
    longest = -(-batch_size // size)  # shares are padded to the longest
    return {
        "summed": width * parameters * backward_passes,
        "gathered": width * features * longest * (rows // batch_size),
    }


# --- operations with gradients of any order ------------------------------------------------------------------------


class _Copied(torch.autograd.Function):
    """Values whose gradients are summed over the workers."""

    @staticmethod
    def forward(ctx: Any, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # a parameter that was not used has no gradient, as with one worker
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        found = [g for g in gradients if g is not None]
        sums = iter(_Summed.apply(*found) if found else ())
        return tuple(None if g is None else next(sums) for g in gradients)


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        flat = torch.cat([value.detach().reshape(-1) for value in values])
        TRAFFIC.add("summed", flat)
        dist.all_reduce(flat)
        pieces = flat.split([value.numel() for value in values])
        # in each parameter's own memory layout, as one worker's gradients are
        return tuple(
            torch.empty_like(value).copy_(piece.view(value.shape)) for value, piece in zip(values, pieces, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        found = [g for g in gradients if g is not None]
        copies = iter(_Copied.apply(*found) if found else ())
        return tuple(None if g is None else next(copies) for g in gradients)


class _Gathered(torch.autograd.Function):
    """(m, b, ...) with this worker's b of the B rows of each of m groups -> (m, B, ...)."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, rows: int) -> Tensor:
        ctx.rows = rows
        return _gather(value, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Taken.apply(gradient), None


class _Taken(torch.autograd.Function):
    """(m, B, ...) -> this worker's (m, b, ...)."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.rows = value.shape[1]
        start, end = workers().share(ctx.rows)
        return value[:, start:end].contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Gathered.apply(gradient, ctx.rows)


def _gather(value: Tensor, rows: int) -> Tensor:
    here = workers()
    shares = here.shares(rows)
    longest = max(shares)
    padded = value.new_zeros(value.shape[0], longest, *value.shape[2:])  # collectives want equal shapes
    padded[:, : value.shape[1]] = value.detach()
    pieces = [torch.empty_like(padded) for _ in shares]
    TRAFFIC.add("gathered", padded)
    dist.all_gather(pieces, padded)
    return torch.cat([piece[:, :n] for piece, n in zip(pieces, shares, strict=True)], dim=1)


def copied(values: Sequence[Tensor]) -> list[Tensor]:
    """The same values, whose gradients are summed over the workers, in messages of about ``BUCKET_BYTES``.

    The last layers come first, since their gradients are known first.
    """
    result: dict[int, Tensor] = {}
    bucket: list[int] = []
    size = 0
    for position in reversed(range(len(values))):
        bucket.append(position)
        size += values[position].numel() * values[position].element_size()
        if size >= BUCKET_BYTES or position == 0:
            result.update(zip(bucket, _Copied.apply(*(values[k] for k in bucket)), strict=True))
            bucket, size = [], 0
    return [result[k] for k in range(len(values))]


# --- sums that go on while the backward pass does --------------------------------------------------------------------


class GradientSums:
    """Sums of gradients over the workers, started as soon as the gradients of a bucket are known.

    A backward pass through one call of a network hands over each gradient when a layer has computed it (``add``) and
    takes all sums when the last layer is done (``finish``). In between, full buckets are on their way. Numbers travel
    in the order in which the parameters hold them in memory, and the sums are views of the buckets, so that each
    gradient is copied once only.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._orders = {name: _memory_order(value) for name, value in parameters.items()}
        self._waiting: dict[str, Tensor] = {}
        self._bytes = 0
        self._under_way: list[tuple[dict[str, Tensor], Tensor, dist.Work]] = []

    def add(self, name: str, gradient: Tensor) -> None:
        self._waiting[name] = gradient
        self._bytes += gradient.numel() * gradient.element_size()
        if self._bytes >= BUCKET_BYTES:
            self._start()

    def _start(self) -> None:
        flat = torch.cat(
            [value.detach().permute(self._orders[name]).reshape(-1) for name, value in self._waiting.items()]
        )
        TRAFFIC.add("summed", flat)
        work = dist.all_reduce(flat, async_op=True)
        assert work is not None
        self._under_way.append((self._waiting, flat, work))
        self._waiting, self._bytes = {}, 0

    def finish(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums of all gradients by name; those that were not handed over before are summed now."""
        known = {name for values, _, _ in self._under_way for name in values} | self._waiting.keys()
        self._waiting |= {name: value for name, value in gradients.items() if name not in known}
        if self._waiting:
            self._start()
        sums: dict[str, Tensor] = {}
        for values, flat, work in self._under_way:
            work.wait()
            pieces = flat.split([value.numel() for value in values.values()])
            for (name, value), piece in zip(values.items(), pieces, strict=True):
                order = self._orders[name]
                back = sorted(range(len(order)), key=order.__getitem__)
                sums[name] = piece.view([value.shape[d] for d in order]).permute(back)
        self._under_way = []  # a graph that is kept may be passed through again
        return sums


def _memory_order(value: Tensor) -> tuple[int, ...]:
    """The dimensions of a tensor from the one whose neighbours lie farthest apart in memory to the nearest.

    >>> _memory_order(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last))
    (0, 2, 3, 1)
    """
    strides = value.stride()
    return tuple(sorted(range(value.dim()), key=lambda d: -strides[d]))


class _Collected(torch.autograd.Function):
    """All parameters of a network, at the beginning of a call: the end of its backward pass, where sums are taken."""

    @staticmethod
    def forward(ctx: Any, sums: GradientSums, names: Sequence[str], *values: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.sums, ctx.names = sums, names
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        found = {name: g for name, g in zip(ctx.names, gradients, strict=True) if g is not None}
        if torch.is_grad_enabled():  # gradients of gradients are wanted: a sum that itself has a gradient
            summed = dict(zip(found, _Summed.apply(*found.values()) if found else (), strict=True))
        else:
            summed = ctx.sums.finish(found)
        return (None, None, *(summed.get(name) for name in ctx.names))


class _HandedOver(torch.autograd.Function):
    """One parameter, where a layer uses it: its gradient is handed over as soon as the layer has computed it.

    Autograd works off what was created last first, so this must be created when the layer is called, not before.
    """

    @staticmethod
    def forward(ctx: Any, sums: GradientSums, name: str, value: Tensor) -> Tensor:
        ctx.sums, ctx.name = sums, name
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        if not torch.is_grad_enabled():
            ctx.sums.add(ctx.name, gradient)
        return None, None, gradient


# --- a network whose rows are divided --------------------------------------------------------------------------------


def check_division(batch_size: int, accumulate: int) -> None:
    """Raises where a domain has fewer rows in a batch than there are workers, or pieces of theirs."""
    size = workers().size
    if batch_size < size * accumulate:
        what = f"{size} workers" if accumulate == 1 else f"{size} x {accumulate} pieces"
        raise InputError(
            f"batch_size is {batch_size} rows of each domain, fewer than {what}: raise batch_size, or divide less."
        )


class ScaledGradients(Protocol):
    """Gradients multiplied by a factor inside a network, for half precision."""

    def entering(self, parameters: Sequence[Tensor]) -> Sequence[Tensor]: ...

    def leaving(self, output: Tensor) -> Tensor: ...


@dataclass(eq=False)
class _KeptRows:
    """What one call of a network keeps for its backward pass: ``parts`` of its domains, cut into as many as pieces.

    It lives as long as the graph of the call: autograd holds it among what it saves for the backward pass.
    """

    domains: int
    parts: int


class _Watched(torch.autograd.Function):
    """The same values. What is saved here is let go when the backward pass is over, or the graph is dropped."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values.new_empty(0))
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class DividedRows:
    """Makes a network work on this worker's share of every batch, ``accumulate`` pieces one after the other.

    Inside ``with divided:`` a call of the network takes whole domains of ``batch_size`` rows each, of which only this
    worker's share is read, and returns the results of all rows. Outside, and with one worker and no pieces, the network
    is as it was. Batch norm that trains uses the statistics of all rows.

    Pieces need the memory of one ``accumulate``-th of a batch of ``domains`` domains. As many rows as that holds are
    kept for the backward pass; the others are computed again there, piece by piece. A call of few enough rows, such as
    one domain of three, is therefore computed once.

    >>> network = nn.Linear(2, 3)
    >>> divided = DividedRows(network, batch_size=4, accumulate=2, domains=2)
    >>> with divided:
    ...     features = network(torch.ones(8, 2))
    >>> features.shape
    torch.Size([8, 3])
    """

    def __init__(
        self,
        network: nn.Module,
        batch_size: int,
        accumulate: int = 1,
        scale: ScaledGradients | None = None,
        *,
        domains: int = 1,
    ) -> None:
        self.workers = workers()
        check_division(batch_size, accumulate)
        self.batch_size = batch_size
        self.accumulate = accumulate
        self.domains = domains
        self._graphs: weakref.WeakSet[_KeptRows] = weakref.WeakSet()
        self._network = network
        self._forward = network.forward
        self._active = False
        self._scale = scale
        compiled = network._compiled_call_impl is not None
        # a piece that is computed again, and a compiled network, have their gradients all at once
        self._overlaps = accumulate == 1 and not compiled
        if self.workers.size > 1 or accumulate > 1 or scale is not None:
            if compiled:  # what is compiled is the network, not the messages between workers
                self._forward = torch.compile(network.forward)
                network._compiled_call_impl = None
            network.forward = self._divided  # type: ignore[method-assign]
        self._norms = [part for part in network.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        if self.workers.size > 1:
            for part in self._norms:
                part.forward = self._batch_norm(part, part.forward)  # type: ignore[method-assign]

    def __enter__(self) -> DividedRows:
        self._active = True
        self._graphs.clear()  # so that a step depends on nothing before it
        return self

    def __exit__(self, *exception: object) -> None:
        self._active = False

    def check_whole(self, values: Tensor) -> Tensor:
        """The values, unless a batch is computed in pieces: then no piece can know what the others hold."""
        if self.accumulate > 1:
            raise InputError(
                "the algorithm mixes rows inside the network, so that a batch cannot be computed in pieces: leave "
                "accumulate out, or divide the batch among workers."
            )
        return values

    def _divided(self, x: Tensor) -> Tensor:
        if not self._active or _current is self:
            return self._forward(x)
        groups, rest = divmod(len(x), self.batch_size)
        if rest:
            raise InputError(
                f"the algorithm passes {len(x)} rows through the network, not whole domains of {self.batch_size}: it "
                "cannot be divided among workers or pieces."
            )
        if self.accumulate > 1 and any(part.training for part in self._norms):
            raise InputError(
                "batch norm that trains needs all rows of a batch at once, so that it cannot work in pieces: freeze "
                "batch norm if it is the backbone's (freeze_batch_norm=True), or leave accumulate out."
            )
        grouped = x.view(groups, self.batch_size, *x.shape[1:])
        # the parameters as they are now: those of a look-ahead while one calls the network
        trained: dict[str, Tensor] = {
            name: value for name, value in self._network.named_parameters() if value.requires_grad
        }
        if self._scale is not None and trained:
            trained = dict(zip(trained, self._scale.entering(list(trained.values())), strict=True))
        if self.workers.size == 1:
            return self._scaled(self._pieces(grouped, trained, None)).flatten(0, 1)
        start, end = self.workers.share(self.batch_size)
        sums = GradientSums(trained) if self._overlaps else None
        if torch.is_grad_enabled() and trained:
            values = list(trained.values())
            copies = copied(values) if sums is None else _Collected.apply(sums, tuple(trained), *values)
            trained = dict(zip(trained, copies, strict=True))
        own = self._scaled(self._pieces(grouped[:, start:end], trained, sums))
        return _Gathered.apply(own, self.batch_size).flatten(0, 1)

    def _scaled(self, features: Tensor) -> Tensor:
        return features if self._scale is None else self._scale.leaving(features)

    def _pieces(self, grouped: Tensor, parameters: dict[str, Tensor], sums: GradientSums | None) -> Tensor:
        """(m, b, ...) -> features (m, b, h); where there are pieces, some are computed again in the backward pass.

        sums: where gradients are handed over during the backward pass; None: they are summed after it.
        """

        def features(rows: Tensor, *values: Tensor) -> Tensor:
            with ExitStack() as stack:
                stack.enter_context(_running(self))
                stack.enter_context(_swapped(self._network, dict(zip(parameters, values, strict=True))))
                if sums is not None and parameters and torch.is_grad_enabled():
                    stack.enter_context(_handing_over(self._network, parameters, sums))
                return self._forward(rows)

        rows, shape = grouped.flatten(0, 1), grouped.shape[:2]
        # the parameters are arguments: in the backward pass a look-ahead's are no longer in the network
        values = list(parameters.values())
        if self.accumulate == 1:
            return features(rows, *values).unflatten(0, shape)
        graph, room = self._room(shape[0])
        again = len(rows) - graph.parts * shape[1] // self.accumulate
        pieces = -(-again // max(1, room * shape[1] // self.accumulate))
        found = [
            checkpoint(features, part, *values, use_reentrant=False)
            for part in (torch.tensor_split(rows[:again], pieces) if again else ())
        ]
        # the backward pass begins with the last rows, which therefore need not be computed again
        if again < len(rows):
            found.append(features(rows[again:], *values))
        result = torch.cat(found).unflatten(0, shape)
        if result.requires_grad:
            self._graphs.add(graph)
            with torch.autograd.graph.saved_tensors_hooks(lambda _: graph, lambda kept: kept):
                result = _Watched.apply(result)
        return result

    def _room(self, domains: int) -> tuple[_KeptRows, int]:
        """What a call with so many domains keeps, and how much it may compute again at a time.

        Both in parts, of which a domain has ``accumulate``. A call keeps one part for each domain of the batch. Where
        graphs of earlier calls still wait for their backward pass, all of them together keep one part for each domain
        that they passed through.
        """
        kept = sum(graph.parts for graph in self._graphs)
        passed = domains + sum(graph.domains for graph in self._graphs)
        room = max(passed, self.domains) - kept
        own = room if not self._graphs else max(0, passed - kept)
        return _KeptRows(domains, min(own, domains * self.accumulate)), max(1, room)

    def _batch_norm(self, layer: nn.modules.batchnorm._BatchNorm, forward: Callable[[Tensor], Tensor]) -> Any:
        def of_all_rows(x: Tensor) -> Tensor:
            if not (self._active and layer.training):
                return forward(x)
            return batch_norm_of_all(layer, x)

        return of_all_rows


def batch_norm_of_all(layer: nn.modules.batchnorm._BatchNorm, x: Tensor) -> Tensor:
    """A training batch norm of (n, c, ...) by the mean and variance of the rows of all workers."""
    dims = [d for d in range(x.dim()) if d != 1]
    shape = [1, -1] + [1] * (x.dim() - 2)
    count = x.new_full((1,), x.numel() / x.shape[1])
    total, rows = _Summed.apply(x.sum(dims), count)
    mean = total / rows
    (used,) = _Copied.apply(mean)
    centred = x - used.view(shape)
    (squares,) = _Summed.apply(centred.square().sum(dims))
    (variance,) = _Copied.apply(squares / rows)
    if layer.track_running_stats and layer.running_mean is not None and layer.running_var is not None:
        with torch.no_grad():
            assert layer.num_batches_tracked is not None
            layer.num_batches_tracked.add_(1)
            share = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
            layer.running_mean.lerp_(mean.detach(), share)
            layer.running_var.lerp_(squares.detach() / (rows - 1), share)
    out = centred / (variance + layer.eps).sqrt().view(shape)
    if layer.affine:
        out = out * layer.weight.view(shape) + layer.bias.view(shape)
    return out


_current: DividedRows | None = None  # whose forward pass this process is in


@contextmanager
def _running(divided: DividedRows) -> Iterator[None]:
    global _current
    before, _current = _current, divided
    try:
        yield
    finally:
        _current = before


def own_rows(values: Tensor) -> Tensor:
    """Inside a divided network: this worker's rows of (n, ...) given for the whole batch. Elsewhere all of them.

    For code that changes maps inside a network, such as a forward hook. The gradient is that of all rows.
    """
    if _current is None or _current.workers.size == 1:
        return values if _current is None else _current.check_whole(values)
    grouped = values.unflatten(0, (-1, _current.batch_size))
    return _current.check_whole(_Taken.apply(grouped)).flatten(0, 1)


def all_rows(values: Tensor) -> Tensor:
    """Inside a divided network: (n, ...) of the whole batch from this worker's rows. Elsewhere as they are."""
    if _current is None or _current.workers.size == 1:
        return values if _current is None else _current.check_whole(values)
    start, end = _current.workers.share(_current.batch_size)
    grouped = _current.check_whole(values).unflatten(0, (-1, end - start))
    return _Gathered.apply(grouped, _current.batch_size).flatten(0, 1)


@contextmanager
def _handing_over(network: nn.Module, parameters: Iterable[str], sums: GradientSums) -> Iterator[None]:
    """Inside, a module that is called first has its parameters replaced by ones that hand their gradients to ``sums``.

    ``_swapped`` puts back what was there. A parameter whose module is not called itself is summed after the pass.
    """
    own: dict[nn.Module, list[tuple[str, str]]] = {}
    for name in parameters:
        path, _, leaf = name.rpartition(".")
        own.setdefault(network.get_submodule(path), []).append((leaf, name))

    def replace(module: nn.Module, arguments: object = ()) -> None:
        for leaf, name in own.pop(module, ()):  # once: a module that is called again uses the same ones
            value = module._parameters[leaf]
            module._parameters[leaf] = _HandedOver.apply(sums, name, value)

    replace(network)
    hook = register_module_forward_pre_hook(replace)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _swapped(module: nn.Module, values: dict[str, Tensor]) -> Iterator[None]:
    """The module with other tensors in the place of its parameters, as in ``torch.func.functional_call``."""
    owners: list[tuple[nn.Module, str, Any]] = []
    for name, value in values.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        owners.append((owner, leaf, owner._parameters[leaf]))
        owner._parameters[leaf] = value  # type: ignore[assignment]
    try:
        yield
    finally:
        for owner, leaf, before in owners:
            owner._parameters[leaf] = before


# --- rows that are evaluated, each by one worker -------------------------------------------------------------------


def _device() -> torch.device:
    """Where values must be for a message: on the GPU where that is what carries them."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def own_chunks(rows: np.ndarray, size: int) -> np.ndarray:
    """Every so many-th chunk of ``size`` rows, this worker's: (n,) -> (k,). Chunks stay whole, so that a prediction
    which depends on its batch is the same on any number of workers.

    >>> own_chunks(np.arange(5), 2).tolist()
    [0, 1, 2, 3, 4]
    """
    here = workers()
    chunk = np.arange(len(rows)) // size
    return rows[chunk % here.size == here.rank]


def gathered_chunks(values: Tensor, rows: int, size: int) -> Tensor:
    """The values (n, ...) of all rows in order, from those that each worker has for its ``own_chunks`` (k, ...)."""
    here = workers()
    if here.size == 1:
        return values
    owner = (torch.arange(rows) // size) % here.size
    counts = torch.bincount(owner, minlength=here.size).tolist()
    padded = torch.zeros(max(counts), *values.shape[1:], dtype=values.dtype, device=_device())
    padded[: len(values)] = values
    pieces = [torch.empty_like(padded) for _ in counts]
    TRAFFIC.add("evaluated", padded)
    dist.all_gather(pieces, padded)
    result = values.new_empty(rows, *values.shape[1:])
    for rank, count in enumerate(counts):
        result[owner.to(values.device) == rank] = pieces[rank][:count].to(values.device)
    return result


def agree(what: str, value: str) -> None:
    """Raises where workers differ in something that must be the same for all, such as the code or the data."""
    here = workers()
    if here.size == 1:
        return
    digest = hashlib.sha256(value.encode()).digest()[:8]
    mine = torch.tensor([int.from_bytes(digest, "big", signed=True)])
    found = [torch.empty_like(mine, device=_device()) for _ in range(here.size)]
    dist.all_gather(found, mine.to(_device()))
    others = [rank for rank, other in enumerate(found) if int(other) != int(found[0])]
    if others:
        raise InputError(
            f"{what} of worker {others[0]} differs from that of worker 0: give every machine the same version of the "
            "code and the same data."
        )


# --- starting, and failing together ---------------------------------------------------------------------------------


@contextmanager
def process_group(device: str = "cpu") -> Iterator[Workers]:
    """The workers of this run, as the environment names them (``torchrun`` sets it); one of one without it.

    Whoever has started a process group already, as Ray Train does, keeps it.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or dist.is_initialized():
        yield workers()
        return
    rank = int(os.environ.get("RANK", "0"))
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # torch's optimizers import this at their first step, and what it then keeps of the group outlives it: its threads
    # would still run when the interpreter ends, which now and then ends it by SIGABRT
    importlib.import_module("torch._dynamo")
    dist.init_process_group(
        "nccl" if device.startswith("cuda") else "gloo",
        store=_meet(rank, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=SILENCE_SECONDS),
    )
    try:
        yield workers()
    finally:
        dist.destroy_process_group()


def _meet(rank: int, size: int) -> dist.Store:
    """The store through which workers find each other, once all of them are there."""
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    # torchrun's own agent holds the store; it starts workers again after a failure, each time under another count
    held = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    wait = timedelta(seconds=ARRIVAL_SECONDS)
    missing = f"the first worker at {host}:{port}"
    try:
        store = dist.TCPStore(host, port, size, rank == 0 and not held, wait, wait_for_workers=False)
        meeting = dist.PrefixStore(f"rcalign/{attempt}", store)
        meeting.set(f"arrived/{rank}", "yes")
        for other in range(size):
            missing = f"worker {other}"
            meeting.wait([f"arrived/{other}"], wait)
    except (dist.DistError, RuntimeError, ValueError) as error:
        if "in use" in str(error):
            raise InputError(f"the port {port} of {host} is in use by another process: choose another.") from None
        raise InputError(
            f"worker {rank} of {size} waited {ARRIVAL_SECONDS} s for {missing}: start all {size} workers, and see that "
            "they reach each other."
        ) from None
    return meeting


def together(act: Callable[[], T]) -> T:
    """What ``act`` returns, once every worker has run it; an ``InputError`` of one worker is raised by all of them.

    Without this, the others would wait forever for a worker that has given up.

    >>> together(lambda: 3)
    3
    """
    if workers().size == 1:
        return act()
    results: list[T] = []
    problem = ""
    try:
        results.append(act())
    except InputError as error:
        problem = str(error)
    _raise_any(problem)
    return results[0]


def first_alone(act: Callable[[], object]) -> None:
    """Runs ``act`` on the first worker only; the others wait for it, and raise its ``InputError`` if it has one."""
    here = workers()
    together(act if here.is_first else lambda: None)


def _raise_any(problem: str) -> None:
    """Raises what any worker has to complain of; "" is nothing."""
    text = problem.encode()[:MESSAGE_BYTES]
    mine = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
    mine[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    found = [torch.empty_like(mine, device=_device()) for _ in range(workers().size)]
    dist.all_gather(found, mine.to(_device()))
    for rank, message in enumerate(found):
        said = bytes(message.tolist()).rstrip(b"\0").decode(errors="replace")
        if said:
            raise InputError(said if rank == 0 else f"worker {rank}: {said}")


def any_worker(flag: bool) -> bool:
    """Whether the flag is set on any worker.

    >>> any_worker(False)
    False
    """
    if workers().size == 1:
        return flag
    value = torch.tensor([int(flag)], device=_device())
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return bool(value.item())


def smallest(value: int) -> int:
    """The smallest value of any worker.

    >>> smallest(3)
    3
    """
    if workers().size == 1:
        return value
    found = torch.tensor([value], device=_device())
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return int(found.item())
