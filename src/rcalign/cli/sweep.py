"""``rcalign sweep``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rcalign.cli.completion import complete_plan, complete_runs_folder
from rcalign.cli.shared import AsJson, stop
from rcalign.errors import InputError


def sweep(
    plan: Annotated[
        str,
        typer.Argument(
            help="A sweep file (.toml) or a recipe: domainbed, mdlt, emoji, ... Or the word 'status'.",
            autocompletion=complete_plan,
        ),
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="After 'status': the folder of the sweep.", show_default=False, autocompletion=complete_runs_folder
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the sweep.", show_default="sweeps/NAME")] = None,
    ray: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster, e.g. 10.0.0.5:6379.", show_default="this machine")
    ] = None,
    cpus_per_run: Annotated[int, typer.Option(help="Cores, and torch threads, of a run.")] = 1,
    gpus_per_run: Annotated[float, typer.Option(help="GPUs of a run; 0.5 lets two share one.")] = 0.0,
    workers: Annotated[int | None, typer.Option(help="Most runs at once.", show_default="what fits")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")] = False,
    stalled_after: Annotated[
        float, typer.Option(help="Seconds without a heartbeat after which a run is stopped.")
    ] = 7200.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be trained, and end.")] = False,
    measured_by: Annotated[
        list[Path] | None,
        typer.Option(
            help="With --dry-run: a finished run from which disk and hours are forecast (repeat: one a data set)."
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Weights that finished runs keep: best, last, every or none.", show_default="the file's, else last"
        ),
    ] = None,
    slurm: Annotated[
        str | None,
        typer.Option(
            help="Submit an array job whose tasks train the runs: options for sbatch, e.g. '--partition gpu --time "
            "8:00:00'.",
            show_default=False,
        ),
    ] = None,
    slurm_tasks: Annotated[int | None, typer.Option(help="Tasks of that job, at most.", show_default="16")] = None,
    join: Annotated[
        bool,
        typer.Option("--join", help="Train, in this process and without Ray, runs that no other process trains."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train many runs: data sets x algorithms x test domains x draws x seeds. Goes on where it stopped.

    Examples: rcalign sweep emoji --out sweeps/emoji; then, in another terminal, rcalign sweep status sweeps/emoji
    """
    if plan == "status":
        if folder is None:
            raise InputError("the folder is missing: write rcalign sweep status FOLDER.")
        from rcalign.store.sweep_folder import read_status

        _show_sweep(dataclasses.asdict(read_status(folder)), as_json)
        return
    if folder is not None:
        raise InputError(f"'{folder}' is one argument too many: the folder of a sweep is given by --out.")
    from rcalign.sweeps import plan_file

    plan_file.read_plan(plan)  # what is wrong with it is said before torch is imported
    from rcalign import api

    result = api.sweep(
        plan,
        out=out,
        ray=ray,
        cpus_per_run=cpus_per_run,
        gpus_per_run=gpus_per_run,
        workers=workers,
        retry_failed=retry_failed,
        stalled_after=stalled_after,
        dry_run=dry_run,
        measured_by=measured_by or (),
        keep=keep,
        slurm=slurm,
        slurm_tasks=slurm_tasks,
        join=join,
        progress=True,
    )
    if dry_run:
        _show_plan(result, as_json)
        return
    _show_sweep(result, as_json)
    if slurm is not None and not as_json:
        _show_job(result)
    if result["stopped"] is not None:
        stop(f"{result['stopped']}; the same command goes on with it.", 130 if result["stopped"] == "stopped" else 2)
    if result["failed"]:
        stop(
            f"{result['failed']} runs failed: correct what is said above, then give the same command with "
            "--retry-failed.",
            1,
        )


def _show_job(result: dict[str, Any]) -> None:
    job = result["slurm"]
    if job is None:
        print("Nothing is left to train, so nothing was submitted.")
        return
    print(f"Submitted job {job['number']}, {job['tasks']} tasks: {job['script']}")
    print(f"Look: rcalign sweep status {result['folder']}. Stop: scancel {job['number']}; the same command goes on.")


def _show_plan(plan: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(plan, indent=2))
        return
    from rcalign.store.names import short_data_name
    from rcalign.sweeps.progress import duration, size_on_disk

    counts: dict[tuple[str, str], int] = {}
    for run in plan["runs"]:
        key = (short_data_name(run["data"]), run["label"])
        counts[key] = counts.get(key, 0) + 1
    table = Table("data", "algorithm", "runs", title=f"{plan['name']}: {plan['planned']:,} runs")
    for (data, label), number in counts.items():
        table.add_row(data, label, f"{number:,}")
    Console().print(table)
    if plan["repeats"]:
        print(f"Then {plan['repeats']:,} runs more, which repeat the winners with other seeds.")
    if "forecast" in plan:
        found, winners = plan["forecast"], plan["forecast"]["winners"]
        print(
            f"Disk: {size_on_disk(found['bytes'])}. Time: {duration(3600 * found['hours'])}, {found['at_once']} at "
            f"once, if every algorithm costs what was measured on {', '.join(found['measured'])}."
        )
        if winners:
            print(
                f"No run keeps its weights. The winners trained again, one for each method and choice of test domains "
                f"({winners['runs']:,} runs), would keep {size_on_disk(winners['bytes'])}: "
                f"{size_on_disk(found['bytes'] + winners['bytes'])} in all."
            )
        if found["not_measured"]:
            print(f"Not measured, taken to be like the largest: {', '.join(found['not_measured'])}.")


def _show_sweep(status: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(status, indent=2))
        return
    from rcalign.store.names import short_data_name
    from rcalign.store.sweep_folder import same_failures
    from rcalign.sweeps.progress import duration

    console = Console()
    at_work = "at work" if status["driven"] else "not at work"
    table = Table("data", "algorithm", "finished", "failed", "best validation", title=f"{status['name']} ({at_work})")
    for part in status["parts"]:
        best = "–" if part["best"] is None else f"{100 * part['best']:.1f} % (draw {part['best_draw']})"
        finished = f"{part['finished']} of {part['planned']}"
        table.add_row(short_data_name(part["data"]), part["label"], finished, str(part["failed"]), best)
    console.print(table)
    left = "" if status["seconds_left"] is None else f", about {duration(status['seconds_left'])} left"
    given_up = f", {status['given_up']} given up" if status["given_up"] else ""
    console.print(
        f"{status['finished']} of {status['planned']} finished, {status['running']} running, {status['failed']} failed"
        f"{given_up}, {status['waiting']} waiting{left}",
        highlight=False,
    )
    for alike in same_failures(status["failures"]):
        first, more = alike[0], len(alike) - 1
        others = f" and {more} more like it" if more else ""
        console.print(
            f"\nfailed: {first['run']} ({first['id']}){others}: {first['error']}", markup=False, highlight=False
        )
        for line in first["last_lines"][-5:]:
            console.print(f"    {line}", markup=False, highlight=False)
