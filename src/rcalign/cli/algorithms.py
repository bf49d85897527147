"""``rcalign algorithms``."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rcalign.cli.completion import complete_algorithm
from rcalign.cli.shared import AsJson, Imports


def algorithms(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show one with its hyperparameters.", show_default=False, autocompletion=complete_algorithm
        ),
    ] = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """List the algorithms, or the hyperparameters of one."""
    from rcalign import catalogue

    given = tuple(imports or ())
    rows = catalogue.list_algorithms(given) if name is None else [catalogue.describe_algorithm(name, given)]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    console = Console()
    if name is None:
        table = Table("algorithm", "family", "needs", "cost", "what it does", caption="cost: step time relative to ERM")
        for row in rows:
            table.add_row(row["name"], row["family"], row["needs"], _number(row["cost"]), row["summary"])
        console.print(table)
        return
    (row,) = rows
    console.print(f"[bold]{row['name']}[/]: {row['summary']}\nPaper: {row['paper']}\nNeeds: {row['needs']}")
    table = Table("field (--set field=value)", "default", "meaning", "searched in")
    for field, about in row["hparams"].items():
        options = f" ({' | '.join(map(str, about['choices']))})" if about["choices"] else ""
        table.add_row(field, str(about["default"]), about["meaning"] + options, about["search"] or "–")
    console.print(table)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
