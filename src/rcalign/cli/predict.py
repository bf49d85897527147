"""``rcalign predict``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from rcalign.cli.completion import complete_run
from rcalign.cli.shared import AsJson, Device, check_run, say, show


def predict(
    run: Annotated[
        str, typer.Argument(help="A run folder, or a published model: hf://OWNER/NAME.", autocompletion=complete_run)
    ],
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Image files, folders of images, .csv lists of them (column 'path'), one .npz with x, or one table."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="CSV to write.", show_default="print")] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Below this probability the class is 'unknown'.", show_default="none"),
    ] = None,
    adapt_priors: Annotated[
        bool,
        typer.Option(
            "--adapt-priors",
            help="Estimate how often each class occurs in these files, and correct for it if that can be trusted.",
        ),
    ] = False,
    coverage: Annotated[
        float | None,
        typer.Option(
            help="For a model of 'fit': also the set of classes that has the true one with this probability on a new "
            "domain, such as 0.8.",
            show_default="none",
        ),
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Predict classes with calibrated probabilities.

    Files that are no images are listed with the reason, and the command ends with code 3.
    """
    check_run(run)
    from rcalign import api

    result = api.predict(
        run,
        paths,
        out=out,
        threshold=threshold,
        adapt_priors=adapt_priors,
        coverage=coverage,
        device=device,
        progress=not as_json,
    )
    say(result["notes"])
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _show(result, out)
    if result["skipped"]:
        raise typer.Exit(3)


def _show(result: dict[str, Any], out: Path | None) -> None:
    for path, problem in result["skipped"]:
        print(f"skipped {path!r}: {problem}", file=sys.stderr)
    if result["priors"] is not None:
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in result["priors"].items())
        print(f"estimated class shares{'' if result['adapted'] else ', not used'}: {shares}", file=sys.stderr)
    if out is not None:
        print(f"{result['count']} predictions written to {out}")
        return
    sets = any("set" in row for row in result["rows"])
    table = Table("path", "predicted", "probability", *(["set"] if sets else []))
    for row in result["rows"]:
        if row["problem"] is None:
            table.add_row(row["path"], row["predicted"], f"{row['confidence']:.3f}", *([row["set"]] if sets else []))
        else:
            table.add_row(row["path"], f"skipped: {row['problem']}", "")
    show(table)
