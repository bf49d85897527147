"""``rcalign predict``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from rcalign.cli.shared import Device, say, show


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    paths: Annotated[list[Path], typer.Argument(help="Image files, folders of images, or one .npz with x.")],
    out: Annotated[Path | None, typer.Option(help="CSV to write.", show_default="print")] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Below this probability the class is 'unknown'.", show_default="none"),
    ] = None,
    adapt_priors: Annotated[
        bool,
        typer.Option("--adapt-priors", help="Estimate how often each class occurs in these files and correct for it."),
    ] = False,
    device: Device = "auto",
) -> None:
    """Predict classes with calibrated probabilities; files that are no images are listed and skipped."""
    from rcalign import api

    result = api.predict(
        run, paths, out=out, threshold=threshold, adapt_priors=adapt_priors, device=device, progress=True
    )
    say(result["notes"])
    for path, why in result["skipped"]:
        print(f"skipped {path!r}: {why}", file=sys.stderr)
    if result["priors"] is not None:
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in result["priors"].items())
        print(f"estimated class shares: {shares}", file=sys.stderr)
    if out is not None:
        print(f"{result['count']} predictions written to {out}")
        return
    table = Table("path", "predicted", "probability")
    for row in result["rows"]:
        table.add_row(row["path"], row["predicted"], f"{row['confidence']:.3f}")
    show(table)
