"""``rcalign soup``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rcalign.cli.completion import complete_runs_folder
from rcalign.cli.shared import show


def soup(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, or folders of runs such as a sweep's.", autocompletion=complete_runs_folder),
    ],
    out: Annotated[Path, typer.Option(help="The run folder to write.", show_default=False)],
    kind: Annotated[
        str, typer.Option(help="uniform: the mean of all; greedy: of those that do not lower validation accuracy.")
    ] = "uniform",
) -> None:
    """Average the weights of finished runs that share their start (model soup, DiWA) into one run.

    Examples:

    rcalign soup sweeps/pacs-sketch --out runs/diwa

    rcalign soup runs/a runs/b runs/c --kind greedy --out runs/soup
    """
    from rcalign import api
    from rcalign.reports.evaluated import figures_of_run

    result = api.soup(runs, out=out, kind=kind, progress=True)
    show(figures_of_run(result))
    print(f"Weights: {result['weights']}\nRun folder: {result['folder']}\nNext: rcalign evaluate {result['folder']}")
