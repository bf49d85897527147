"""``rcalign diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rcalign.cli.completion import complete_data, complete_run
from rcalign.cli.shared import Device, check_run


def diagnose(
    subject: Annotated[
        str,
        typer.Argument(
            help="A run folder, hf://OWNER/NAME, or an .npz of features, labels, domains and a head.",
            autocompletion=complete_run,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Argument(help="Other labelled data.", show_default="the run's own", autocompletion=complete_data),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="A domain; or samples without labels: a folder of images, a .csv list, an .npz, a table.",
            show_default="the first held-out domain",
        ),
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="terminal, json or html.", show_default="by the ending of --out")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write it: .txt, .json or .html.", show_default="print; html: next to the run"),
    ] = None,
    include_training: Annotated[
        bool, typer.Option("--include-training", help="Keep rows of the data that the run was trained on.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Explain why a model fails, or will fail, on a domain: class frequencies, appearance, or both; what would help."""
    if Path(subject).suffix != ".npz":
        check_run(subject)
    from rcalign import api
    from rcalign.diagnosis import ENDINGS, render_diagnosis
    from rcalign.files import check_output, format_by_ending, write_whole

    wanted = format_by_ending(format_, out, ENDINGS, "terminal")
    if out is None and wanted == "html":
        out = Path(subject) / "diagnosis.html" if Path(subject).is_dir() else Path(subject).with_suffix(".html")
    if out is not None:
        check_output(out)
    found = api.diagnose(subject, data, target=target, include_training=include_training, device=device)
    if out is not None:
        write_whole(out, render_diagnosis(found, wanted).encode())
        print(f"Written to {out}")
    elif wanted == "terminal":
        from rcalign.diagnosis import render_terminal

        Console().print(render_terminal(found))
    else:
        print(render_diagnosis(found, wanted))
