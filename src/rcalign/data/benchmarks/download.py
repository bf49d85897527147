"""Files from the web: gone on with where they were cut, checked, from several addresses, there whole or not at all.

A file grows as ``name.part`` and gets its name when it is whole and right. What is known of a growing file, its address
and the server's mark of its version, stands in ``name.part.json``, so that the rest is asked for only if the file at
the server is still the same. A lock keeps a second process waiting until the first is done.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any

from rcalign import __version__
from rcalign.data.benchmarks.facts import Remote
from rcalign.data.benchmarks.place import check_room, disk_errors, locked

BLOCK = 2**18
Moved = Callable[[int, int | None], None]  # bytes that are there, bytes in all


@dataclass(frozen=True)
class Patience:
    """attempts: in a row without a new byte, after which an address is given up. pause: seconds before the second,
    doubled each time. timeout: seconds without an answer."""

    attempts: int = 4
    pause: float = 1.0
    timeout: float = 30.0


class NoSource(Exception):
    """No address gave the file. reasons: address -> why not."""

    def __init__(self, name: str, reasons: dict[str, str]) -> None:
        super().__init__(f"no source gave {name}")
        self.name, self.reasons = name, reasons


class _Dead(Exception):
    """This address will not give the file; its text says why."""


class _Cut(Exception):
    """The file stopped coming; it may go on."""


def download(
    remote: Remote,
    folder: Path,
    *,
    progress: bool = False,
    patience: Patience = Patience(),  # noqa: B008  (frozen)
) -> Path:
    """The file in the folder, from the first address that gives it. Raises ``NoSource``."""
    final = folder / remote.name
    with locked(folder / f".{remote.name}.lock", f"Another process downloads {remote.name}: waiting for it."):
        if final.is_file():
            if _wrong(final, remote.checksum) is None:
                return final
            final.unlink()
        reasons: dict[str, str] = {}
        for url in remote.urls:
            try:
                with _bar(remote.name, progress) as moved:
                    _get(url, remote, folder, moved, patience)
                return final
            except _Dead as why:
                reasons[url] = str(why)
    raise NoSource(remote.name, reasons)


def _get(url: str, remote: Remote, folder: Path, moved: Moved, patience: Patience) -> None:
    part, notes = folder / f"{remote.name}.part", folder / f"{remote.name}.part.json"
    idle = 0
    from_start = False
    while True:
        before = _resumable(part, notes, url, remote)
        try:
            promised = _stream(url, part, notes, before, remote.name, moved, patience)
        except _Cut as why:
            gained = _size(part) > before
            idle = 1 if gained else idle + 1
            if idle >= patience.attempts:
                raise _Dead(f"{why}, {idle} times in a row") from None
            time.sleep(patience.pause * 2 ** (idle - 1))
            continue
        wrong = _wrong(part, remote.checksum or promised) or _not_an_archive(part, remote.name)
        if wrong is None:
            with disk_errors(folder):
                os.replace(part, folder / remote.name)
            notes.unlink(missing_ok=True)
            return
        part.unlink()
        notes.unlink(missing_ok=True)
        if before == 0 or from_start:
            raise _Dead(wrong)
        from_start = True  # two halves of different files, perhaps: once more as a whole


def _resumable(part: Path, notes: Path, url: str, remote: Remote) -> int:
    """Bytes of the growing file that can be kept: of the same version at this address, or to be checked by checksum."""
    known = _notes(notes)
    mark = known.get("etag") or known.get("modified")
    if _size(part) and (remote.checksum is not None or (known.get("url") == url and mark)):
        return _size(part)
    part.unlink(missing_ok=True)
    return 0


def _stream(url: str, part: Path, notes: Path, have: int, name: str, moved: Moved, patience: Patience) -> str | None:
    """Adds to the growing file until it is whole. -> the checksum that the server gave for the whole, if any."""
    headers = {"User-Agent": f"rcalign/{__version__}", "Accept-Encoding": "identity"}
    known = _notes(notes)
    if have:
        headers["Range"] = f"bytes={have}-"
        mark = known.get("etag") or known.get("modified")
        if mark and known.get("url") == url:
            headers["If-Range"] = mark
    answer = _open(urllib.request.Request(url, headers=headers), patience.timeout)
    if answer is None:  # nothing after what is there: whole, or from another file
        if known.get("total") not in (None, have):
            part.unlink(missing_ok=True)
            raise _Cut("the file at the server is shorter than what was there")
        return known.get("checksum")
    with answer:
        if answer.headers.get_content_type() == "text/html" and not name.endswith((".html", ".htm")):
            raise _Dead("it answered with a web page, not with the file")
        start, total = _extent(answer, have)
        checksum = _promised(answer.headers, whole=start == 0) or (known.get("checksum") if start else None)
        if total is not None:
            check_room(part.parent, total - start, f"downloading {name}")
        with disk_errors(part.parent):
            etag = answer.headers.get("ETag", "")
            facts = {
                "url": url,
                "etag": "" if etag.startswith("W/") else etag,  # a weak one does not vouch for bytes
                "modified": answer.headers.get("Last-Modified", ""),
                "total": total,
                "checksum": checksum,
            }
            notes.write_text(json.dumps(facts))
            with open(part, "r+b" if start else "wb") as out:
                out.seek(start)
                out.truncate()
                there = start
                while block := _read(answer):
                    out.write(block)
                    there += len(block)
                    moved(there, total)
                out.flush()
                os.fsync(out.fileno())
    if total is not None and there < total:
        raise _Cut(f"it sent {there:,} of {total:,} bytes")
    return checksum


def _open(request: urllib.request.Request, timeout: float) -> Any:
    """The answer, or None if the server has nothing more than what is there already."""
    try:
        return _opener().open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:
                return None
            if error.code in (408, 425, 429) or error.code >= 500:
                raise _Cut(f"HTTP {error.code} {error.reason}") from None
            raise _Dead(f"HTTP {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise _Cut("no answer in time") from None
        raise _Dead(str(error.reason)) from None
    except TimeoutError:
        raise _Cut("no answer in time") from None
    except (http.client.HTTPException, ConnectionError) as error:
        raise _Cut(f"the connection broke ({type(error).__name__})") from None


def _read(answer: Any) -> bytes:
    try:
        return answer.read1(BLOCK)  # what is there, so that a cut loses nothing that came
    except TimeoutError:
        raise _Cut("it stopped sending") from None
    except (http.client.HTTPException, OSError) as error:
        raise _Cut(f"the connection broke ({type(error).__name__})") from None


def _extent(answer: Any, have: int) -> tuple[int, int | None]:
    """Where in the file the answer starts, and the size of the whole file."""
    length = answer.headers.get("Content-Length")
    if answer.status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != have:
            raise _Dead("it answered with another part of the file than was asked for")
        return have, None if found[2] == "*" else int(found[2])
    return 0, int(length) if length is not None and length.isdecimal() else None


def _promised(headers: Message, *, whole: bool) -> str | None:
    """The checksum of the whole file that some servers send along."""
    texts = [text for value in headers.get_all("x-goog-hash", []) for text in value.split(",")]
    packed = [text.strip().removeprefix("md5=") for text in texts if text.strip().startswith("md5=")]
    packed += [headers["Content-MD5"]] if whole and headers["Content-MD5"] else []
    for text in packed:
        try:
            return f"md5:{base64.b64decode(text, validate=True).hex()}"
        except binascii.Error:
            continue
    return None


def _wrong(file: Path, checksum: str | None) -> str | None:
    """What is wrong with a file, or None. checksum: 'md5:...' or 'sha256:...'."""
    if checksum is None:
        return None
    kind, _, wanted = checksum.partition(":")
    with open(file, "rb") as content:
        found = hashlib.file_digest(content, kind).hexdigest()
    return None if found == wanted.lower() else f"its {kind} is {found}, but {wanted} is right"


def _not_an_archive(file: Path, name: str) -> str | None:
    """A glance at files that have no checksum: an error page, or a zip without its end, is not the archive."""
    with open(file, "rb") as content:
        start = content.read(6)
    kinds = {".zip": b"PK", ".gz": b"\x1f\x8b", ".tgz": b"\x1f\x8b", ".xz": b"\xfd7zXZ\0", ".bz2": b"BZh"}
    magic = next((magic for suffix, magic in kinds.items() if name.lower().endswith(suffix)), b"")
    if not start.startswith(magic) or (magic == b"PK" and not zipfile.is_zipfile(file)):
        return f"what it sent is not a whole {Path(name).suffix} archive"
    return None


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but never from a secured address to an open one."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise _Dead(f"it redirects from https to '{newurl}'")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """http and https only: a redirection must not reach files or other services."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        _NoDowngrade,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def _notes(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def _bar(name: str, show: bool) -> Iterator[Moved]:
    if not show:
        yield lambda there, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        yield lambda there, total: bar.update(task, completed=there, total=total)
