"""Image files to predict, a batch at a time: in order, decoded ahead by threads, in memory that does not grow."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rcalign.data.cache import BadImage, decode
from rcalign.data.picture import SUFFIXES
from rcalign.errors import InputError

AHEAD = 2  # batches that may wait, decoded, for the network


@dataclass(frozen=True, eq=False)
class DecodedBatch:
    """images: uint8 (n, size, size, 3) of ``paths``; skipped: (path, why) of the files between them that are none."""

    paths: list[Path]
    images: np.ndarray
    skipped: list[tuple[Path, str]]


def find_images(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files as given, and in the place of a folder all images below it, sorted."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(item for item in path.rglob("*") if item.suffix.lower() in SUFFIXES and item.is_file())
            if not found:
                raise InputError(f"the folder '{path}' holds no images: give image files or a folder of them.")
            files += found
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"there is no file or folder '{path}': give image files, folders, or an .npz.")
    return files


def decoded_batches(paths: Sequence[Path], size: int, batch: int) -> Iterator[DecodedBatch]:
    """Every file once, ``batch`` files at a time (so a batch with bad files has fewer images).

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (9, 9)).save(folder + "/a.png")
    ...     _ = Path(folder, "b.png").write_text("no image")
    ...     parts = list(decoded_batches(sorted(Path(folder).iterdir()), 4, 10))
    >>> [(len(part.paths), part.images.shape, part.skipped[0][1]) for part in parts]
    [(1, (1, 4, 4, 3), 'its content is not an image')]
    """
    starts = range(0, len(paths), batch)
    with ThreadPoolExecutor() as pool:

        def begin(start: int) -> list[Future[np.ndarray | str]]:
            return [pool.submit(_decoded, path, size) for path in paths[start : start + batch]]

        waiting = deque(begin(start) for start in starts[:AHEAD])
        for k, start in enumerate(starts):
            results = [future.result() for future in waiting.popleft()]
            waiting.extend(begin(later) for later in starts[k + AHEAD : k + AHEAD + 1])
            yield _collect(paths[start : start + batch], results, size)


def _decoded(path: Path, size: int) -> np.ndarray | str:
    try:
        return decode(path, size)
    except BadImage as why:
        return str(why)
    except InputError:
        return "it cannot be read" if path.exists() else "there is no such file"


def _collect(paths: Sequence[Path], results: Sequence[np.ndarray | str], size: int) -> DecodedBatch:
    whole = [(path, image) for path, image in zip(paths, results, strict=True) if not isinstance(image, str)]
    skipped = [(path, why) for path, why in zip(paths, results, strict=True) if isinstance(why, str)]
    images = np.stack([image for _, image in whole]) if whole else np.zeros((0, size, size, 3), np.uint8)
    return DecodedBatch([path for path, _ in whole], images, skipped)
