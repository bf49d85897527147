"""Vectors by the hash of what they were computed from, kept in a folder that any number of processes write to.

The folder holds files of rows that are never changed: each has the hashes (n, 16) and the vectors (n, width) of its
rows, as an ``.npz`` that is loaded without pickle, and appears under its name when all of it is on the disk. So writers
need no lock, and what one wrote is there for the others. Many small files are joined into a large one: it appears
first, then the small ones go. A row may stand in two files, which does no harm; a damaged file is as good as none.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rcalign.data.cache import cache_disk_errors
from rcalign.files import write_whole

HASH = 16  # bytes
SMALL_ROWS = 4096  # files with fewer rows are joined
MOST_SMALL = 32  # such files that a folder may have
TRIES = 5  # of reading a folder while another process joins its files


class VectorStore:
    """Vectors (width,) float32 of texts, in a folder.

    >>> import tempfile
    >>> store = VectorStore(Path(tempfile.mkdtemp()), width=2)
    >>> store.add({"a": np.array([1.0, 2.0], np.float32)})
    >>> sorted(store.find(["a", "b"])), store.find(["a"])["a"].tolist()
    (['a'], [1.0, 2.0])
    """

    def __init__(self, folder: Path, width: int) -> None:
        self._folder, self._width = folder, width

    def find(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """The vectors of those texts that are there."""
        wanted = {text_hash(text): text for text in texts}
        found: dict[str, np.ndarray] = {}
        for _ in range(TRIES):
            try:
                for file in self._files():
                    found |= self._vectors_in(file, wanted)
                    if len(found) == len(wanted):
                        break
                break
            except FileNotFoundError:  # joined with others in the meantime: list the files anew
                continue
        return found

    def add(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Keeps vectors by their texts."""
        if vectors:
            self._write(b"".join(map(text_hash, vectors)), np.stack(list(vectors.values())))
            self._join_small()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.npz"))

    def _vectors_in(self, file: Path, wanted: Mapping[bytes, str]) -> dict[str, np.ndarray]:
        """The vectors of one file that are asked for, by text."""
        try:
            with np.load(file, allow_pickle=False) as arrays:  # an array is read when it is asked for
                rows = {wanted[key]: row for row, key in enumerate(_keys(arrays["hashes"])) if key in wanted}
                vectors = arrays["vectors"] if rows else np.zeros((0, self._width), np.float32)
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return {}
        if vectors.ndim != 2 or vectors.shape[1] != self._width or len(vectors) <= max(rows.values(), default=-1):
            return {}
        return {text: vectors[row] for text, row in rows.items()}

    def _write(self, hashes: bytes, vectors: np.ndarray) -> Path:
        buffer = io.BytesIO()
        np.savez(
            buffer,
            hashes=np.frombuffer(hashes, np.uint8).reshape(-1, HASH),
            vectors=np.asarray(vectors, np.float32),
        )
        # the name begins with the number of rows, so that small files are known without opening them
        file = self._folder / f"{len(vectors)}-{hashlib.sha256(hashes).hexdigest()[:32]}.npz"
        with cache_disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(file, buffer.getvalue())
        return file

    def _join_small(self) -> None:
        """Makes one file of many small ones. What cannot be read is left alone."""
        small = [file for file in self._files() if _row_count(file) < SMALL_ROWS]
        if len(small) <= MOST_SMALL:
            return
        rows: dict[bytes, np.ndarray] = {}
        read = []
        for file in small:
            try:
                with np.load(file, allow_pickle=False) as arrays:
                    keys, vectors = _keys(arrays["hashes"]), arrays["vectors"]
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
                continue
            if vectors.shape == (len(keys), self._width):
                rows |= zip(keys, vectors, strict=True)
                read.append(file)
        joined = self._write(b"".join(rows), np.stack(list(rows.values())))
        for file in read:
            if file != joined:
                file.unlink(missing_ok=True)


def text_hash(text: str) -> bytes:
    """The name of a text in a store: 16 bytes of its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:HASH]


def _keys(hashes: np.ndarray) -> list[bytes]:
    if hashes.dtype != np.uint8 or hashes.ndim != 2 or hashes.shape[1] != HASH:
        raise ValueError("not an array of hashes")
    return [row.tobytes() for row in hashes]


def _row_count(file: Path) -> int:
    rows = file.name.split("-")[0]
    return int(rows) if rows.isdecimal() else 0
