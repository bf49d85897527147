"""A report in a format, as text or as a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rcalign.errors import InputError, unknown
from rcalign.files import format_by_ending, write_whole
from rcalign.reports import text, trackers
from rcalign.reports.html import make_page
from rcalign.reports.report import Report

TEXTS: dict[str, Callable[[Report], str]] = {
    "markdown": text.markdown,
    "latex": text.latex,
    "csv": text.comma_separated,
    "html": make_page,
}
FORMATS = ("terminal", *TEXTS, *trackers.EXPORTS)
ENDINGS = {
    "terminal": (".txt",),
    "markdown": (".md", ".markdown"),
    "latex": (".tex",),
    "csv": (".csv",),
    "html": (".html", ".htm"),
}


def format_of(name: str | None, out: Path | str | None) -> str:
    """The format asked for, or that of the file's ending, or the terminal's; an ending that fits no format is an error.

    >>> format_of(None, "a/report.tex"), format_of(None, None), format_of("mlflow", "runs.d")
    ('latex', 'terminal', 'mlflow')
    >>> format_of(None, "r.pdf")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    rcalign.errors.InputError: 'r.pdf' ends in '.pdf', which belongs to no format: use one of ...
    """
    if name is not None and name not in FORMATS:
        raise unknown("format", name, FORMATS)
    if name in trackers.EXPORTS:  # these write a folder, whatever it is called
        return name
    return format_by_ending(name, out, ENDINGS, "terminal")


def render(
    report: Report, format: str, out: Path | str | None = None, width: int | None = None, colour: bool = False
) -> str:
    """The text of a report, also written to ``out``; of an export, which needs a folder, one sentence."""
    if format in trackers.EXPORTS:
        if out is None:
            raise InputError(f"`format={format}` writes a folder: name it with `out`.")
        count = trackers.EXPORTS[format](report, out)
        return f"{count} runs written to {out} for {format}.\n"
    content = text.terminal(report, width, colour) if format == "terminal" else TEXTS[format](report)
    if out is not None:
        if Path(out).is_dir():
            raise InputError(f"'{out}' is a folder, but a report in format {format} is a file: name one with `out`.")
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, content.encode())
    return content
