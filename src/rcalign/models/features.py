"""Outputs of a network that is not trained, for every row of a data set: computed once, for all processes.

They lie in the cache as one ``.npy`` file for each key, read by memory mapping. While they are computed the file is
called ``….partial`` and grows by whole batches, so that nothing but the last seconds is lost when the process ends,
however it ends; the next one goes on there, with the same batches and hence the same bits. A lock makes others wait. A
small JSON file beside it says how far the work is: ``underway`` reads it, for whoever waits or watches.

The workers of one run divide the batches among them and exchange what they computed; one worker for each cache folder
writes. Batches stay whole, so that the file has the same bits for any number of workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor, nn

from rcalign.data.cache import cache_disk_errors, cache_root, remember
from rcalign.data.forecasts import ForecastWork
from rcalign.distributed import any_worker, gathered_chunks, own_chunks, smallest, together, workers
from rcalign.errors import InputError
from rcalign.models.weights import weights_fingerprint
from rcalign.store.json_files import read_object
from rcalign.store.locks import acquire, waited_for

FOLDER = "features"
SYNC_EVERY = 5.0  # seconds between two moments at which what was computed is safe on the disk
WAIT = 0.5  # seconds between two looks at whether another process is done
RECENT = 60.0  # seconds after which a progress file that does not change is a dead process's

InputBatches = Callable[[np.ndarray], Iterator[Tensor]]


@dataclass(frozen=True)
class Underway:
    """A computation in some process. seconds_left: None before there is something to go by."""

    what: str
    done: int
    rows: int
    seconds_left: float | None

    def __str__(self) -> str:
        """
        >>> str(Underway("features", 4096, 9991, 170.0))
        'features: 4,096 of 9,991 rows, 3 min left'
        """
        left = "" if self.seconds_left is None else f", {max(1, round(self.seconds_left / 60))} min left"
        return f"{self.what}: {self.done:,} of {self.rows:,} rows{left}"


def underway() -> list[Underway]:
    """What processes on this machine are computing now."""
    folder = cache_root() / FOLDER
    found = []
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        state = read_object(file)
        if state is not None and time.time() - state["time"] < RECENT:
            found.append(Underway(state["what"], state["done"], state["rows"], state["seconds_left"]))
    return found


def computed_once(
    module: nn.Module,
    inputs: InputBatches,
    rows: int,
    *,
    key: Sequence[object],
    dtype: str = "float32",
    what: str = "features of the frozen backbone",
    progress: bool = False,
    batch_size: int | None = None,
) -> np.ndarray:
    """module(x) for all rows, (rows, ...) of ``dtype`` (float16 or float32), mapped read-only from the cache.

    module: put into evaluation mode and used on the device where it is; its weights and structure are part of the key.
    inputs: row numbers -> batches of network inputs in that order. key: whatever else decides what the inputs are.
    batch_size: the rows of such a batch; where it is given, the workers of a run, all of which must call this, divide
    the batches among them.

    >>> import tempfile
    >>> os.environ["RCALIGN_CACHE"] = tempfile.mkdtemp()
    >>> x = torch.arange(6.0)[:, None]
    >>> net = nn.Linear(1, 2)
    >>> found = computed_once(net, lambda rows: (x[part] for part in np.split(rows, 3)), 6, key=["doctest"])
    >>> found.shape, bool(np.allclose(found, net(x).detach()))
    ((6, 2), True)
    """
    structure = re.sub(r" at 0x[0-9a-f]+", "", repr(module))
    parts = [*map(str, key), weights_fingerprint(module), structure, str(rows), dtype]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]
    file = cache_root() / FOLDER / f"{digest}.npy"
    found = _whole(file, rows)
    if batch_size is not None and any_worker(found is None):
        _compute_together(module, inputs, rows, file, np.dtype(dtype), what, batch_size, progress)
        found = _whole(file, rows)
    if found is not None:
        return found
    with _bar(what, rows, progress) as show, _alone(file.with_suffix(".lock"), lambda: show(_done(file))):
        found = _whole(file, rows)  # another process may have been at it while this one waited
        if found is None:
            _compute(module, inputs, rows, file, np.dtype(dtype), what, show)
            found = _whole(file, rows)
    if found is None:
        raise InputError(f"'{file}' was written but cannot be read: remove it and run the same command again.")
    return found


def _whole(file: Path, rows: int) -> np.ndarray | None:
    """The array of a finished file, or None."""
    try:
        found = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if len(found) == rows else None


def _compute(
    module: nn.Module,
    inputs: InputBatches,
    rows: int,
    file: Path,
    dtype: np.dtype[Any],
    what: str,
    show: Callable[[int], None],
) -> None:
    module.eval()
    with cache_disk_errors(file.parent), _Growing(file, rows, dtype, what) as growing, torch.inference_mode():
        show(growing.done)
        work = ForecastWork(f"{what}, {rows:,} rows", rows, rows)
        for x in inputs(np.arange(growing.done, rows)):
            growing.append(module(x).to("cpu", torch.float32).numpy())
            show(growing.done)
            work.advance(len(x), rows - growing.done)
        if growing.done != rows:
            raise ValueError(f"{growing.done} rows came of the inputs, {rows} were expected")
        growing.finish()


def _compute_together(
    module: nn.Module,
    inputs: InputBatches,
    rows: int,
    file: Path,
    dtype: np.dtype[Any],
    what: str,
    batch_size: int,
    progress: bool,
) -> None:
    """Divides what is missing among the workers; each gets everything, and whoever holds the lock of its cache writes.

    With one worker, and where another program holds the lock, nothing is written here: the caller computes or waits.
    """
    size = workers().size
    if size == 1:
        return
    module.eval()
    with contextlib.ExitStack() as stack:

        def opened() -> _Growing | None:
            with cache_disk_errors(file.parent):
                file.parent.mkdir(parents=True, exist_ok=True)
                lock = acquire(file.with_suffix(".lock"), what="cache")
                if lock is None:
                    return None
                stack.callback(lock.release)
                return stack.enter_context(_Growing(file, rows, dtype, what)) if _whole(file, rows) is None else None

        growing = together(opened)
        # from a whole batch on, so that batches are the same for any number of workers
        first = smallest(rows if growing is None else growing.done) // batch_size * batch_size
        show = stack.enter_context(_bar(what, rows, progress and workers().is_first))
        mine = iter(inputs(own_chunks(np.arange(first, rows), batch_size)))
        problem: InputError | None = None  # raised at the end: until then the others wait for this worker's batches
        for start in range(first, rows, batch_size * size):
            part = np.arange(start, min(rows, start + batch_size * size))
            has_batch = len(own_chunks(part, batch_size)) > 0
            with torch.inference_mode():
                # a worker without a batch in the last round learns the shape from one row
                computed = module(next(mine) if has_batch else next(iter(inputs(part[:1]))))
            own = computed.to("cpu", torch.float32)[: len(part) if has_batch else 0]
            values = gathered_chunks(own, len(part), batch_size).numpy()
            show(int(part[-1]) + 1)
            if growing is not None and problem is None:
                try:
                    with cache_disk_errors(file.parent):
                        growing.append(values[max(0, growing.done - start) :])
                except InputError as error:
                    problem = error

        def finish() -> None:
            if problem is not None:
                raise problem
            if growing is not None:
                with cache_disk_errors(file.parent):
                    growing.finish()

        together(finish)  # those that do not write wait here until the file is whole


class _Growing:
    """The file while it is written: a header for all rows, and as many rows as there are."""

    def __init__(self, file: Path, rows: int, dtype: np.dtype[Any], what: str) -> None:
        self._file, self._rows, self._dtype, self._what = file, rows, dtype, what
        self._partial, self._state = file.with_suffix(".partial"), file.with_suffix(".json")
        self._out: IO[bytes] | None = None
        self._shape: tuple[int, ...] | None = None
        self.done = self._resumed()
        self._begun, self._first, self._synced = time.monotonic(), self.done, time.monotonic()

    def _resumed(self) -> int:
        """Opens what an earlier process left behind, cut to the rows that it knew to be safe. -> how many."""
        state = read_object(self._state) or {}
        try:
            out = open(self._partial, "r+b")  # noqa: SIM115  (closed by __exit__)
        except FileNotFoundError:
            return 0
        try:
            npy.read_magic(out)
            shape, _, dtype = npy.read_array_header_1_0(out)
            start = out.tell()
            width = int(np.prod(shape[1:])) * dtype.itemsize
            done = min(int(state["done"]), (self._partial.stat().st_size - start) // width)
            if (shape[0], dtype) != (self._rows, self._dtype):
                raise ValueError("another array")
        except (ValueError, TypeError, KeyError, ZeroDivisionError):  # not what was written: from the beginning
            out.close()
            return 0
        out.truncate(start + done * width)
        out.seek(0, os.SEEK_END)
        self._out, self._shape = out, shape[1:]
        return done

    def append(self, batch: np.ndarray) -> None:
        if self._out is None:
            self._shape = batch.shape[1:]
            self._out = open(self._partial, "w+b")  # noqa: SIM115
            header = {
                "descr": npy.dtype_to_descr(self._dtype),
                "fortran_order": False,
                "shape": (self._rows, *self._shape),
            }
            npy.write_array_header_1_0(self._out, header)
        if batch.shape[1:] != self._shape:
            raise ValueError(f"outputs of shape {batch.shape[1:]} follow those of shape {self._shape}")
        self._out.write(np.ascontiguousarray(batch, dtype=self._dtype).data)
        self.done += len(batch)
        if time.monotonic() - self._synced > SYNC_EVERY:
            self.sync()

    def sync(self) -> None:
        if self._out is None:
            return
        self._out.flush()
        os.fsync(self._out.fileno())
        self._synced = time.monotonic()
        new = self.done - self._first
        left = (self._synced - self._begun) * (self._rows - self.done) / new if new else None
        state = {"what": self._what, "done": self.done, "rows": self._rows, "seconds_left": left, "time": time.time()}
        remember(self._state, {**state, "pid": os.getpid()})

    def finish(self) -> None:
        self.sync()
        os.replace(self._partial, self._file)
        self._state.unlink(missing_ok=True)

    def __enter__(self) -> _Growing:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._out is not None:
            if kind is not None:  # also Ctrl-C and SystemExit: what is computed stays
                self.sync()
            self._out.close()


def _done(file: Path) -> int:
    """How many rows the process that holds the lock has."""
    state = read_object(file.with_suffix(".json"))
    return 0 if state is None else int(state["done"])


@contextmanager
def _alone(lock: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the lock of a lock file, after waiting for it. waiting: called now and then until it is free."""
    with cache_disk_errors(lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    with waited_for(lock, "cache", waiting, WAIT):
        yield


@contextmanager
def _bar(what: str, rows: int, wanted: bool) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not wanted, transient=True) as bar:
        task = bar.add_task(what, total=rows)
        yield lambda done: bar.update(task, completed=done)
