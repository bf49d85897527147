"""Locks between processes: the system releases them when their process ends, however it ends.

The lock of ``NAME.json`` is the hidden file ``.NAME.lock`` beside it, which stays; the JSON file, which says who holds
the lock, goes with it.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from rcalign.errors import InputError
from rcalign.store.json_files import read_object, write_json

UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def acquire(file: Path, wait: float = 0.0, what: str = "run folder") -> filelock.BaseFileLock | None:
    """Acquires the lock of a lock file within so many seconds; None if another process holds it. what: lies there."""
    lock = filelock.FileLock(file, thread_local=False)
    try:
        lock.acquire(timeout=wait, poll_interval=0.05)
    except filelock.Timeout:
        return None
    except NotImplementedError:
        raise _unsupported(file, what) from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        raise _unsupported(file, what) from None
    if isinstance(lock, filelock.SoftFileLock):  # what filelock falls back to; it would outlive a killed process
        lock.release()
        raise _unsupported(file, what)
    return lock


def _unsupported(file: Path, what: str) -> InputError:
    return InputError(f"'{file.parent}' is on a file system without file locks; put the {what} on a local disk.")


@contextmanager
def waited_for(file: Path, what: str, waiting: Callable[[], None], every: float = 0.5) -> Iterator[None]:
    """Holds the lock of a lock file, after waiting for it as long as need be.

    what: lies in its folder, for an error. waiting: called every so many seconds while another process holds the lock.
    """
    lock = acquire(file, what=what)
    while lock is None:
        waiting()
        lock = acquire(file, every, what)
    try:
        yield
    finally:
        lock.release()


def is_held(file: Path) -> bool:
    """Whether a process holds the lock of a lock file, which need not exist."""
    if not file.exists():
        return False
    try:
        lock = acquire(file)
    except PermissionError:  # of another user's folder we only see who wrote that they hold it
        return True
    if lock is None:
        return True
    lock.release()
    return False


@contextmanager
def announced(file: Path, wait: float, busy: Callable[[Mapping[str, Any]], Exception]) -> Iterator[None]:
    """Holds the lock of a JSON file that says who holds it. busy: makes the error from what that file says."""
    lock = acquire(lock_file(file), wait)
    if lock is None:
        raise busy(read_object(file) or {})
    try:
        write_json(file, {"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()})
        yield
    finally:
        file.unlink(missing_ok=True)
        lock.release()


def holder(file: Path) -> dict[str, Any] | None:
    """What the JSON file says of the process that holds its lock; None if no process does."""
    if not file.exists() or not is_held(lock_file(file)):
        return None
    return read_object(file) or {}


def lock_file(file: Path) -> Path:
    """The lock file that belongs to a file.

    >>> lock_file(Path("running/a1.json")).as_posix()
    'running/.a1.lock'
    """
    return file.with_name(f".{file.stem}.lock")
