"""The data root: where prepared benchmarks lie, and what keeps two processes from writing there at once."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    """Says what the disk refused, in one sentence."""
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
