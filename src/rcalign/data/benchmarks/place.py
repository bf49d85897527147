"""The data root: where prepared benchmarks lie, and what keeps two processes from writing there at once."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rcalign.errors import InputError
from rcalign.store import places
from rcalign.store.locks import waited_for

STAND_IN = ".stand-in"  # a file that marks a drawn sample, so that nobody takes it for the data set


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The given folder, else ``$RCALIGN_DATA``, else the platform's folder for data. It need not exist."""
    return Path(root).expanduser().absolute() if root else places.default_data_root()


def is_stand_in(folder: Path) -> bool:
    return (folder / STAND_IN).exists()


def stand_in_note(folder: Path, name: str) -> str:
    """A note for the data set, also said at once: results on drawings must not pass for results."""
    note = f"a drawn stand-in for {name}, not the data set"
    print(f"'{folder}' is {note}.", file=sys.stderr, flush=True)
    return note


@contextmanager
def locked(file: Path, waiting: str) -> Iterator[None]:
    """Holds the lock of a lock file, after waiting for it. waiting: said once where another process holds it."""
    with disk_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    say = functools.cache(lambda: print(waiting, file=sys.stderr, flush=True))
    with waited_for(file, "data", say):
        yield


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turns an error of the disk (full, read-only) into an ``InputError`` that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise InputError(
                f"no room is left in '{folder}' ({error.strerror}): free some space and run the same command again, "
                "which goes on where this one stopped, or use another folder with `root`."
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise InputError(
                f"'{error.filename or folder}' cannot be written ({error.strerror}): change its permissions, or use "
                "another folder with `root` or RCALIGN_DATA."
            ) from None
        raise


@contextmanager
def new_folder(folder: Path, what: str, *, replace: bool, already: str = "") -> Iterator[Path]:
    """A folder to fill, which takes the place of ``folder`` when all went well; other processes wait meanwhile.

    what: the data set, for the line that a waiting process prints. already: what to do, besides ``replace``, where
    there is such a folder.
    """
    with locked(folder.with_name(f".{folder.name}.lock"), f"Another process prepares {what}: waiting."):
        if folder.exists() and not replace:
            raise InputError(f"'{folder}' is there already: {already}prepare it anew with `replace`.")
        growing = folder.with_name(f".{folder.name}.growing")
        shutil.rmtree(growing, ignore_errors=True)
        try:
            with disk_errors(folder):
                growing.mkdir(parents=True)
            yield growing
            with disk_errors(folder):
                shutil.rmtree(folder, ignore_errors=True)
                os.rename(growing, folder)
        finally:
            shutil.rmtree(growing, ignore_errors=True)


def compared(
    name: str,
    folder: Path,
    found: Mapping[str, int],
    expected: Mapping[str, int],
    problems: Sequence[str],
    *,
    edition: str = "as published",
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """What ``verify`` returns. found: rows of each domain. expected: rows by the name of what is known of them."""
    drawn = ["it is a drawn stand-in, not the data set"] if is_stand_in(folder) else []
    problems = [*drawn, *problems]
    return {
        "name": name,
        "folder": str(folder),
        "images": sum(found.values()),
        "domains": dict(found),
        "expected": dict(expected),
        "edition": None if problems else edition,
        "complete": not problems,
        "problems": problems,
        "notes": list(notes),
    }


def check_room(folder: Path, need: int, what: str) -> None:
    """Raises if so many more bytes do not fit below a folder, which need not exist yet."""
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if need > free:
        raise InputError(
            f"{what} needs {need / 2**30:.2f} GiB, but '{folder}' has {free / 2**30:.2f} GiB free: free some space, or "
            "use another folder with `root`."
        )
