"""Rows of JSON, one on a line, as training programs append them: whatever is whole is read, the rest is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


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
