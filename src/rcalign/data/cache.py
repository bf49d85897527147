"""Decode once: every image of a data set as uint8 at one size, in memory-mapped shards on disk.

The cache lies under ``$RCALIGN_CACHE`` or ``~/.cache/rcalign``, one folder for each (state of the files, size). It is
built in a folder ``….partial`` that is renamed when whole; finished shards survive a kill. A lock file keeps a second
process waiting until the first is done. Changed files have another state, hence another cache; the old one is removed.
What is kept of a picture is defined in ``picture``.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rcalign.data.picture import RECIPE, BadImage, check_header, decode, to_stored
from rcalign.data.source import Dataset, ImageArray, Images
from rcalign.errors import InputError
from rcalign.files import write_whole

if TYPE_CHECKING:
    from torch import Tensor

A = TypeVar("A")
B = TypeVar("B")
META = "meta.json"
SHARD_BYTES = 256 * 2**20
MAPPED_BYTES = 64 * 2**20  # read before pages are given back; the system maps about four times as many


def cache_root() -> Path:
    """``$RCALIGN_CACHE`` or ``~/.cache/rcalign``, created if need be."""
    path = Path(os.environ.get("RCALIGN_CACHE") or Path.home() / ".cache" / "rcalign").absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the cache folder '{path}' cannot be made ({error.strerror}): set RCALIGN_CACHE to a folder that "
            "you may write to."
        ) from None
    return path


# --- checked files ------------------------------------------------------------------------------------------------


def bad_files(
    fingerprint: str, paths: Sequence[Path], stats: Sequence[os.stat_result], *, thorough: bool, progress: bool = False
) -> dict[int, str]:
    """Row -> why its file is not an image; remembered by fingerprint, so that files are checked once.

    thorough: decode each file wholly; otherwise look at sizes and headers only.
    """
    known = _remembered(fingerprint)
    if known is not None and (known["thorough"] or not thorough):
        return {int(row): why for row, why in known["bad"].items()}
    check: Callable[[Path], Any] = (lambda path: decode(path, 32)) if thorough else check_header
    bad: dict[int, str] = {}

    def look(row: int) -> str | None:
        if stats[row].st_size == 0:
            return "it is empty (zero bytes)"
        try:
            check(paths[row])
        except BadImage as found:
            return str(found)
        return None

    for row, why in enumerate(in_threads(look, range(len(paths)), "Checking images", progress)):
        if why is not None:
            bad[row] = why
    remember_bad(fingerprint, bad, thorough=thorough)
    return bad


def remember_bad(fingerprint: str, bad: dict[int, str], *, thorough: bool) -> None:
    write_json(cache_root() / "checked" / f"{fingerprint[:32]}.json", {"thorough": thorough, "bad": bad})


def _remembered(fingerprint: str) -> dict[str, Any] | None:
    return read_json(cache_root() / "checked" / f"{fingerprint[:32]}.json")


# --- the store ---------------------------------------------------------------------------------------------------


class ImageStore:
    """n images as uint8 (size, size, 3), read row by row from shards."""

    def __init__(self, shards: Sequence[np.ndarray], size: int) -> None:
        self.size = size
        self._shards = list(shards)  # each uint8 (rows, size, size, 3)
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])
        self._touched = 0

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, indices: Sequence[int] | np.ndarray) -> Tensor:
        """The given rows: uint8 (n, size, size, 3), a copy."""
        rows = np.asarray(indices, dtype=np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows from 0 to {len(self) - 1} exist, but {rows.min()} to {rows.max()} were asked for")
        out = np.empty((len(rows), self.size, self.size, 3), np.uint8)
        shard = np.searchsorted(self._starts, rows, side="right") - 1
        for i, (row, s) in enumerate(zip(rows, shard, strict=True)):
            out[i] = self._shards[s][row - self._starts[s]]
        self._release(out.nbytes)
        import torch  # here and not above: a list of data sets does without it

        return torch.from_numpy(out)

    def _release(self, read: int) -> None:
        """Unmaps pages now and then. They stay in the system's file cache; this process's memory stays bounded."""
        self._touched += read
        if self._touched > MAPPED_BYTES:
            self._touched = 0
            for shard in self._shards:
                mapped = getattr(shard, "_mmap", None)
                if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
                    mapped.madvise(mmap.MADV_DONTNEED)


def open_images(dataset: Dataset, size: int, *, progress: bool = False) -> ImageStore:
    """The images of a data set at one size: from the cache, which is built first if need be.

    A file that turns out not to be a whole image is an error that names it; ``load(..., skip_bad=True)`` leaves such
    files out.
    """
    if size < 1:
        raise InputError(f"the image size is {size}, but must be at least 1.")
    content = dataset.content
    if isinstance(content, ImageArray):
        return ImageStore([_resized(content.x, size)], size)
    if not isinstance(content, Images):
        raise InputError(f"data set '{dataset.name}' has no images: its rows are numbers.")
    rows = len(content)
    per_shard = max(1, SHARD_BYTES // (size * size * 3))
    state = content.state or dataset.fingerprint
    key = hashlib.sha256(f"{state} {size} {per_shard} {RECIPE}".encode()).hexdigest()[:32]
    folder = cache_root() / "images" / key
    lengths = [min(per_shard, rows - start) for start in range(0, rows, per_shard)]
    if not _whole(folder, lengths, size):
        with process_lock(folder.with_suffix(".lock"), "Another process is decoding these images: waiting for it."):
            if not _whole(folder, lengths, size):  # another process may have built it while this one waited
                shutil.rmtree(folder, ignore_errors=True)
                _build(dataset, folder, lengths, size, progress)
    return ImageStore([_map(folder, i, length, size) for i, length in enumerate(lengths)], size)


def _shard(folder: Path, i: int) -> Path:
    return folder / f"{i:05d}.uint8"


def _map(folder: Path, i: int, length: int, size: int) -> np.ndarray:
    return np.memmap(_shard(folder, i), np.uint8, "r", shape=(length, size, size, 3))


def _whole(folder: Path, lengths: Sequence[int], size: int) -> bool:
    try:
        return all(_shard(folder, i).stat().st_size == n * size * size * 3 for i, n in enumerate(lengths))
    except OSError:
        return False


def _build(dataset: Dataset, folder: Path, lengths: Sequence[int], size: int, progress: bool) -> None:
    assert isinstance(dataset.content, Images)
    paths = dataset.content.paths
    partial = folder.with_suffix(".partial")
    with disk_errors(partial):
        partial.mkdir(parents=True, exist_ok=True)
    listing = hashlib.sha256("\0".join(map(os.fspath, paths)).encode("utf-8", "surrogateescape")).hexdigest()
    outdated = _outdated(folder, listing, size)
    if any(read_json(old / META).get("recipe") == RECIPE for old in outdated):
        print("The image files changed since they were cached: decoding them again.", file=sys.stderr, flush=True)
    row_bytes = size * size * 3
    done = [_has(_shard(partial, i), n * row_bytes) for i, n in enumerate(lengths)]
    to_write = sum(n * row_bytes for n, have in zip(lengths, done, strict=True) if not have)
    _check_room(partial, to_write, len(paths), size)
    bad: dict[int, str] = {}

    def one(row: int) -> np.ndarray | None:
        try:
            return decode(paths[row], size)
        except BadImage as why:
            bad[row] = str(why)
            return None

    def images() -> Iterator[None]:
        start = 0
        for i, (length, have) in enumerate(zip(lengths, done, strict=True)):
            if have:
                yield from (None for _ in range(length))
            else:
                yield from _write_shard(_shard(partial, i), _mapped(pool, one, range(start, start + length)))
            start += length

    with ThreadPoolExecutor(_cores()) as pool:
        note = f"Decoding images ({to_write / 2**20:,.0f} MiB cache)"
        for _ in _progress(images(), len(paths), note, progress):
            pass
    remember_bad(dataset.fingerprint, bad, thorough=True)
    if bad:
        first = min(bad)
        others = f" (and {len(bad) - 1} more such files)" if len(bad) > 1 else ""
        raise InputError(
            f"'{paths[first]}'{others} is not a whole image: {bad[first]}; replace or remove it, or go on without it "
            "with `skip_bad`."
        )
    write_json(
        partial / META, {"name": dataset.name, "listing": listing, "size": size, "rows": len(paths), "recipe": RECIPE}
    )
    os.rename(partial, folder)
    for old in outdated:
        shutil.rmtree(old, ignore_errors=True)  # a process that has it open keeps what it mapped


def _outdated(folder: Path, listing: str, size: int) -> list[Path]:
    """Caches of the same files at the same size, from when the files were different."""
    found = []
    for meta in folder.parent.glob(f"*/{META}"):
        known = read_json(meta)
        if meta.parent != folder and known and (known.get("listing"), known.get("size")) == (listing, size):
            found.append(meta.parent)
    return found


def _write_shard(file: Path, images: Iterable[np.ndarray | None]) -> Iterator[None]:
    """Writes images one after the other. The file gets its name when it is whole; never if an image is missing."""
    growing = _growing(file)
    whole = True
    with disk_errors(file.parent), open(growing, "wb") as out:
        for image in images:
            if image is None:
                whole = False
            else:
                out.write(np.ascontiguousarray(image).data)
            yield None
        out.flush()
        os.fsync(out.fileno())
    if whole:
        os.replace(growing, file)
    else:
        growing.unlink()


def _growing(file: Path) -> Path:
    return file.with_suffix(".growing")


def _has(file: Path, size: int) -> bool:
    try:
        return file.stat().st_size == size
    except OSError:
        return False


def _check_room(folder: Path, need: int, images: int, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if need > free:
        raise InputError(
            f"the cache of {images:,} images at {size} x {size} needs {need / 2**30:.1f} GiB more, but "
            f"'{folder.parent}' has {free / 2**30:.1f} GiB free: free some space, or set RCALIGN_CACHE to a "
            "folder on a larger disk."
        )


def _resized(x: np.ndarray, size: int) -> np.ndarray:
    if x.shape[1:3] == (size, size):
        return x
    return np.stack([to_stored(image, size) for image in x])


# --- files, threads, progress ------------------------------------------------------------------------------------


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all, also when two processes write at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with disk_errors(path.parent):
        write_whole(path, json.dumps(value).encode())


def read_json(path: Path) -> Any:
    """The value, or None if there is no such file or it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Says in one sentence what the disk refused."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise InputError(
            f"the cache in '{folder}' cannot be written ({error.strerror}): free some space, or set RCALIGN_CACHE to "
            "another folder."
        ) from None


@contextmanager
def process_lock(
    file: Path, waiting: str = "Another process is decoding these images: waiting for it."
) -> Iterator[None]:
    """Holds a lock that the system releases when the process ends, however it ends. waiting: said to who waits."""
    import fcntl

    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(waiting, file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(function: Callable[[A], B], values: Sequence[A], text: str, progress: bool) -> list[B]:
    """The function of each value, in order, with a progress bar if wanted."""
    with ThreadPoolExecutor(_cores()) as pool:
        return list(_progress(_mapped(pool, function, values), len(values), text, progress))


def _mapped(pool: ThreadPoolExecutor, function: Callable[[A], B], values: Sequence[A], ahead: int = 256) -> Iterator[B]:
    """Like ``pool.map``, but at most ``ahead`` results wait in memory."""
    for start in range(0, len(values), ahead):
        yield from pool.map(function, values[start : start + ahead])


def _progress(values: Iterable[Any], total: int, text: str, show: bool) -> Iterator[Any]:
    if not show:
        yield from values
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(values, description=text, total=total, console=Console(stderr=True))
