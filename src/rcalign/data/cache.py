"""Decode once: every image of a data set as uint8 at one size, in memory-mapped shards on disk.

The cache lies under ``$RCALIGN_CACHE`` or the platform's folder for caches, one folder for each (state of the files,
size). It is built in a folder ``….partial`` that is renamed when whole; finished shards survive a kill. A lock file
keeps a second process waiting until the first is done. Changed files have another state, hence another cache; the old
one is removed.

What is kept of a picture is defined in ``picture``. Pixels are kept raw or, where the raw ones would take more than
half of the free disk, as JPEG of quality 95, which takes a seventh of it for photographs and changes a pixel by about
one grey level; ``$RCALIGN_CACHE_FORM`` (raw or jpeg) decides otherwise. A form that is there already is used.
"""

from __future__ import annotations

import functools
import hashlib
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rcalign.data.forecasts import ForecastWork
from rcalign.data.picture import RECIPE, BadImage, check_header, decode, to_stored
from rcalign.data.source import Dataset, ImageArray, Images
from rcalign.errors import InputError
from rcalign.files import open_whole
from rcalign.store import places
from rcalign.store.json_files import read_object, write_json
from rcalign.store.locks import waited_for

if TYPE_CHECKING:
    from torch import Tensor

A = TypeVar("A")
B = TypeVar("B")
META = "meta.json"
QUALITY = 95
PACKED = 1 / 6  # of the raw bytes, what JPEG takes at most for photographs; drawings take less
SHARD_BYTES = 256 * 2**20
MAPPED_BYTES = 64 * 2**20  # read before pages are given back; the system maps about four times as many


def cache_root() -> Path:
    """``$RCALIGN_CACHE`` or the platform's folder for caches, created if need be."""
    path = places.default_cache_root()
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
    remember(cache_root() / "checked" / f"{fingerprint[:32]}.json", {"thorough": thorough, "bad": bad})


def _remembered(fingerprint: str) -> dict[str, Any] | None:
    return read_object(cache_root() / "checked" / f"{fingerprint[:32]}.json")


# --- the store ---------------------------------------------------------------------------------------------------


class ImageStore:
    """n images as uint8 (size, size, 3), read row by row from shards. form: how they are kept, raw or jpeg."""

    form = "raw"

    def __init__(self, shards: Sequence[np.ndarray], size: int) -> None:
        self.size = size
        self._mapped = [shard._mmap for shard in shards if isinstance(shard, np.memmap)]  # type: ignore[attr-defined]
        self._shards = [np.asarray(shard) for shard in shards]  # each uint8 (rows, size, size, 3); quicker to index
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
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        places = rows - self._starts[shards]
        for image, shard, place in zip(out, shards.tolist(), places.tolist(), strict=True):
            self._read(shard, place, image)
        self._release(out.nbytes)
        import torch  # here and not above: a list of data sets does without it

        return torch.from_numpy(out)

    def _read(self, shard: int, row: int, out: np.ndarray) -> None:
        """Writes one image to ``out``."""
        out[:] = self._shards[shard][row]

    def _release(self, read: int) -> None:
        """Unmaps pages now and then. They stay in the system's file cache; this process's memory stays bounded."""
        self._touched += read
        if self._touched > MAPPED_BYTES:
            self._touched = 0
            for mapped in self._mapped:
                if hasattr(mmap, "MADV_DONTNEED"):
                    mapped.madvise(mmap.MADV_DONTNEED)


class PackedStore(ImageStore):
    """n images kept as JPEG, decoded when they are read. ends: of each shard, where its images end in it."""

    form = "jpeg"

    def __init__(self, shards: Sequence[np.ndarray], ends: Sequence[np.ndarray], size: int) -> None:
        super().__init__(shards, size)
        self._ends = [np.concatenate([[0], found]) for found in ends]
        self._starts = np.cumsum([0, *(len(found) for found in ends)])

    def _read(self, shard: int, row: int, out: np.ndarray) -> None:
        start, stop = self._ends[shard][row : row + 2]
        _jpeg().decode_jpeg(self._shards[shard][start:stop].tobytes(), colorspace="RGB", buffer=out)


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
    folders = {}
    for form, mark in (("raw", ""), ("jpeg", f" jpeg {QUALITY}")):
        key = hashlib.sha256(f"{state} {size} {per_shard} {RECIPE}{mark}".encode()).hexdigest()[:32]
        folders[form] = cache_root() / "images" / key
    form = _form(folders, rows, size)
    folder = folders[form]
    lengths = [min(per_shard, rows - start) for start in range(0, rows, per_shard)]
    if not _whole(folder, lengths, size, form):
        with process_lock(folder.with_suffix(".lock"), "Another process is decoding these images: waiting for it."):
            if not _whole(folder, lengths, size, form):  # another process may have built it while this one waited
                shutil.rmtree(folder, ignore_errors=True)
                _build(dataset, folder, lengths, size, form, progress)
    files = [_shard(folder, i, form) for i in range(len(lengths))]
    if form == "jpeg":
        return PackedStore([np.memmap(file, np.uint8, "r") for file in files], [_ends(file) for file in files], size)
    shapes = [(length, size, size, 3) for length in lengths]
    return ImageStore([np.memmap(f, np.uint8, "r", shape=shape) for f, shape in zip(files, shapes, strict=True)], size)


def _form(folders: Mapping[str, Path], images: int, size: int) -> str:
    """How to keep so many images: as was asked, else as they are kept already, else by the room on the disk."""
    asked = os.environ.get("RCALIGN_CACHE_FORM")
    if asked:
        if asked not in folders:
            raise InputError(f"RCALIGN_CACHE_FORM is '{asked}', but raw or jpeg is expected.")
        return asked
    for ending in (META, None):  # whole ones first, then those that are being built
        for form, folder in folders.items():
            if (folder / ending if ending else folder.with_suffix(".partial")).exists():
                return form
    raw, free = images * size * size * 3, shutil.disk_usage(cache_root()).free
    if raw <= free / 2:
        return "raw"
    print(
        f"{images:,} images at {size} x {size} would take {raw / 2**30:.1f} GiB of the {free / 2**30:.1f} GiB that are "
        f"free: they are kept as JPEG of quality {QUALITY} instead, in about {raw * PACKED / 2**30:.1f} GiB "
        "(RCALIGN_CACHE_FORM=raw keeps them raw).",
        file=sys.stderr,
        flush=True,
    )
    return "jpeg"


def _jpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        raise InputError(
            "images kept as JPEG need a package that is not installed: pip install simplejpeg, or set "
            "RCALIGN_CACHE_FORM=raw."
        ) from None
    return simplejpeg


def _shard(folder: Path, i: int, form: str) -> Path:
    return folder / f"{i:05d}.{'jpeg' if form == 'jpeg' else 'uint8'}"


def _ends(shard: Path) -> np.ndarray:
    """Where the images of a JPEG shard end, (rows,) int64; empty if that is not known."""
    try:
        return np.load(shard.with_suffix(".npy"), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return np.zeros(0, np.int64)


def _whole(folder: Path, lengths: Sequence[int], size: int, form: str) -> bool:
    return all(_shard_whole(_shard(folder, i, form), n, size, form) for i, n in enumerate(lengths))


def _shard_whole(file: Path, rows: int, size: int, form: str) -> bool:
    if form == "raw":
        return _has(file, rows * size * size * 3)
    ends = _ends(file)
    return len(ends) == rows and _has(file, int(ends[-1]))


def _build(dataset: Dataset, folder: Path, lengths: Sequence[int], size: int, form: str, progress: bool) -> None:
    assert isinstance(dataset.content, Images)
    paths = dataset.content.paths
    partial = folder.with_suffix(".partial")
    with cache_disk_errors(partial):
        partial.mkdir(parents=True, exist_ok=True)
    listing = hashlib.sha256("\0".join(map(os.fspath, paths)).encode("utf-8", "surrogateescape")).hexdigest()
    outdated = _outdated(folder, listing, size, form)
    if any((read_object(old / META) or {}).get("recipe") == RECIPE for old in outdated):
        print("The image files changed since they were cached: decoding them again.", file=sys.stderr, flush=True)
    row_bytes = size * size * 3 * (PACKED if form == "jpeg" else 1)
    done = [_shard_whole(_shard(partial, i, form), n, size, form) for i, n in enumerate(lengths)]
    to_write = round(sum(n * row_bytes for n, have in zip(lengths, done, strict=True) if not have))
    _check_room(partial, to_write, len(paths), size)
    bad: dict[int, str] = {}

    def one(row: int) -> memoryview | bytes | None:
        try:
            pixels = np.ascontiguousarray(decode(paths[row], size))
            if form == "raw":
                return pixels.data
            # colours at half the resolution, as in most photographs: a quarter less to keep and to decode
            return _jpeg().encode_jpeg(pixels, quality=QUALITY, colorspace="RGB", colorsubsampling="420")
        except BadImage as why:
            bad[row] = str(why)
            return None

    def images() -> Iterator[None]:
        start = 0
        for i, (length, have) in enumerate(zip(lengths, done, strict=True)):
            if have:
                yield from (None for _ in range(length))
            else:
                yield from _write_shard(_shard(partial, i, form), _mapped(pool, one, range(start, start + length)))
            start += length

    with ThreadPoolExecutor(_cores()) as pool:
        about = "" if form == "raw" else "about "
        note = f"Decoding images ({about}{to_write / 2**20:,.0f} MiB cache)"
        work = ForecastWork(f"decoding {len(paths):,} images", len(paths), len(paths))
        for row, _ in enumerate(_progress(images(), len(paths), note, progress), 1):
            work.advance(1, len(paths) - row)
    remember_bad(dataset.fingerprint, bad, thorough=True)
    if bad:
        first = min(bad)
        others = f" (and {len(bad) - 1} more such files)" if len(bad) > 1 else ""
        raise InputError(
            f"'{paths[first]}'{others} is not a whole image: {bad[first]}; replace or remove it, or go on without it "
            "with `skip_bad`."
        )
    about_it = {"name": dataset.name, "listing": listing, "size": size, "rows": len(paths), "recipe": RECIPE}
    remember(partial / META, {**about_it, "form": form})
    os.rename(partial, folder)
    for old in outdated:
        shutil.rmtree(old, ignore_errors=True)  # a process that has it open keeps what it mapped


def _outdated(folder: Path, listing: str, size: int, form: str) -> list[Path]:
    """Caches of the same files at the same size and in the same form, from when the files were different."""
    found = []
    for meta in folder.parent.glob(f"*/{META}"):
        known = read_object(meta)
        same = known and (known.get("listing"), known.get("size"), known.get("form", "raw")) == (listing, size, form)
        if meta.parent != folder and same:
            found.append(meta.parent)
    return found


def _write_shard(file: Path, images: Iterable[memoryview | bytes | None]) -> Iterator[None]:
    """Writes images one after the other. The file gets its name when it is whole; never if an image is missing."""
    growing = _growing(file)
    whole = True
    ends: list[int] = []
    with cache_disk_errors(file.parent), open(growing, "wb") as out:
        for image in images:
            if image is None:
                whole = False
            else:
                out.write(image)
                ends.append(out.tell())
            yield None
        out.flush()
        os.fsync(out.fileno())
    if whole:
        if file.suffix == ".jpeg":
            with open_whole(file.with_suffix(".npy")) as index:
                np.save(index, np.array(ends, np.int64), allow_pickle=False)
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


def remember(path: Path, value: Any) -> None:
    """Writes JSON into the cache, whole or not at all, also when two processes write at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with cache_disk_errors(path.parent):
        write_json(path, value)


@contextmanager
def cache_disk_errors(folder: Path) -> Iterator[None]:
    """Turns an error of the disk into an ``InputError`` that says what to do."""
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
    """Holds the lock of a lock file, after waiting for it. waiting: said once where another process holds it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with waited_for(file, "cache", functools.cache(lambda: print(waiting, file=sys.stderr, flush=True))):
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
