"""A CSV manifest: ``path,label,domain[,split][,group]``, paths absolute or below the manifest's folder."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from rcalign.data.source import SPLITS, Dataset, check_spelling
from rcalign.data.sources.image_files import dataset_of_files
from rcalign.errors import InputError

REQUIRED = ("path", "label", "domain")


def load(file: str | os.PathLike[str], *, skip_bad: bool = False, progress: bool = False) -> Dataset:
    """The listed files in the listed order. Further columns are left out."""
    file = Path(os.path.abspath(file))
    root = file.parent
    columns: dict[str, list[str]] = {}
    paths: list[Path] = []
    lines: list[int] = []
    try:
        with open(file, newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened, strict=True)
            header = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = header
            missing = [name for name in REQUIRED if name not in header]
            if missing:
                raise InputError(
                    f"manifest '{file}' lacks the column {', '.join(missing)}: found {', '.join(header) or 'nothing'}, "
                    "expected path,label,domain and perhaps split and group."
                )
            used = [name for name in ("label", "domain", "split", "group") if name in header]
            columns = {name: [] for name in used}
            for row in reader:
                where = f"line {reader.line_num} of manifest '{file}'"
                for name in ("path", *used):
                    if row[name] is None or not row[name].strip():
                        raise InputError(f"{where} has no {name}: every row needs one.")
                if "split" in used and row["split"].strip() not in SPLITS:
                    raise InputError(f"{where} has split '{row['split']}', but train, val or test is expected.")
                paths.append(_located(root, row["path"], where))
                lines.append(reader.line_num)
                for name in used:
                    columns[name].append(row[name].strip())
    except UnicodeDecodeError:
        raise InputError(f"manifest '{file}' is not UTF-8 text: save it with that encoding.") from None
    except csv.Error as error:
        raise InputError(f"manifest '{file}' is not a readable CSV file ({error}): check its quotes.") from None
    except OSError as error:
        raise InputError(f"manifest '{file}' cannot be read ({error.strerror}): check its permissions.") from None
    if not paths:
        raise InputError(f"manifest '{file}' lists no images: a row for each image is expected.")
    _check_files(file, paths, lines)
    check_spelling(zip(columns["domain"], columns["label"], strict=True))
    return dataset_of_files(
        file.stem,
        root,
        paths,
        columns["label"],
        columns["domain"],
        split=columns.get("split"),
        group=columns.get("group"),
        skip_bad=skip_bad,
        progress=progress,
    )


def _located(root: Path, text: str, where: str) -> Path:
    """The listed file. Only an absolute path may lead out of the folder: it says so."""
    path = os.path.normpath(os.path.join(root, text))
    if not os.path.isabs(text) and not path.startswith(os.path.join(root, "")):
        raise InputError(
            f"{where} lists '{text}', which lies outside the manifest's folder: write its absolute path, {path}."
        )
    return Path(path)


def _check_files(file: Path, paths: list[Path], lines: list[int]) -> None:
    seen: dict[Path, int] = {}
    missing = []
    for path, line in zip(paths, lines, strict=True):
        if path in seen:
            raise InputError(
                f"manifest '{file}' lists '{path.name}' twice (lines {seen[path]} and {line}): one row for each image "
                "is expected, or a copy could be trained on and tested."
            )
        seen[path] = line
        if not path.is_file():
            missing.append((path, line))
    if missing:
        path, line = missing[0]
        more = f" and {len(missing) - 1} more files" if len(missing) > 1 else ""
        raise InputError(
            f"manifest '{file}' lists '{path}' (line {line}){more} that do not exist: paths are relative to the "
            "manifest's folder; correct or remove the rows."
        )
