"""``rcalign data ...``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rcalign.cli.shared import AsJson, CommandParser, Data, Imports, flag, show, stop
from rcalign.errors import in_words_of

app = typer.Typer(no_args_is_help=True, help="Look at data sets, and get the published ones.")


RootOption = Annotated[
    Path | None, typer.Option(help="The data root.", show_default="$RCALIGN_DATA or ~/.local/share/rcalign")
]


Name = Annotated[str, typer.Argument(help="A benchmark: see 'rcalign data list'.", show_default=False)]


@app.command("info", cls=CommandParser)
def data_info(data: Data, imports: Imports = None, as_json: AsJson = False) -> None:
    """Samples per domain and class, what was dropped and why."""
    from rcalign.data import loading, source
    from rcalign.extensions import import_modules

    import_modules(imports or ())
    info = source.describe(loading.load(data))
    if as_json:
        print(json.dumps(info, indent=2))
        return
    table = _counts(info)
    console = Console()
    # where not even every number has room, a line for each domain has
    show(
        table
        if console.measure(table, options=console.options.update(max_width=10_000)).minimum <= console.width
        else _counts_by_domain(info)
    )
    for note in info["notes"]:
        show(f"- {in_words_of(note, flag)}")


def _counts(info: dict[str, Any]) -> Table:
    """A row for each class, a column for each domain."""
    table = Table(title=f"{info['name']}: {info['rows']:,} samples")
    table.add_column("class")
    for name in [*info["domains"], "all"]:
        table.add_column(name, justify="right", no_wrap=True)
    for name in info["classes"]:
        numbers = [counts[name] for counts in info["counts"].values()]
        table.add_row(name, *(f"{n:,}" for n in [*numbers, sum(numbers)]))
    table.add_section()
    table.add_row("all", *(f"{n:,}" for n in info["rows_of_domain"].values()), f"{info['rows']:,}")
    return table


def _counts_by_domain(info: dict[str, Any]) -> Table:
    """A row for each domain, the counts of its classes as text."""
    table = Table(title=f"{info['name']}: {info['rows']:,} samples")
    table.add_column("domain", overflow="fold")
    table.add_column("all", justify="right", no_wrap=True)
    table.add_column("classes")
    totals = {name: sum(counts[name] for counts in info["counts"].values()) for name in info["classes"]}
    for domain, counts in info["counts"].items():
        table.add_row(domain, f"{info['rows_of_domain'][domain]:,}", _as_text(counts))
    table.add_section()
    table.add_row("all", f"{info['rows']:,}", _as_text(totals))
    return table


def _as_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {n:,}" for name, n in counts.items() if n) or "none"


@app.command("list", cls=CommandParser)
def data_list(root: RootOption = None, as_json: AsJson = False) -> None:
    """The published benchmarks, and which of them are here."""
    from rcalign.data.benchmarks import actions

    rows = actions.list_data(root)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("name", "state", "what it is")
    for row in rows:
        table.add_row(row["name"], row["state"], row["summary"])
    Console().print(table)
    print("Get one: rcalign data fetch NAME. Have it: rcalign data prepare NAME --from PATH.")


@app.command("prepare", cls=CommandParser)
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
    root: RootOption = None,
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
    from rcalign.data.benchmarks import actions

    with _goes_on():
        done = actions.prepare_data(name, from_, root, drop=drop, keep=keep or (), replace=replace, progress=True)
    _show_prepared(done)


@app.command("fetch", cls=CommandParser)
def data_fetch(
    name: Name,
    root: RootOption = None,
    mirror: Annotated[
        str | None, typer.Option(help="An address that has the files by their names, asked first.", show_default=False)
    ] = None,
    keep_archives: Annotated[
        bool, typer.Option("--keep-archives", help="Leave the downloaded files in ROOT/downloads.")
    ] = False,
) -> None:
    """Download a benchmark and prepare it. Run it again to go on where it stopped."""
    from rcalign.data.benchmarks import actions

    with _goes_on():
        done = actions.fetch_data(name, root, mirror=mirror, keep_archives=keep_archives, progress=True)
    _show_prepared(done)


@app.command("verify", cls=CommandParser)
def data_verify(
    name: Name,
    root: RootOption = None,
    splits: Annotated[
        Path | None, typer.Option(help="An MDLT split file.", show_default="the one with the images, or the rule")
    ] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Also decode every image.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare domains, classes and counts with the published ones. Ends with code 1 if something is missing."""
    from rcalign.data.benchmarks import actions

    report = actions.verify_data(name, root, split_file=splits, decode=decode, progress=not as_json)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _show_verified(report)
    if not report["complete"]:
        raise typer.Exit(1)


@app.command("sample", cls=CommandParser)
def data_sample(
    name: Name,
    out: Annotated[Path, typer.Option(help="The data root to write to.", show_default=False)],
    each: Annotated[int, typer.Option(help="Images of every (domain, class) pair.")] = 4,
    size: Annotated[int, typer.Option(help="Side of an image.")] = 64,
    seed: Annotated[int, typer.Option(help="Random seed of the drawings.")] = 0,
) -> None:
    """Draw a tiny stand-in with a benchmark's layout, domains and classes, to try things on."""
    from rcalign.data.benchmarks import actions

    done = actions.sample_data(name, out, each=each, size=size, seed=seed)
    print(f"{done['images']:,} drawn {done.get('unit', 'images')} written to {done['root']}/{done['folder']}")
    print(f"Next: rcalign data info {done['use']}")


@contextmanager
def _goes_on() -> Iterator[None]:
    """Says after Ctrl-C what these commands do when they are run again."""
    try:
        yield
    except KeyboardInterrupt:
        stop("stopped; the same command goes on where this one was.", 130)


def _show_prepared(done: dict[str, Any]) -> None:
    for domain, images in done["images"].items():
        print(f"{domain}: {images:,} {done.get('unit', 'images')}")
    for note in done["notes"]:
        print(f"- {in_words_of(note, flag)}")
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
        print(f"- {in_words_of(note, flag)}")
    for problem in report["problems"]:
        print(f"- {problem}")
    print("Complete." if report["complete"] else "Not as published.")
