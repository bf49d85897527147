"""The command line: each command is one function of ``rcalign.api``."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rcalign import __version__
from rcalign.errors import DivergedError, InputError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Classifiers for domains they have never seen: train, evaluate, predict.",
)
data_app = typer.Typer(no_args_is_help=True, help="Look at data sets.")
app.add_typer(data_app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"rcalign {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


Data = Annotated[
    str,
    typer.Argument(
        help="A folder domain/class/image, a CSV manifest (path,label,domain[,split][,group]), an .npz "
        "(x,y,domain[,split][,group]), or a name: emoji, emoji-mlt.",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def train(
    data: Data,
    algorithm: Annotated[str, typer.Option(help="See 'rcalign algorithms'.")] = "RC-Align",
    test_domain: Annotated[
        list[str] | None, typer.Option(help="A domain to hold out (repeat for several).", show_default=False)
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="lodo (hold domains out) or mdlt (long-tailed, all domains).", show_default="lodo"),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="default, arrays, domainbed, domainbed-2024, mdlt or rc-align.", show_default="by the data"),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates.", show_default="by the preset")] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Steps between evaluations and checkpoints.", show_default="by the preset")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the split, the batches and everything random.")] = 0,
    backbone: Annotated[
        str | None, typer.Option(help="Any timm network.", show_default="tf_efficientnet_lite0 for images")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="A safetensors or torch file, or 'none' for random.", show_default="pretrained"),
    ] = None,
    freeze_backbone: Annotated[
        bool, typer.Option("--freeze-backbone", help="Compute features once and train a small network on them.")
    ] = False,
    train_batch_norm: Annotated[
        bool, typer.Option("--train-batch-norm", help="Let batch norm follow the batches instead of staying frozen.")
    ] = False,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the square input.", show_default="the data's own or 224")
    ] = None,
    average: Annotated[
        str | None, typer.Option(help="Weight averaging: ema, swa or swad.", show_default="none")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A hyperparameter, field=value (repeat). See 'rcalign algorithms NAME'.", show_default=False
        ),
    ] = None,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    out: Annotated[Path | None, typer.Option(help="The run folder.", show_default="runs/...")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable images out and list them.")] = False,
) -> None:
    """Train one model, choose its checkpoint by validation on the source domains, test it on the held-out ones.

    Example: rcalign train emoji --algorithm rc-align --test-domain windows --steps 300
    """
    from rcalign import api
    from rcalign.spaces import assignments

    result = api.train(
        data,
        algorithm,
        test_domain or [],
        protocol=protocol,
        preset=preset,
        steps=steps,
        evaluate_every=evaluate_every,
        seed=seed,
        backbone=backbone,
        weights=weights,
        freeze_backbone=freeze_backbone,
        freeze_batch_norm=False if train_batch_norm else None,
        image_size=image_size,
        hparams=assignments(set_ or []),
        average=average,
        device=device,
        precision=precision,
        out=out,
        resume=resume,
        skip_bad=skip_bad,
        progress=True,
    )
    Console().print(_figures(result))
    print(f"Run folder: {result['folder']}\nNext: rcalign predict {result['folder']} IMAGE...")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the picture go.")] = Path("demo"),
    steps: Annotated[int, typer.Option(help="Updates of each of the four models.")] = 120,
) -> None:
    """Compare ERM and RC-Align on emoji drawings of vendors they have not seen. A few minutes; resumes if stopped."""
    from rcalign.demo import demo as run
    from rcalign.demo import table

    outcome = run(out, steps)
    Console().print(table(outcome["results"]))
    print(f"Picture: {outcome['picture']}\nRuns: {out} (delete the folder to train anew)")
    print("One seed and few steps: a look at the tool, not evidence. Next: rcalign train --help")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[
        str | None, typer.Argument(help="Other data with the same classes.", show_default="its own")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Test a trained model on its own held-out domains, or on other data."""
    from rcalign import api

    result = api.evaluate(run, data, device=device)
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        Console().print(_figures(result))


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    paths: Annotated[list[Path], typer.Argument(help="Image files, folders of images, or one .npz with x.")],
    out: Annotated[Path | None, typer.Option(help="CSV to write.", show_default="print")] = None,
    device: Device = "auto",
) -> None:
    """Predict classes with their probabilities."""
    from rcalign import api

    rows = api.predict(run, paths, out=out, device=device)
    if out is not None:
        print(f"{len(rows)} predictions written to {out}")
        return
    classes = [name for name in rows[0] if name not in ("path", "predicted")]
    table = Table("path", "predicted", "probability")
    for row in rows:
        table.add_row(row["path"], row["predicted"], f"{max(row[name] for name in classes):.3f}")
    Console().print(table)


@data_app.command("info")
def data_info(data: Data, as_json: AsJson = False) -> None:
    """Samples per domain and class, what was dropped and why."""
    from rcalign import api

    info = api.data_info(data)
    if as_json:
        print(json.dumps(info, indent=2))
        return
    table = Table("class", *info["domains"], "all", title=f"{info['name']}: {info['rows']:,} samples")
    for name in info["classes"]:
        numbers = [counts[name] for counts in info["counts"].values()]
        table.add_row(name, *(f"{n:,}" for n in [*numbers, sum(numbers)]))
    table.add_section()
    table.add_row("all", *(f"{n:,}" for n in info["rows_of_domain"].values()), f"{info['rows']:,}")
    console = Console()
    console.print(table)
    for note in info["notes"]:
        console.print(f"- {note}", markup=False)


@app.command()
def algorithms(
    name: Annotated[str | None, typer.Argument(help="Show one with its hyperparameters.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """List the algorithms, or the hyperparameters of one."""
    from rcalign import api

    rows = api.algorithms(name)
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


def _figures(result: dict[str, Any]) -> Table:
    table = Table("domain", "accuracy", "balanced", title=f"{result['algorithm']} on {result['data']}, per cent")
    for domain, value in result["accuracy"].items():
        table.add_row(domain, f"{100 * value:.1f}", f"{100 * result['balanced'][domain]:.1f}")
    table.add_section()
    table.add_row("average", f"{100 * result['average']:.1f}", "")
    table.add_row("worst", f"{100 * result['worst']:.1f}", "")
    for shot, value in result["shots"].items():
        if value is not None:
            table.add_row(f"{shot} shot", f"{100 * value:.1f}", "")
    table.add_row("calibration error", f"{100 * result['ece']:.1f}", "")
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def main() -> None:
    """Runs a command; what is the user's to mend is said in one sentence, with exit code 2."""
    try:
        app(standalone_mode=True)
    except (InputError, DivergedError) as error:
        _stop(str(error), 2)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            where = f" while writing {error.filename}" if error.filename else ""
            _stop(f"no room is left on the disk{where}: free some, then go on with --resume.", 2)
        if isinstance(error, PermissionError):
            _stop(f"'{error.filename}' cannot be written or read: change its permissions, or use another folder.", 2)
        raise
    except KeyboardInterrupt:
        _stop("stopped; go on with the same command and --resume.", 130)
    except Exception as error:
        if type(error).__name__ == "Interrupted":  # imported lazily: torch takes seconds
            _stop(f"{error}; its state is saved: go on with the same command and --resume.", 130)
        raise


def _stop(message: str, code: int) -> None:
    print(f"rcalign: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
