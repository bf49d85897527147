"""``rcalign evaluate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from rcalign.catalogue import find_algorithm
from rcalign.cli.completion import complete_data, complete_run
from rcalign.cli.shared import AsJson, Device, check_data, check_run, say, show, takes_options
from rcalign.errors import InputError
from rcalign.training.options import differing, train_options


@takes_options(
    without=("test_domains", "protocol", "seed", "track_bound", "device"),
    about="Training, with --leave-one-out (as for 'train')",
)
def evaluate(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|DATA",
            help="A run folder, a published model (hf://OWNER/NAME) or, with --leave-one-out, data as for 'train'.",
            autocompletion=complete_run,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Argument(help="Other data with the same classes.", show_default="its own", autocompletion=complete_data),
    ] = None,
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out", help="Train once for each domain held out: what the next one may bring.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="With --leave-one-out: runs for each domain.", show_default="1")
    ] = None,
    folds_at_once: Annotated[
        int | None,
        typer.Option(help="With --leave-one-out: runs at a time.", show_default="by the data and the cores"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --leave-one-out: where the runs are kept.", show_default="runs/...")
    ] = None,
    include_training: Annotated[
        bool, typer.Option("--include-training", help="Keep rows of the data that the run was trained on.")
    ] = False,
    device: Device = "auto",
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Test a trained model on its own held-out domains or on other data; or estimate what the next domain will bring.

    Examples:

    rcalign evaluate runs/one

    rcalign evaluate runs/one new_photos/ --json

    rcalign evaluate photos/ --algorithm rc-align --leave-one-out
    """
    chosen = train_options(**options)
    if leave_one_out:
        if data is not None:
            raise InputError(f"'{data}' is one argument too many: --leave-one-out takes one set of data.")
        find_algorithm(chosen.algorithm, chosen.imports)
        check_data(subject)
        from rcalign import api

        result = api.leave_one_out(
            subject,
            seeds=1 if seeds is None else seeds,
            out=out,
            folds_at_once=folds_at_once,
            device=device,
            progress=True,
            **options,
        )
    else:
        folds = {"seeds": seeds, "out": out, "folds_at_once": folds_at_once}
        given = [*differing(options), *(name for name, value in folds.items() if value is not None)]
        if given:
            raise InputError(
                f"`{given[0]}` is for training, but a trained run is evaluated: leave it out, or give data and "
                "--leave-one-out."
            )
        check_run(subject)
        from rcalign import api

        result = api.evaluate(subject, data, include_training=include_training, device=device)
    from rcalign.reports.evaluated import figures_of_classes, figures_of_run

    say(result.get("notes", []))
    if as_json:
        print(json.dumps(result, indent=2))
    elif leave_one_out:
        show(_expected(result))
    else:
        show(figures_of_run(result), figures_of_classes(result))


def _expected(result: dict[str, Any]) -> Group:
    table = Table(
        "domain held out",
        "accuracy",
        "balanced",
        title=f"{result['algorithm']} on {result['data']}, per cent on domains not trained on",
    )
    for domain, value in result["accuracy"].items():
        table.add_row(domain, f"{100 * value:.1f}", f"{100 * result['balanced'][domain]:.1f}")
    table.add_section()
    table.add_row("average", f"{100 * result['average']:.1f}", "")
    low, high = (100 * value for value in result["interval"])
    count = len(result["accuracy"])
    return Group(
        table,
        Text(
            f"Expect {100 * result['average']:.1f} per cent on the next domain: {100 * result['level']:.0f} times in "
            f"100 between {low:.1f} and {high:.1f}, if it is drawn like these {count}. Worst so far: "
            f"{100 * result['worst']:.1f} on '{result['worst_domain']}'.\nRuns: {result['folder']}"
        ),
    )
