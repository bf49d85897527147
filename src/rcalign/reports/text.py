"""Reports as text: for the terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from rcalign.reports.figures import leaders
from rcalign.reports.report import Report
from rcalign.reports.tables import Cell, ResultTable, missing_lines, published_figure

STYLES = {"missing": "yellow", "published": "dim", "": ""}


def terminal(report: Report, width: int | None = None, colour: bool = False) -> str:
    """Tables of box characters. width: tables that are wider continue below; None is as wide as need be."""
    file = io.StringIO()
    console = Console(file=file, width=width or 10_000, force_terminal=colour, no_color=not colour, highlight=False)
    for table in report.tables:
        console.print(f"\n{table.title}", style="bold", markup=False)
        for columns in _blocks(table, width):
            shown = RichTable(box=box.SIMPLE_HEAD)
            for k in columns:
                shown.add_column(Text(table.header[k]), justify="left" if k == 0 else "right", overflow="fold")
            for row in table.rows:
                shown.add_row(*(_styled(row[k], colour) for k in columns))
            console.print(shown)
        for note in table.notes:
            console.print(note, markup=False, soft_wrap=width is None)
    for title, lines in _sections(report):
        console.print(f"\n{title}", style="bold")
        for line in lines:
            console.print(f"- {line}", markup=False, soft_wrap=width is None)
    return "\n".join(line.rstrip() for line in file.getvalue().strip("\n").splitlines()) + "\n"


def _blocks(table: ResultTable, width: int | None) -> list[list[int]]:
    """Columns (by position) that fit beside the first one, block by block."""
    cells = [[cell.text + f" ± {cell.error}" * bool(cell.error) for cell in row] for row in table.rows]
    widths = [3 + max(map(len, column)) for column in zip(table.header, *cells, strict=True)]
    blocks = [[0]]
    for k in range(1, len(widths)):
        if width is not None and len(blocks[-1]) > 1 and sum(widths[j] for j in [*blocks[-1], k]) + 2 > width:
            blocks.append([0])
        blocks[-1].append(k)
    return blocks


def _styled(cell: Cell, colour: bool) -> Text:
    text = cell.text + (f" ± {cell.error}" if cell.error else "")
    if cell.bold:
        return Text(text if colour else f"*{text}", style="bold")
    return Text(text, style=STYLES[cell.kind])


def markdown(report: Report) -> str:
    """Pipe tables, as GitHub shows them."""
    lines = [f"# {_markdown_text(report.sweep.name)}", ""]
    for table in report.tables:
        lines += [f"## {_markdown_text(table.title)}", ""]
        lines += ["| " + " | ".join(_markdown_text(name) for name in table.header) + " |"]
        lines += ["|---" + "|---:" * (len(table.header) - 1) + "|"]
        for row in table.rows:
            lines.append("| " + " | ".join(_markdown_cell(cell) for cell in row) + " |")
        lines += ["", *(f"{_markdown_text(note)}\n" for note in table.notes)]
    for title, found in _sections(report):
        lines += [f"## {title}", "", *(f"- {_markdown_text(line)}" for line in found), ""]
    return "\n".join(lines)


def _markdown_cell(cell: Cell) -> str:
    text = _markdown_text(cell.text) + (f" ± {cell.error}" if cell.error else "")
    if cell.kind == "published":
        return f"_{text}_"
    return f"**{text}**" if cell.bold else text


def _markdown_text(text: str) -> str:
    """
    >>> print(_markdown_text("a|b <i> *c*"))
    a\\|b &lt;i> \\*c\\*
    """
    return re.sub(r"([\\\\`*_|\[\]])", r"\\\1", text).replace("<", "&lt;")


def latex(report: Report) -> str:
    """A whole document that compiles; each table can be copied into another that uses booktabs."""
    lines = [
        r"\documentclass{article}",
        r"\usepackage{booktabs}",
        r"\usepackage{graphicx}",
        r"\begin{document}",
    ]
    for table in report.tables:
        lines += _latex_table(table)
    for title, found in _sections(report):
        lines += [rf"\paragraph{{{title}}}", r"\begin{itemize}"]
        lines += [rf"\item {latex_text(line)}" for line in found]
        lines += [r"\end{itemize}"]
    return "\n".join([*lines, r"\end{document}", ""])


def _latex_table(table: ResultTable) -> list[str]:
    body = [" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in table.rows]
    notes = " ".join(table.notes)
    return [
        "",
        r"\begin{table}[ht]",
        r"\centering",
        rf"\caption{{{latex_text(table.title)}." + (rf" {latex_text(notes)}" if notes else "") + "}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
        r"\toprule",
        " & ".join(latex_text(name) for name in table.header) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]


def _latex_cell(cell: Cell) -> str:
    text = latex_text(cell.text)
    if cell.bold:
        text = rf"\textbf{{{text}}}"
    if cell.kind:
        text = rf"\textit{{{text}}}"
    return text + (rf" $\pm$ {cell.error}" if cell.error else "")


LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "√": r"$\surd$",
    "–": "--",
    "²": r"$^2$",
    "₁": r"$_1$",
    "₂": r"$_2$",
}


def latex_text(text: str) -> str:
    r"""
    >>> latex_text("art_painting & 5%")
    'art\\_painting \\& 5\\%'
    """
    return "".join(LATEX.get(letter, letter) for letter in text)


def comma_separated(report: Report) -> str:
    """One row for each figure: what to read with a program. Missing figures are empty, with the runs they need."""
    file = io.StringIO()
    names = ["data", "protocol", "selection", "algorithm", "column", "mean", "standard_error", "trials", "best"]
    names += ["missing_runs", "published_mean", "published_standard_error"]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for table in report.results:
        further = [metric.name for metric in table.metrics]
        best = leaders(table, [*table.columns, *further])
        for columns in (table.columns, further):
            for algorithm, column in itertools.product(table.algorithms, columns):
                figure = table.figures[algorithm, column]
                digits = 4 if figure.scale == 100 else 6
                mean = f"{figure.mean:.{digits}f}" if figure.known else ""
                error = f"{figure.error:.{digits}f}" if figure.known and figure.error is not None else ""
                printed = published_figure(table, algorithm, column) if report.with_published else None
                writer.writerow(
                    [
                        *(table.data, table.protocol, table.rule.name, algorithm, column, mean, error),
                        len(figure.values) if figure.known else "",
                        int((algorithm, column) in best),
                        "; ".join(missing_lines(figure.missing)),
                        "" if printed is None else printed.mean,
                        "" if printed is None or printed.stderr is None else printed.stderr,
                    ]
                )
    return file.getvalue()


def _sections(report: Report) -> list[tuple[str, Sequence[str]]]:
    """What stands below the tables, where there is any."""
    found = [
        (f"Missing runs ({len(report.missing)})", report.missing_lines),
        ("Notes", report.notes),
        ("How to read the figures", report.definitions),
    ]
    return [(title, lines) for title, lines in found if lines]
