"""``rcalign fit``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from rcalign.cli.shared import AsJson, Data, Device, show, stop

TABLES = "Columns of a table"


def fit(
    data: Data,
    budget: Annotated[str, typer.Option(help="Time for everything: 30m, 90s, 2h; 0 compares nothing.")] = "10m",
    rule: Annotated[
        str, typer.Option("--for", metavar="mean|worst", help="Choose by the mean or the worst left-out domain.")
    ] = "mean",
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--try", help="A further algorithm to compare, such as MLDG or MLDG+swad (repeat).", show_default=False
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The column with the class.", rich_help_panel=TABLES, show_default=False)
    ] = None,
    domain: Annotated[
        str | None, typer.Option(help="The column with the domain.", rich_help_panel=TABLES, show_default=False)
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            help="A column that names what a row is of (a patient): its rows stay together.",
            rich_help_panel=TABLES,
            show_default=False,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="A column not to read (repeat).", rich_help_panel=TABLES, show_default=False),
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option(
            help="A column of numbers that are names, such as codes (repeat).",
            rich_help_panel=TABLES,
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="A column of sentences (repeat).", rich_help_panel=TABLES, show_default=False),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="The sentence encoder: a folder, or a name.", rich_help_panel=TABLES, show_default="all-MiniLM-L6-v2"
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps of a full training run.", show_default="by the preset")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    backbone: Annotated[str | None, typer.Option(help="Any timm network.", show_default="by the data")] = None,
    weights: Annotated[str | None, typer.Option(help="As for 'train'.", show_default="pretrained")] = None,
    image_size: Annotated[int | None, typer.Option(help="As for 'train'.", show_default="by the data")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable images out.")] = False,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(help="Trainings at once.", show_default="one for each core")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write.", show_default="fits/...")] = None,
    as_json: AsJson = False,
) -> None:
    """From data to a model that you can defend: compares methods by leaving domains out, says what to expect.

    Stop it and give the same command again: it goes on where it was.

    Examples:

    rcalign fit photos/ --budget 30m

    rcalign fit patients.csv --label diagnosis --domain hospital --budget 10m

    rcalign fit reviews.csv --label stars --domain shop --text review
    """
    begun = time.monotonic()  # importing torch is part of the budget
    from rcalign import api

    try:
        result = api.fit(
            data,
            label=label,
            domain=domain,
            id=id,
            ignore=ignore or (),
            category=category or (),
            text=text or (),
            encoder=encoder,
            budget=budget,
            rule=rule,
            more=more or (),
            steps=steps,
            seed=seed,
            workers=workers,
            out=out,
            progress=True,
            begun=begun,
            backbone=backbone,
            weights=weights,
            image_size=image_size,
            skip_bad=skip_bad,
            device=None if device == "auto" else device,
        )
    except KeyboardInterrupt:
        stop("stopped; the same command goes on where it was.", 130)
    if as_json:
        print(json.dumps(result, indent=2))
        return
    if result["table"]:
        table = Table("method", "mean", "worst", "balanced", title="Accuracy on domains left out, per cent")
        for row in result["table"]:
            chosen = " (chosen)" if row["method"] == result["method"]["name"] else ""
            figures = (f"{100 * row[name]:.1f}" for name in ("mean", "worst", "balanced"))
            table.add_row(row["method"] + chosen, *figures)
        show(table)
    if result["expectation"] is not None:
        print(result["expectation"]["sentence"])
    if result["final_training"] is not None and result["final_training"]["sentence"]:
        print(result["final_training"]["sentence"])
    print(f"Page: {result['report']}\nModel card: {result['card']}\nModel: {result['model']}\nUse it:")
    for command in result["commands"]:
        print(f"  {command}")
