"""JSON files, written whole or not at all, and files of one JSON object a line, of which every whole line is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rcalign.files import write_whole


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON, whole or not at all; a list of numbers takes one line, not one for each number."""
    text = re.sub(r"\[\n\s*(-?\d[-+\d.eE,\s]*?)\n\s*\]", _on_one_line, json.dumps(value, indent=2))
    write_whole(path, (text + "\n").encode())


def _on_one_line(found: re.Match[str]) -> str:
    return "[" + " ".join(found[1].split()) + "]"


def read_json(path: Path) -> Any:
    """The JSON value of a file; None where there is no such file, or what it holds is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file; None where there is no such file, or what it holds is not one."""
    value = read_json(path)
    return value if isinstance(value, dict) else None


def read_lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows that are whole JSON objects, and a note on each line that is not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "rows.jsonl")
    ...     _ = file.write_text('{"step": 0}\\n{"st')
    ...     rows, notes = read_lines(file)
    >>> rows, notes[0].rpartition("/")[2]
    ([{'step': 0}], "rows.jsonl': its last line is cut; the lines before it are read.")
    """
    rows, notes = [], []
    lines = path.read_text(errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif number == len(lines):
            notes.append(f"'{path}': its last line is cut; the lines before it are read.")
        else:
            notes.append(f"'{path}': line {number} is not a JSON object and is passed over.")
    return rows, notes


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Adds one row; a kill may cut it, but no row before it."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replaces all rows of a file."""
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
