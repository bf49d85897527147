"""Parquet files with an image, a label and a domain in each row: the form of these data sets on Hugging Face.

Images are written out as they are, byte for byte. Rows are read a few at a time, so memory stays small.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rcalign.data.benchmarks.facts import Benchmark
from rcalign.data.benchmarks.layouts import Spot, names_of
from rcalign.errors import InputError
from rcalign.store.names import name_key

IMAGE, LABEL, DOMAIN = ("image", "img", "picture"), ("label", "class", "category", "labels"), ("domain", "env", "style")
INSTALL = 'pip install "rcalign[parquet]"'
ROWS = 64
SIGNATURES = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG": ".png",
    b"GIF8": ".gif",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
}


def files_in(path: Path) -> list[Path]:
    """The parquet files at a path or below it, in order."""
    if path.is_file():
        return [path] if path.suffix.lower() == ".parquet" else []
    return sorted(path.rglob("*.parquet"))


def rows(benchmark: Benchmark, files: Sequence[Path]) -> Iterator[tuple[Spot, bytes]]:
    """Where each image goes, and its bytes. Without a domain column, a file's name or folder names its domain."""
    taken: Counter[tuple[str, str]] = Counter()
    for file in files:
        yield from _rows_of_file(benchmark, file, taken)


def count_rows(files: Sequence[Path]) -> int:
    """The rows of all files, by what they say of themselves."""
    return sum(_open(file).metadata.num_rows for file in files)


def _rows_of_file(benchmark: Benchmark, file: Path, taken: Counter[tuple[str, str]]) -> Iterator[tuple[Spot, bytes]]:
    table = _open(file)
    names = table.schema_arrow.names
    image = _column(names, IMAGE, file)
    label = _column(names, LABEL, file)
    domain = _column(names, DOMAIN, file) if any(name_key(name) in DOMAIN for name in names) else None
    known = _class_names(table.schema_arrow.metadata)
    domains, classes = names_of(benchmark)
    fixed = None if domain is not None else _domain_of_file(file, domains, names)
    for batch in table.iter_batches(ROWS, columns=[image, label, *([domain] if domain else [])]):
        for row in batch.to_pylist():
            where = fixed or _name(row[domain], known.get(domain or ""), domains, benchmark.domains, "domain", file)
            what = _name(row[label], known.get(label), classes, benchmark.classes, "class", file)
            if (what is None and benchmark.part_of is not None) or where is None:
                continue
            if what is None:
                raise InputError(f"'{file}' has the class {row[label]!r}, which {benchmark.name} does not have.")
            content, name = _content(row[image], file)
            taken[where, what] += 1
            yield Spot(where, what, name or f"{taken[where, what]:06d}{suffix_of(content)}"), content


def _open(file: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            f"'{file}' is a parquet file, which needs a package that is not installed: {INSTALL}"
        ) from None
    try:
        return pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowInvalid, OSError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"'{file}' is not a readable parquet file ({first}): download it again.") from None


def _column(names: Sequence[str], wanted: Sequence[str], file: Path) -> str:
    for name in names:
        if name_key(name) in wanted:
            return name
    raise InputError(
        f"'{file}' has the columns {', '.join(names)}, but one named {' or '.join(wanted)} is expected: rename yours."
    )


def _class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Column -> the names that its numbers stand for, where the Hugging Face header tells."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return {column: kind["names"] for column, kind in features.items() if "names" in kind}
    except (KeyError, ValueError, TypeError):
        return {}


def _name(
    value: Any, known: Sequence[str] | None, spellings: Mapping[str, str], order: Sequence[str], what: str, file: Path
) -> str | None:
    """Our name of a value: text in some spelling, or a number with or without names for it. None if it is not ours."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise InputError(f"'{file}' has the {what} {value!r}, but a name or a number is expected.")
    if isinstance(value, str):
        return spellings.get(name_key(value))
    if known is None:  # bare numbers follow the published order
        known = order
    if not 0 <= value < len(known):
        raise InputError(f"'{file}' has the {what} {value}, but numbers from 0 to {len(known) - 1} are expected.")
    return spellings.get(name_key(known[value]))


def _domain_of_file(file: Path, domains: Mapping[str, str], names: Sequence[str]) -> str:
    """The domain that a file or its folder is named after: sketch-00000-of-00002.parquet, sketch/0000.parquet."""
    for text in (file.stem.partition("-")[0], file.parent.name):
        if name_key(text) in domains:
            return domains[name_key(text)]
    raise InputError(
        f"'{file}' has no column named {' or '.join(DOMAIN)} (found {', '.join(names)}), and neither its name nor its "
        "folder is that of a domain: add the column."
    )


def _content(value: Any, file: Path) -> tuple[bytes, str | None]:
    """The bytes of an image, and its file name where there is one."""
    content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
    if not isinstance(content, bytes):
        raise InputError(f"'{file}' has a row without the bytes of its image: save the data set with images embedded.")
    name = str(path or "").replace("\\", "/").rpartition("/")[2]
    return content, name if name not in ("", ".", "..") else None


def suffix_of(content: bytes) -> str:
    """The ending of an image file, by its first bytes."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return ".webp"
    return next((suffix for start, suffix in SIGNATURES.items() if content.startswith(start)), ".jpg")
