"""The command line: each command is one function of ``rcalign.api``."""

from __future__ import annotations

import errno
import functools
import inspect
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from rcalign import __version__
from rcalign.errors import DivergedError, InputError, in_words_of
from rcalign.spaces import assignments
from rcalign.training.options import Described, described, differing

Command = Callable[..., None]
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Classifiers for domains they have never seen: train, evaluate, predict.",
)
data_app = typer.Typer(no_args_is_help=True, help="Look at data sets, and get the published ones.")
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
        "(x,y,domain[,split][,group]), or a name: emoji, emoji-mlt, PACS ... (see 'rcalign data list').",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def takes_options(*, without: Sequence[str] = (), about: str = "") -> Callable[[Command], Command]:
    """Decorator: a command whose ``**options`` are the fields of ``TrainOptions``, each as an option of its own.

    without: fields that it does not take. about: a heading, where the options are for one use of the command only.
    """
    fields = {name: field for name, field in described().items() if name not in without}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = {name: _value(field, values.pop(name)) for name, field in fields.items()}
            command(**values, **given)

        own = [item for item in inspect.signature(command).parameters.values() if item.kind is not item.VAR_KEYWORD]
        hints = {name: hint for name, hint in get_type_hints(command, include_extras=True).items() if name != "options"}
        made = {name: _annotation(field, about) for name, field in fields.items()}
        defaults = {name: None if field.kind in (tuple, dict) else field.default for name, field in fields.items()}
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=made[name])
            for name in fields
        ]
        first = [item.replace(annotation=hints[item.name]) for item in own if item.default is item.empty]
        last = [
            item.replace(annotation=hints[item.name], kind=item.KEYWORD_ONLY)
            for item in own
            if item.default is not item.empty
        ]
        run.__signature__ = inspect.Signature([*first, *more, *last])  # type: ignore[attr-defined]
        run.__annotations__ = {**hints, **made}
        return run

    return decorate


def _annotation(field: Described, about: str) -> Any:
    """A field of ``TrainOptions`` as typer wants it."""
    option = field.option
    kind: Any = list[str] if field.kind in (tuple, dict) else field.kind
    more: dict[str, Any] = {} if option.choices is None else {"metavar": "|".join(option.choices)}
    text = option.help
    if len(more.get("metavar", "")) > 20:
        text = f"{text.removesuffix('.')}: {', '.join(option.choices or ())}."
        more["metavar"] = "NAME"
    if field.optional or field.kind in (tuple, dict):
        kind, more["show_default"] = kind | None, option.when_none or False
    return Annotated[kind, typer.Option(field.flag, help=text, rich_help_panel=about or option.group, **more)]


def _value(field: Described, value: Any) -> Any:
    """What the command line gives, as the field is."""
    if field.kind is dict:
        return assignments(value or [])
    return tuple(value or ()) if field.kind is tuple else value


def _flag(name: str) -> str:
    """An argument of the library as the command line calls it."""
    return described()[name].flag.partition("/")[0] if name in described() else "--" + name.replace("_", "-")


@app.command()
@takes_options()
def train(
    data: Data,
    out: Annotated[Path | None, typer.Option(help="The run folder.", show_default="runs/...")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
    **options: Any,
) -> None:
    """Train one model, choose its checkpoint by validation on the source domains, test it on the held-out ones.

    Examples:

    rcalign train emoji --algorithm rc-align --test-domain windows --steps 300

    rcalign train photos/ --algorithm ERM --test-domain hospital_5 --freeze-backbone

    rcalign train rows.npz --test-domain 2 --set learning_rate=1e-3 --set batch_size=32 --out runs/rows --resume
    """
    from rcalign import api
    from rcalign.reports.evaluated import figures_of_run

    result = api.train(data, out=out, resume=resume, progress=True, **options)
    _console().print(figures_of_run(result))
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
@takes_options(
    without=("test_domains", "protocol", "seed", "track_bound", "device"),
    about="Training, with --leave-one-out (as for 'train')",
)
def evaluate(
    subject: Annotated[
        str, typer.Argument(metavar="RUN|DATA", help="A run folder or, with --leave-one-out, data as for 'train'.")
    ],
    data: Annotated[
        str | None, typer.Argument(help="Other data with the same classes.", show_default="its own")
    ] = None,
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out", help="Train once for each domain held out: what the next one may bring.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="With --leave-one-out: runs for each domain.", show_default="1")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --leave-one-out: where the runs are kept.", show_default="runs/...")
    ] = None,
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
    from rcalign import api
    from rcalign.reports.evaluated import figures_of_classes, figures_of_run

    if leave_one_out:
        if data is not None:
            raise InputError(f"'{data}' is one argument too many: --leave-one-out takes one set of data.")
        result = api.leave_one_out(
            subject, seeds=1 if seeds is None else seeds, out=out, device=device, progress=True, **options
        )
    else:
        given = [*differing(options), *(name for name, value in (("seeds", seeds), ("out", out)) if value is not None)]
        if given:
            raise InputError(
                f"`{given[0]}` is for training, but a trained run is evaluated: leave it out, or give data and "
                "--leave-one-out."
            )
        result = api.evaluate(subject, data, device=device)
    _say(result.get("notes", []))
    if as_json:
        print(json.dumps(result, indent=2))
    elif leave_one_out:
        _console().print(_expected(result))
    else:
        _console().print(figures_of_run(result), figures_of_classes(result))


@app.command()
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
    _say(result["notes"])
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
    _console().print(table)


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
    console = _console()
    console.print(table)
    for note in info["notes"]:
        console.print(f"- {note}")


Root = Annotated[
    Path | None, typer.Option(help="The data root.", show_default="$RCALIGN_DATA or ~/.local/share/rcalign")
]
Name = Annotated[str, typer.Argument(help="A benchmark: see 'rcalign data list'.", show_default=False)]


@data_app.command("list")
def data_list(root: Root = None, as_json: AsJson = False) -> None:
    """The published benchmarks, and which of them are here."""
    from rcalign import api

    rows = api.data_list(root)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("name", "state", "what it is")
    for row in rows:
        table.add_row(row["name"], row["state"], row["summary"])
    Console().print(table)
    print("Get one: rcalign data fetch NAME. Have it: rcalign data prepare NAME --from PATH.")


@data_app.command("prepare")
def data_prepare(
    name: Name,
    from_: Annotated[
        list[Path],
        typer.Option(
            "--from",
            help="An archive, a folder (also DomainBed's data_dir), parquet files, camera-trap annotations, or an MDLT "
            "split file (repeat for several).",
            show_default=False,
        ),
    ],
    root: Root = None,
    drop: Annotated[
        Path | None,
        typer.Option(help="A list of images to leave out, such as DomainNet's duplicates.", show_default=False),
    ] = None,
    keep: Annotated[
        list[Path] | None,
        typer.Option(help="A list of the only images to use, such as DomainNet126's (repeat).", show_default=False),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Prepare domains anew that are in place.")] = False,
) -> None:
    """Put a benchmark that you have into the data root, where its name finds it.

    Example: rcalign data prepare PACS --from PACS.zip
    """
    from rcalign import api

    with _goes_on():
        done = api.data_prepare(name, from_, root, drop=drop, keep=keep or (), replace=replace, progress=True)
    _show_prepared(done)


@data_app.command("fetch")
def data_fetch(
    name: Name,
    root: Root = None,
    mirror: Annotated[
        str | None, typer.Option(help="An address that has the files by their names, asked first.", show_default=False)
    ] = None,
    keep_archives: Annotated[
        bool, typer.Option("--keep-archives", help="Leave the downloaded files in ROOT/downloads.")
    ] = False,
) -> None:
    """Download a benchmark and prepare it. Run it again to go on where it stopped."""
    from rcalign import api

    with _goes_on():
        done = api.data_fetch(name, root, mirror=mirror, keep_archives=keep_archives, progress=True)
    _show_prepared(done)


@data_app.command("verify")
def data_verify(
    name: Name,
    root: Root = None,
    splits: Annotated[
        Path | None, typer.Option(help="An MDLT split file.", show_default="the one with the images, or the rule")
    ] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Also decode every image.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare domains, classes and counts with the published ones. Ends with code 1 if something is missing."""
    from rcalign import api

    report = api.data_verify(name, root, split_file=splits, decode=decode, progress=not as_json)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _show_verified(report)
    if not report["complete"]:
        raise typer.Exit(1)


@data_app.command("sample")
def data_sample(
    name: Name,
    out: Annotated[Path, typer.Option(help="The data root to write to.", show_default=False)],
    each: Annotated[int, typer.Option(help="Images of every (domain, class) pair.")] = 4,
    size: Annotated[int, typer.Option(help="Side of an image.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the drawings.")] = 0,
) -> None:
    """Draw a tiny stand-in with a benchmark's layout, domains and classes, to try things on."""
    from rcalign import api

    done = api.data_sample(name, out, each=each, size=size, seed=seed)
    print(f"{done['images']:,} drawn {done.get('unit', 'images')} written to {done['root']}/{done['folder']}")
    print(f"Next: rcalign data info {done['use']}")


@contextmanager
def _goes_on() -> Iterator[None]:
    """Says after Ctrl-C what these commands do when they are run again."""
    try:
        yield
    except KeyboardInterrupt:
        _stop("stopped; the same command goes on where this one was.", 130)


def _show_prepared(done: dict[str, Any]) -> None:
    for domain, images in done["images"].items():
        print(f"{domain}: {images:,} {done.get('unit', 'images')}")
    for note in done["notes"]:
        print(f"- {note}")
    print(f"{done['name']} is in {done['folder']}")
    if not done["complete"]:
        print(f"Not as published: {'; '.join(done['problems'][:3])}. See: rcalign data verify {done['name']}")


def _show_verified(report: dict[str, Any]) -> None:
    table = Table("domain", report.get("unit", "images"), title=f"{report['name']} in {report['folder']}")
    for domain, images in report["domains"].items():
        table.add_row(domain, f"{images:,}")
    table.add_section()
    table.add_row("all", f"{report['images']:,}")
    Console().print(table)
    print("Known editions: " + "; ".join(f"{name}: {rows:,}" for name, rows in report["expected"].items()))
    split = report.get("split")
    if split is not None:
        shots = ", ".join(f"{n} {shot}" for shot, n in split["shots"].items())
        sizes = " / ".join(f"{split[part]:,}" for part in ("train", "val", "test"))
        print(f"Split ({split['file'] or 'by the rule'}): {sizes}; {shots}")
    for note in report["notes"]:
        print(f"- {note}")
    for problem in report["problems"]:
        print(f"- {problem}")
    print("Complete." if report["complete"] else "Not as published.")


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


@app.command()
def sweep(
    plan: Annotated[
        str, typer.Argument(help="A sweep file (.toml) or a recipe: domainbed, mdlt, emoji, ... Or the word 'status'.")
    ],
    folder: Annotated[
        Path | None, typer.Argument(help="After 'status': the folder of the sweep.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the sweep.", show_default="sweeps/NAME")] = None,
    ray: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster, e.g. 10.0.0.5:6379.", show_default="this machine")
    ] = None,
    cpus_per_run: Annotated[int, typer.Option(help="Cores, and torch threads, of a run.")] = 1,
    gpus_per_run: Annotated[float, typer.Option(help="GPUs of a run; 0.5 lets two share one.")] = 0.0,
    workers: Annotated[int | None, typer.Option(help="At most so many runs at once.", show_default="what fits")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")] = False,
    stalled_after: Annotated[
        float, typer.Option(help="Seconds without a sign of life after which a run is stopped.")
    ] = 7200.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be trained, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train many runs: data sets x algorithms x test domains x draws x seeds. Goes on where it stopped.

    Examples: rcalign sweep emoji --out sweeps/emoji; then, in another terminal, rcalign sweep status sweeps/emoji
    """
    from rcalign import api

    if plan == "status":
        if folder is None:
            raise InputError("the folder is missing: write rcalign sweep status FOLDER.")
        _show_sweep(api.sweep_status(folder), as_json)
        return
    if folder is not None:
        raise InputError(f"'{folder}' is one argument too many: the folder of a sweep is given by --out.")
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
        progress=True,
    )
    if dry_run:
        _show_plan(result, as_json)
        return
    _show_sweep(result, as_json)
    if result["stopped"] is not None:
        _stop(f"{result['stopped']}; the same command goes on with it.", 130 if result["stopped"] == "stopped" else 2)
    if result["failed"]:
        _stop(f"{result['failed']} runs failed: try them again with the same command and --retry-failed.", 1)


def _show_plan(plan: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(plan, indent=2))
        return
    from rcalign.sweeps.folder import short

    counts: dict[tuple[str, str], int] = {}
    for run in plan["runs"]:
        key = (short(run["data"]), run["label"])
        counts[key] = counts.get(key, 0) + 1
    table = Table("data", "algorithm", "runs", title=f"{plan['name']}: {plan['planned']:,} runs")
    for (data, label), number in counts.items():
        table.add_row(data, label, f"{number:,}")
    Console().print(table)


def _show_sweep(status: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(status, indent=2))
        return
    from rcalign.sweeps.folder import short
    from rcalign.sweeps.progress import duration

    console = Console()
    at_work = "at work" if status["driven"] else "not at work"
    table = Table("data", "algorithm", "finished", "failed", "best validation", title=f"{status['name']} ({at_work})")
    for part in status["parts"]:
        best = "–" if part["best"] is None else f"{100 * part['best']:.1f} % (draw {part['best_draw']})"
        finished = f"{part['finished']} of {part['planned']}"
        table.add_row(short(part["data"]), part["label"], finished, str(part["failed"]), best)
    console.print(table)
    left = "" if status["seconds_left"] is None else f", about {duration(status['seconds_left'])} left"
    given_up = f", {status['given_up']} given up" if status["given_up"] else ""
    console.print(
        f"{status['finished']} of {status['planned']} finished, {status['running']} running, {status['failed']} failed"
        f"{given_up}, {status['waiting']} waiting{left}",
        highlight=False,
    )
    for failure in status["failures"]:
        console.print(
            f"\nfailed: {failure['run']} ({failure['id']}): {failure['error']}", markup=False, highlight=False
        )
        for line in failure["last_lines"][-5:]:
            console.print(f"    {line}", markup=False, highlight=False)


@app.command()
def report(
    folder: Annotated[
        Path,
        typer.Argument(help="A run, a folder of runs, a sweep, or a sweep of DomainBed or BoDA.", show_default=False),
    ],
    select: Annotated[
        str | None,
        typer.Option(
            help="How runs are chosen: training-domain, leave-one-domain-out, oracle or mdlt.",
            show_default="by the protocol",
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="terminal, markdown, latex, csv or html; tensorboard or mlflow write a folder.",
            show_default="by the ending of --out",
        ),
    ] = None,
    compare: Annotated[
        str | None, typer.Option(help="'published' sets the paper's figures beside ours.", show_default=False)
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="The algorithm that others are compared with.", show_default="the plain one, else the first"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file (or folder) to write.", show_default="print; html: FOLDER/report.html")
    ] = None,
) -> None:
    """Choose runs and show their accuracy: tables with errors, comparisons, or a page to look at.

    Examples: rcalign report sweeps/emoji; rcalign report sweeps/emoji --out emoji.html
    """
    from rcalign import api

    if format_ == "html" and out is None:
        out = folder / "report.html"
    console = Console()
    text = api.report(
        folder,
        select=select,
        format=format_,
        compare=compare,
        baseline=baseline,
        out=out,
        width=console.width if console.is_terminal and out is None else None,
        colour=console.is_terminal and out is None,
    )
    if out is None:
        sys.stdout.write(text)
    elif format_ in ("tensorboard", "mlflow"):
        print(text, end="")
    else:
        print(f"Report written to {out}")


@app.command()
def diagnose(
    subject: Annotated[str, typer.Argument(help="A run folder, or an .npz of features, labels, domains and a head.")],
    data: Annotated[str | None, typer.Argument(help="Other labelled data.", show_default="the run's own")] = None,
    target: Annotated[
        str | None, typer.Option(help="A domain, or an unlabelled .npz.", show_default="the first held-out domain")
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="terminal, json or html.", show_default="by the ending of --out")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write it: .txt, .json or .html.", show_default="print; html: next to the run"),
    ] = None,
    device: Device = "auto",
) -> None:
    """Say why a model fails, or will fail, on a domain: class frequencies, looks, or both, and what would help."""
    from rcalign import api
    from rcalign.diagnosis import ENDINGS, render
    from rcalign.files import check_output, format_by_ending, write_whole

    wanted = format_by_ending(format_, out, ENDINGS, "terminal")
    if out is None and wanted == "html":
        out = Path(subject) / "diagnosis.html" if Path(subject).is_dir() else Path(subject).with_suffix(".html")
    if out is not None:
        check_output(out)
    told = api.diagnose(subject, data, target=target, device=device)
    if out is not None:
        write_whole(out, render(told, wanted).encode())
        print(f"Written to {out}")
    elif wanted == "terminal":
        from rcalign.diagnosis import render_terminal

        Console().print(render_terminal(told))
    else:
        print(render(told, wanted))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
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
    from rcalign import api

    done = api.export(run, format, out=out, diagnosis=diagnosis)
    _say(done["notes"])
    checked = "" if done["difference"] is None else f" (within {done['difference']:.0e} of the trained one)"
    print(f"Model: {done['file']}{checked}\nInput: {done['input']}\nOutput: {done['output']}\nCard: {done['card']}")


def _say(notes: list[str]) -> None:
    """What the user should know beside the result, on standard error."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


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


def _console() -> Console:
    """For tables with names of the user's, which are not to be read as markup."""
    return Console(markup=False)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def main() -> None:
    """Runs a command; what is the user's to mend is said in one sentence, with exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be no text
    try:
        app(standalone_mode=True)
    except (InputError, DivergedError) as error:
        _stop(in_words_of(str(error), _flag), 2)
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
