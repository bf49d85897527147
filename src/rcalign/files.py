"""Files that are safe to write: a file appears whole or not at all.

It is written beside its place, flushed to disk, then renamed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rcalign.errors import InputError, unknown

_UMASK = os.umask(0)
os.umask(_UMASK)  # reading it means setting it; done once, before there are threads


def write_whole(path: Path | str, content: bytes) -> None:
    """Writes a file that is never seen half-written, whatever happens."""
    with open_whole(path) as file:
        file.write(content)


@contextmanager
def open_whole(path: Path | str) -> Iterator[IO[bytes]]:
    """A file to write that gets its name when all of it is written and on the disk.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_whole(folder + "/a") as file:
    ...         _ = file.write(b"12"), print(Path(folder, "a").exists())
    ...     Path(folder, "a").read_bytes()
    False
    b'12'
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:200]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_UMASK)  # a temporary file is private, the result need not be
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def check_output(path: Path | str) -> Path:
    """The path, if a file can be written there: asked before the work whose result it is to hold.

    Makes the folder if it is missing. A folder, a device, or a place that cannot be written is an InputError.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = check_output(folder + "/new/a.csv")
    ...     file.parent.is_dir(), file.exists()
    (True, False)
    >>> check_output("/")
    Traceback (most recent call last):
    rcalign.errors.InputError: '/' is a folder, but a file is to be written: name one, such as '/result'.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"'{path}' is a folder, but a file is to be written: name one, such as '{path / 'result'}'.")
    if path.exists() and not path.is_file():
        raise InputError(f"'{path}' is no regular file, so it cannot be written: name another.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(
            f"'{path}' cannot be written ({error.strerror or error}): choose another folder, or change its permissions."
        ) from None
    return path


def format_by_ending(
    format: str | None, out: Path | str | None, endings: Mapping[str, tuple[str, ...]], default: str
) -> str:
    """The format that was asked for, or else the one that the file's ending names, or else the default.

    endings: format -> endings of its files. A file whose ending belongs to another format, or to none, is an
    InputError; one without an ending is as good as any.

    >>> endings = {"json": (".json",), "html": (".html", ".htm")}
    >>> format_by_ending(None, "a.htm", endings, "json"), format_by_ending(None, None, endings, "json")
    ('html', 'json')
    >>> format_by_ending("json", "a.pdf", endings, "json")
    Traceback (most recent call last):
    rcalign.errors.InputError: 'a.pdf' ends in '.pdf', but json is written to '.json': rename it or change the format.
    """
    if format is not None and format not in endings:
        raise unknown("format", format, endings)
    ending = "" if out is None else Path(out).suffix.lower()
    if not ending:
        return format or default
    fitting = [name for name, known in endings.items() if ending in known]
    if format is None and not fitting:
        listed = ", ".join(known for several in endings.values() for known in several)
        raise InputError(f"'{out}' ends in '{ending}', which belongs to no format: use one of {listed}.")
    if format is not None and format not in fitting:
        expected = " or ".join(f"'{known}'" for known in endings[format])
        raise InputError(
            f"'{out}' ends in '{ending}', but {format} is written to {expected}: rename it or change the format."
        )
    return format or fitting[0]
