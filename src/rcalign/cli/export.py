"""``rcalign export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rcalign.cli.completion import complete_run
from rcalign.cli.shared import check_run, say


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.", autocompletion=complete_run)],
    format: Annotated[
        str | None,
        typer.Option(help="onnx, torchscript or safetensors.", show_default="by the ending of --out, else onnx"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file: .onnx, .pt or .safetensors.", show_default="RUN/export/model..."),
    ] = None,
    diagnosis: Annotated[
        bool, typer.Option("--diagnosis", help="Put the findings of 'rcalign diagnose' into the model card.")
    ] = False,
) -> None:
    """Write a model for other programs, RGB bytes in and calibrated probabilities out, with a model card."""
    check_run(run)
    from rcalign import api

    done = api.export(run, format, out=out, diagnosis=diagnosis)
    say(done["notes"])
    checked = "" if done["difference"] is None else f" (within {done['difference']:.0e} of the trained one)"
    print(f"Model: {done['file']}{checked}\nInput: {done['input']}\nOutput: {done['output']}\nCard: {done['card']}")
