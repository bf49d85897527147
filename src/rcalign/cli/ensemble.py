"""``rcalign ensemble``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rcalign.cli.completion import complete_runs_folder
from rcalign.cli.shared import show


def ensemble(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, or folders of runs such as a sweep's.", autocompletion=complete_runs_folder),
    ],
    out: Annotated[Path, typer.Option(help="The run folder to write.", show_default=False)],
) -> None:
    """Average the probabilities of finished runs with the same split into one run, where weights cannot be averaged.

    Networks and algorithms may differ.

    Examples:

    rcalign ensemble runs/resnet runs/vit --out runs/both

    rcalign ensemble sweeps/pacs-sketch --out runs/all
    """
    from rcalign import api
    from rcalign.reports.evaluated import figures_of_run

    result = api.ensemble(runs, out=out, progress=True)
    show(figures_of_run(result))
    print(f"Weights: {result['weights']}\nRun folder: {result['folder']}\nNext: rcalign evaluate {result['folder']}")
