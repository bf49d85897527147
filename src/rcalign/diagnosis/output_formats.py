"""A diagnosis in a format, as text."""

from __future__ import annotations

import io

from rich.console import Console

from rcalign.diagnosis.findings import Diagnosis, to_json
from rcalign.diagnosis.html_page import render_html
from rcalign.diagnosis.terminal import render_terminal

ENDINGS = {"terminal": (".txt",), "json": (".json",), "html": (".html", ".htm")}
WIDTH = 120  # columns of a diagnosis that is written to a text file


def render_diagnosis(diagnosis: Diagnosis, format: str) -> str:
    """The text of one of the formats of ``ENDINGS``; "terminal" is plain text."""
    if format == "json":
        return to_json(diagnosis)
    if format == "html":
        return render_html(diagnosis)
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    console.print(render_terminal(diagnosis))
    return console.file.getvalue()  # type: ignore[attr-defined]
