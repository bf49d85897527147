"""Batches as a pure function of (seed, step): no position to save, no order that workers could change."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from rcalign.data.augment import Augmentation
from rcalign.data.cache import ImageStore
from rcalign.data.source import Arrays
from rcalign.distributed import Workers
from rcalign.errors import InputError
from rcalign.types import Batch

StoredRows = ImageStore | Arrays | np.ndarray
AHEAD = 2  # batches prepared before they are asked for, for each worker
KEPT = 1  # batches taken before the last one whose images are still theirs
Prepared = tuple[Batch, torch.cuda.Event | None]  # and when a GPU has it
ROWS, COLOURS, UNLABELLED = 0, 1, 2  # which random stream of a step: row numbers, augmentation, unlabelled rows


class Batches:
    """``batch_size`` rows of each source domain, drawn with replacement.

    content: an ImageStore (with an augmentation) or rows of numbers. y: (n,) int64 of all rows. rows: the training rows
    of each source domain, in the order of ``Batch.domain``. balanced: draw a class among those the domain has, each as
    likely as the next, then one of its rows; only labels are read for that. weights: (n,) of all rows; a row is drawn
    from its domain (or class) in proportion to its weight, by default each alike. workers: only this worker's share of
    each domain's rows is read; the other rows of ``x`` are not numbers, so that nobody can use them unnoticed.
    unlabelled: rows of each target domain, of which ``batch_size`` are in every batch too, without their labels and
    without augmentation, as in DomainBed.

    >>> content = Arrays(np.arange(8, dtype=np.float32)[:, None])
    >>> batches = Batches(content, np.array([0, 1] * 4), [np.arange(4), np.arange(4, 8)], batch_size=3, seed=0)
    >>> batch = batches.at(5)
    >>> batch.sizes, bool((batch.x == batches.at(5).x).all()), bool((batch.index[3:] >= 4).all())
    ((3, 3), True, True)
    """

    def __init__(
        self,
        content: StoredRows,
        y: np.ndarray,
        rows: Sequence[np.ndarray] | Mapping[str, np.ndarray],
        batch_size: int,
        seed: int,
        *,
        balanced: bool = False,
        augmentation: Augmentation | None = None,
        device: torch.device | str = "cpu",
        workers: Workers = Workers(),  # noqa: B008  (frozen)
        weights: np.ndarray | None = None,
        unlabelled: Sequence[np.ndarray] = (),
    ) -> None:
        parts = list(rows.values()) if isinstance(rows, Mapping) else list(rows)
        for k, part in enumerate(parts):
            if len(part) == 0:
                raise InputError(f"source domain {k} has no training rows, so that no batch can be drawn from it.")
        if isinstance(content, ImageStore):
            _needed(augmentation)
        self._content = content
        self._y = np.asarray(y, dtype=np.int64)
        self._rows = [np.asarray(part, dtype=np.int64) for part in parts]
        self._unlabelled = [np.asarray(part, dtype=np.int64) for part in unlabelled]
        self._batch_size = batch_size
        self._seed = seed
        self._augmentation = augmentation
        self._device = _named(torch.device(device))
        self._workers = workers
        self._sizes = (batch_size,) * len(parts)
        self._domain = torch.arange(len(parts)).repeat_interleave(batch_size).to(self._device)
        self._weights = None if weights is None else np.asarray(weights, dtype=np.float64)
        self._by_class: list[list[np.ndarray]] | None = None
        if balanced:
            self._by_class = [[part[self._y[part] == c] for c in np.unique(self._y[part])] for part in self._rows]

    def indices(self, step: int) -> list[np.ndarray]:
        """The rows of a step, one array for each domain."""
        return [self._draw(k, np.random.default_rng([self._seed, step, k, ROWS])) for k in range(len(self._rows))]

    def _draw(self, k: int, rng: np.random.Generator) -> np.ndarray:
        if self._by_class is None:
            if self._weights is not None:
                return _weighted(self._rows[k], self._weights, rng.random(self._batch_size))
            return self._rows[k][rng.integers(len(self._rows[k]), size=self._batch_size)]
        classes = self._by_class[k]
        which = rng.integers(len(classes), size=self._batch_size)
        place = rng.random(self._batch_size)  # one draw each, so that a row does not depend on the others' classes
        if self._weights is not None:
            return np.array(
                [_weighted(classes[c], self._weights, np.array([p]))[0] for c, p in zip(which, place, strict=True)]
            )
        return np.array([classes[c][int(p * len(classes[c]))] for c, p in zip(which, place, strict=True)], np.int64)

    def at(self, step: int, out: Tensor | None = None) -> Batch:
        """The batch of a step, on the device."""
        parts = self.indices(step)
        rows = np.concatenate(parts)
        x = self._inputs(rows, step, out=out) if self._workers.size == 1 else self._own_inputs(rows, step)
        y, index = torch.from_numpy(self._y[rows]), torch.from_numpy(rows)
        values = (x, _moved(y, self._device), self._domain, _moved(index, self._device), self._sizes)
        return Batch(*values, self._unlabelled_at(step), (self._batch_size,) * len(self._unlabelled))

    def _unlabelled_at(self, step: int) -> Tensor | None:
        """Network inputs of the target domains; of several workers, only this one's rows are read."""
        if not self._unlabelled:
            return None
        drawn = [
            part[np.random.default_rng([self._seed, step, k, UNLABELLED]).integers(len(part), size=self._batch_size)]
            for k, part in enumerate(self._unlabelled)
        ]
        rows = np.concatenate(drawn)
        positions = self._workers.positions(len(drawn), self._batch_size)
        (own,) = evaluation_batches(self._content, rows[positions], len(positions), self._augmentation, self._device)
        return own if self._workers.size == 1 else _among_nans(own, positions, len(rows))

    def _inputs(
        self, rows: np.ndarray, step: int, positions: np.ndarray | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Network inputs of a step's rows, or of those at some positions among them. out: memory for them."""
        chosen = rows if positions is None else rows[positions]
        if not isinstance(self._content, ImageStore):
            return _moved(_rows(self._content, chosen), self._device)
        rng = np.random.default_rng([self._seed, step, len(self._rows), COLOURS])
        images = _moved(self._content.take(chosen), self._device)
        return _needed(self._augmentation).train(images, rng, positions, len(rows), out=out)

    def _ring(self, length: int) -> list[Tensor | None]:
        """Memory for so many batches of images on a CPU, where fresh pages cost as much as half of the colours."""
        if not isinstance(self._content, ImageStore) or self._device.type != "cpu" or self._workers.size > 1:
            return [None] * length
        rows, size = len(self._rows) * self._batch_size, _needed(self._augmentation).size
        return [torch.empty(rows, size, size, 3) for _ in range(length)]

    def _own_inputs(self, rows: np.ndarray, step: int) -> Tensor:
        """Network inputs of the whole step, of which only this worker's are read."""
        positions = self._workers.positions(len(self._rows), self._batch_size)
        return _among_nans(self._inputs(rows, step, positions), positions, len(rows))

    def iterate(self, start: int, stop: int, workers: int = 0) -> Iterator[Batch]:
        """The batches of steps start ... stop - 1, prepared ahead by threads; the same bits for any number of them.

        The images of a batch are valid until ``KEPT`` more batches were taken: their memory is then written again.
        """
        ring = self._ring(AHEAD * workers + 1 + KEPT)
        if workers == 0:
            yield from (self.at(step, ring[step % len(ring)]) for step in range(start, stop))
            return
        side = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        with ThreadPoolExecutor(workers) as pool:
            waiting: deque[Future[Prepared]] = deque()
            try:
                for step in range(start, stop):
                    waiting.append(pool.submit(self._ahead, step, ring[step % len(ring)], side))
                    if len(waiting) > AHEAD * workers:
                        yield _taken(*waiting.popleft().result())
                while waiting:
                    yield _taken(*waiting.popleft().result())
            finally:
                for future in waiting:
                    future.cancel()

    def _ahead(self, step: int, out: Tensor | None, side: torch.cuda.Stream | None) -> Prepared:
        """A batch prepared by a thread; on a GPU on a stream of its own, beside the steps of the network."""
        if side is None:
            return self.at(step, out), None
        with torch.cuda.stream(side):
            return self.at(step, out), side.record_event()


def _taken(batch: Batch, ready: torch.cuda.Event | None) -> Batch:
    """A prepared batch for the stream of the caller: the GPU waits until it is there, the host does not."""
    if ready is not None:
        stream = torch.cuda.current_stream(batch.x.device)
        stream.wait_event(ready)
        unlabelled = () if batch.unlabelled is None else (batch.unlabelled,)
        for values in (batch.x, batch.y, batch.domain, batch.index, *unlabelled):
            values.record_stream(stream)  # its memory belongs to the other stream, which must not use it again yet
    return batch


def evaluation_batches(
    content: StoredRows,
    indices: Sequence[int] | np.ndarray,
    size: int,
    augmentation: Augmentation | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    """Network inputs in the given order, ``size`` rows at a time. Nothing is random, no random stream is touched.

    >>> content = Arrays(np.arange(5, dtype=np.float32)[:, None])
    >>> [x.flatten().tolist() for x in evaluation_batches(content, [4, 0, 2], 2)]
    [[4.0, 0.0], [2.0]]
    """
    rows, place = np.asarray(indices, dtype=np.int64), torch.device(device)
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        if isinstance(content, ImageStore):
            yield _needed(augmentation).evaluate(_moved(content.take(part), place))
        else:
            yield _moved(_rows(content, part), place)


def _named(device: torch.device) -> torch.device:
    """The device with its number: another thread's current GPU is the first one, whatever this thread's is."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _moved(values: Tensor, device: torch.device) -> Tensor:
    """On the device; to a GPU through pinned memory, so that the host does not wait for the copy."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def _among_nans(own: Tensor, positions: np.ndarray, rows: int) -> Tensor:
    """(k, ...) at some positions of (rows, ...), whose other rows are not numbers."""
    x = torch.full((rows, *own.shape[1:]), torch.nan, dtype=own.dtype, device=own.device)
    if own.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    x[torch.from_numpy(positions)] = own
    return x


def _weighted(rows: np.ndarray, weights: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The rows at places in [0, 1), each row as wide as its weight says."""
    ends = np.cumsum(weights[rows])
    return rows[np.minimum(np.searchsorted(ends, places * ends[-1], side="right"), len(rows) - 1)]


def _rows(content: Arrays | np.ndarray, rows: np.ndarray) -> Tensor:
    values = content.x if isinstance(content, Arrays) else content
    return torch.from_numpy(np.ascontiguousarray(values[rows]))


def _needed(augmentation: Augmentation | None) -> Augmentation:
    if augmentation is None:
        raise InputError("images were given without an augmentation: give at least one that resizes and normalises.")
    return augmentation
