"""Archives made on the spot, also hostile ones."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path


def pack(folder: Path, archive: Path, top: str = "") -> Path:
    """Everything below a folder, as zip or tar by the archive's suffix, below ``top``."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    names = [(path, f"{top}{path.relative_to(folder).as_posix()}") for path in files]
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as packed:
            for path, name in names:
                packed.write(path, name)
    else:
        with tarfile.open(archive, "w:gz") as tar:
            for path, name in names:
                tar.add(path, name)
    return archive


def zipped(archive: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in entries.items():
            packed.writestr(name, content)
    return archive


def tarred(archive: Path, *members: tarfile.TarInfo, content: bytes = b"") -> Path:
    with tarfile.open(archive, "w:gz") as packed:
        for member in members:
            member.size = len(content) if member.isfile() else 0
            packed.addfile(member, io.BytesIO(content) if member.isfile() else None)
    return archive


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member
