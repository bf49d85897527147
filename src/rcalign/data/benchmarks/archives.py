"""Where files come from when a data set is prepared: folders, zip and tar archives, all read in the same way.

An archive is foreign: an entry that would leave its folder, a link out of it, a device, or more bytes than a data set
can have is refused by name before anything of it is used. Entries are only ever written to places that this program
chose.
"""

from __future__ import annotations

import io
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from calendar import timegm
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from rcalign.data.benchmarks.place import disk_errors
from rcalign.errors import InputError

ZIP_SUFFIXES = (".zip",)
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


class BrokenArchive(InputError):
    """An archive that cannot be read to its end."""


@dataclass(frozen=True)
class Limits:
    """What an archive may hold. growth: unpacked bytes for each packed one, once there are more than ``free`` bytes."""

    entries: int = 2_000_000
    entry_bytes: int = 2**30
    total_bytes: int = 64 * 2**30
    growth: int = 100
    free: int = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Entry:
    """A file: its path within the source, with '/', and its size."""

    path: str
    size: int

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


Places = Callable[[Entry], Sequence[Path]]


class Source(Protocol):
    """A folder or an archive."""

    path: Path

    def entries(self) -> Iterator[Entry]:
        """Every file in it; of an archive, after it was found harmless."""
        ...

    def copy(self, places: Places) -> Iterator[Entry]:
        """Writes each file to the places it is given, whole or not at all; yields those that had a place."""
        ...

    def read(self, path: str) -> bytes:
        """The content of one file."""
        ...


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith((*ZIP_SUFFIXES, *TAR_SUFFIXES))


def open_source(path: Path, limits: Limits = Limits()) -> Source:  # noqa: B008  (frozen)
    """The folder or archive at a path."""
    if path.is_dir():
        return Folder(path)
    if path.name.lower().endswith(ZIP_SUFFIXES):
        return Zip(path, limits)
    if path.name.lower().endswith(TAR_SUFFIXES):
        return Tar(path, limits)
    raise InputError(
        f"'{path}' is of no known kind: expected a folder, or an archive ({', '.join((*ZIP_SUFFIXES, *TAR_SUFFIXES))})."
    )


class Folder:
    """A folder. Links are followed, each folder once. Files are linked where the disk allows it, else copied."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> Iterator[Entry]:
        seen: set[str] = set()

        def failed(error: OSError) -> None:
            raise InputError(f"folder '{error.filename}' cannot be read ({error.strerror}): check its permissions.")

        for folder, folders, files in os.walk(self.path, followlinks=True, onerror=failed):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            real = os.path.realpath(folder)
            if real in seen:  # a link back to a folder above, or two ways to one folder
                folders.clear()
                continue
            seen.add(real)
            inside = os.path.relpath(folder, self.path)
            for name in sorted(files):
                file = os.path.join(folder, name)
                if not name.startswith(".") and os.path.isfile(file):  # not a link that leads nowhere
                    path = name if inside == "." else f"{inside}/{name}"
                    yield Entry(path.replace(os.sep, "/"), os.path.getsize(file))

    def copy(self, places: Places) -> Iterator[Entry]:
        for entry in self.entries():
            targets = places(entry)
            for target in targets:
                _place(self.path / entry.path, target)
            if targets:
                yield entry

    def read(self, path: str) -> bytes:
        return (self.path / path).read_bytes()


class Zip:
    """A zip archive."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path, self._limits = path, limits

    def entries(self) -> Iterator[Entry]:
        with _readable(self.path), zipfile.ZipFile(self.path) as archive:
            for info in self._checked(archive):
                yield Entry(_inside(info.filename, self.path), info.file_size)

    def copy(self, places: Places) -> Iterator[Entry]:
        with _readable(self.path), zipfile.ZipFile(self.path) as archive:
            for info in self._checked(archive):
                entry = Entry(_inside(info.filename, self.path), info.file_size)
                targets = places(entry)
                if targets:
                    # UTC wherever it is unpacked: equal times, equal fingerprints
                    time = timegm((*info.date_time, 0, 0, 0))
                    with archive.open(info) as content:
                        _write(content, entry, targets, time)
                    yield entry

    def read(self, path: str) -> bytes:
        with _readable(self.path), zipfile.ZipFile(self.path) as archive:
            return archive.read(
                next(info for info in self._checked(archive) if _inside(info.filename, self.path) == path)
            )

    def _checked(self, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
        """The files, after every entry was looked at: nothing is unpacked before the last one is found harmless."""
        guard = _Guard(self.path, self._limits)
        files = []
        for info in archive.infolist():
            path = _inside(info.filename, self.path)
            guard.count(path, info.file_size)
            kind = stat.S_IFMT(info.external_attr >> 16)
            if stat.S_ISLNK(kind):
                target = archive.read(info).decode("utf-8", "replace") if info.file_size <= 4096 else ".."
                _check_link(path, target, self.path)
            elif kind and not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
                raise _refused(self.path, path, "is a device or a pipe")
            elif not info.is_dir():
                if info.flag_bits & 1:
                    raise InputError(f"'{path}' in '{self.path}' is encrypted: unpack the archive with its password.")
                files.append(info)
        return files


class Tar:
    """A tar archive, packed or not. Links inside the archive stand for the file they point to."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path, self._limits = path, limits

    def entries(self) -> Iterator[Entry]:
        with _readable(self.path), tarfile.open(self.path) as archive:
            for _, entry in self._checked(archive):
                yield entry

    def copy(self, places: Places) -> Iterator[Entry]:
        """In one pass, since a packed tar cannot be read at random."""
        links: list[tuple[tarfile.TarInfo, Entry, Sequence[Path]]] = []
        with _readable(self.path), tarfile.open(self.path) as archive:
            for member, entry in self._checked(archive):
                targets = places(entry)
                if targets and member.isfile():
                    content = archive.extractfile(member)
                    assert content is not None
                    with content:
                        _write(content, entry, targets, int(member.mtime))
                    yield entry
                elif targets:
                    links.append((member, entry, targets))
            for member, entry, targets in links:
                try:
                    content = archive.extractfile(member)
                except KeyError:
                    content = None
                if content is None:
                    raise _refused(self.path, entry.path, f"is a link to '{member.linkname}', which is not in it")
                with content:
                    _write(content, entry, targets, int(member.mtime))
                yield entry

    def read(self, path: str) -> bytes:
        with _readable(self.path), tarfile.open(self.path) as archive:
            for member, entry in self._checked(archive):
                content = archive.extractfile(member) if entry.path == path else None
                if content is not None:
                    return content.read()
        raise InputError(f"'{path}' in '{self.path}' cannot be read: unpack the archive and give the folder.")

    def _checked(self, archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, Entry]]:
        guard = _Guard(self.path, self._limits)
        for member in archive:
            path = _inside(member.name, self.path)
            guard.count(path, member.size)
            if member.issym() or member.islnk():
                _check_link(path, member.linkname, self.path, from_top=member.islnk())
                yield member, Entry(path, 0)
            elif member.isfile():
                yield member, Entry(path, member.size)
            elif not member.isdir():
                raise _refused(self.path, path, "is a device or a pipe")


class _Guard:
    """Counts what an archive would unpack to, and refuses the entry that is too much."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path, self._limits = path, limits
        self._packed = path.stat().st_size
        self._entries = self._bytes = 0

    def count(self, entry: str, size: int) -> None:
        self._entries += 1
        self._bytes += size
        most = min(self._limits.total_bytes, max(self._limits.free, self._limits.growth * self._packed))
        if self._entries > self._limits.entries:
            raise _refused(self._path, entry, f"is one of more than {self._limits.entries:,} entries")
        if size > self._limits.entry_bytes:
            raise _refused(self._path, entry, f"would unpack to {size:,} bytes")
        if self._bytes > most:
            raise _refused(
                self._path, entry, f"would bring what is unpacked to {self._bytes:,} bytes from {self._packed:,}"
            )


def _refused(archive: Path, entry: str, why: str) -> InputError:
    return InputError(
        f"entry '{entry}' of '{archive}' {why}, which no data set needs: the archive was not unpacked; get it from its "
        "publisher again."
    )


def _inside(name: str, archive: Path) -> str:
    """The path of an entry, if it stays within the folder it is unpacked in."""
    plain = name.replace("\\", "/")
    pieces = [piece for piece in plain.split("/") if piece not in ("", ".")]
    if plain.startswith("/") or ".." in pieces or "\0" in plain or (pieces and pieces[0].endswith(":")):
        raise _refused(archive, name, "would be written outside the folder it is unpacked in")
    return "/".join(pieces)


def _check_link(path: str, target: str, archive: Path, *, from_top: bool = False) -> None:
    """Raises if a link leaves the folder. A symbolic link is relative to its own folder, a hard link to the top."""
    plain = target.replace("\\", "/")
    depth = 0 if from_top else path.count("/")
    outside = plain.startswith("/") or plain[1:2] == ":"
    for piece in plain.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(piece, 1)
        outside |= depth < 0
    if outside:
        raise _refused(archive, path, f"is a link out of the archive, to '{target}'")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Says in one sentence that an archive is broken."""
    try:
        yield
    except NotImplementedError as error:
        raise InputError(
            f"archive '{path}' is packed in a way that cannot be read here ({error}): unpack it and give the folder."
        ) from None
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's fault, not the archive's
            raise
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise BrokenArchive(f"archive '{path}' is broken or cut short ({first}): download it again.") from None


def write_bytes(content: bytes, target: Path) -> None:
    """A file from memory, with a fixed time: equal content, equal fingerprints."""
    _write(io.BytesIO(content), Entry(target.name, len(content)), [target], timegm((1980, 1, 1, 0, 0, 0)))


def _write(content: IO[bytes], entry: Entry, targets: Sequence[Path], time: int) -> None:
    """The first target from the content, the others as copies of it. What is there with the right size is kept."""
    first = targets[0]
    if not _has(first, entry.size):
        with disk_errors(first.parent):
            first.parent.mkdir(parents=True, exist_ok=True)
            growing = first.with_name(f".{first.name}.growing")
            with open(growing, "wb") as out:
                shutil.copyfileobj(content, out, 2**20)
            os.utime(growing, (time, time))
            os.replace(growing, first)
    for target in targets[1:]:
        _place(first, target)


def _place(file: Path, target: Path) -> None:
    """A hard link to a file, or a copy where the disk cannot link."""
    file = Path(os.path.realpath(file))
    if _has(target, file.stat().st_size):
        return
    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            os.link(file, target)
        except OSError:
            growing = target.with_name(f".{target.name}.growing")
            shutil.copy2(file, growing)
            os.replace(growing, target)


def _has(file: Path, size: int) -> bool:
    try:
        return size > 0 and file.stat().st_size == size
    except OSError:
        return False
