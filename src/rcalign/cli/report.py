"""``rcalign report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rcalign.cli.completion import complete_runs_folder
from rcalign.cli.shared import Imports
from rcalign.errors import InputError


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A run, a folder of runs, a sweep, or a sweep of DomainBed or BoDA.",
            show_default=False,
            autocompletion=complete_runs_folder,
        ),
    ],
    select: Annotated[
        str | None,
        typer.Option(
            help="How runs are chosen: training-domain, leave-one-domain-out, oracle, mdlt or wilds.",
            show_default="by the protocol",
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="terminal, markdown, latex, csv or html; tensorboard or mlflow write a folder.",
            show_default="by the ending of --out",
        ),
    ] = None,
    compare: Annotated[
        str | None, typer.Option(help="'published' sets the paper's figures beside ours.", show_default=False)
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="The algorithm that others are compared with.", show_default="the plain one, else the first"),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Only these data sets; several: PACS,VLCS.", show_default="all")
    ] = None,
    algorithm: Annotated[
        list[str] | None, typer.Option(help="Only these algorithms; several: ERM,CORAL.", show_default="all")
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Write the page anew every 30 seconds while a sweep runs; it reloads itself."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The file (or folder) to write.", show_default="print; html: FOLDER/report.html")
    ] = None,
    imports: Imports = None,
) -> None:
    """Choose runs and show their accuracy: tables with standard errors, comparisons, or a page.

    Examples: rcalign report sweeps/emoji; rcalign report sweeps/emoji --out emoji.html --watch
    """
    from rcalign.extensions import import_modules
    from rcalign.reports.render import format_of, render
    from rcalign.reports.report import make_report
    from rcalign.reports.watching import watched

    import_modules(imports or ())
    if (format_ == "html" or watch) and out is None:
        out = folder / "report.html"
    console = Console()
    on_screen = console.is_terminal and out is None
    wanted = format_of(format_, out)
    chosen = {"data": data or [], "algorithms": algorithm or []}
    if watch:
        if wanted != "html":
            raise InputError(f"--watch writes a page, but the format is {wanted}: leave --format out, or use html.")
        assert out is not None
        for sentence in watched(folder, out, lambda: make_report(folder, select, compare, baseline, **chosen)):
            print(sentence, flush=True)
        return
    found = make_report(folder, select, compare, baseline, **chosen)
    text = render(found, wanted, out, console.width if on_screen else None, on_screen)
    if out is None:
        sys.stdout.write(text)
    elif format_ in ("tensorboard", "mlflow"):
        print(text, end="")
    else:
        print(f"Report written to {out}")
