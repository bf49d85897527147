"""What the commands share: arguments, options made from ``TrainOptions``, printing."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from rich.console import Console
from typer.core import TyperCommand

from rcalign.cli.completion import complete_algorithm, complete_data
from rcalign.errors import in_words_of, nearest
from rcalign.spaces import assignments
from rcalign.training.options import Described, described

Command = Callable[..., None]


Data = Annotated[
    str,
    typer.Argument(
        help="A folder domain/class/image, a CSV manifest (path,label,domain[,split][,group]), a table "
        "(.csv, .parquet), an .npz (x,y,domain[,split][,group]), or a name: emoji, emoji-mlt, PACS ... (see 'rcalign "
        "data list').",
        show_default=False,
        autocompletion=complete_data,
    ),
]


Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


Imports = Annotated[
    list[str] | None,
    typer.Option("--import", help="A module of your own to import first (repeat).", show_default=False),
]


class CommandParser(TyperCommand):
    """Reads the arguments of a command. A wrong option is answered by options of a similar name, if there are some."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "possibilities", None):  # of similar names, but the dashes that all have were counted
                names = {option.strip("-"): option for option in error.possibilities}  # type: ignore[attr-defined]
                near = nearest(error.option_name.strip("-"), names)  # type: ignore[attr-defined]
                error.possibilities = [names[near]] if near else None  # type: ignore[attr-defined]
            raise


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


_COMPLETED: dict[str, Callable[[str], list[str]]] = {"algorithm": complete_algorithm}


def _annotation(field: Described, about: str) -> Any:
    """A field of ``TrainOptions`` as typer wants it."""
    option = field.option
    kind: Any = list[str] if field.kind in (tuple, dict) else field.kind
    more: dict[str, Any] = {} if option.choices is None else {"metavar": "|".join(option.choices)}
    if field.name in _COMPLETED or option.choices is not None:
        more["autocompletion"] = _COMPLETED.get(field.name) or (lambda incomplete: list(option.choices or ()))
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


def flag(name: str) -> str:
    """An argument of the library as the command line calls it.

    >>> flag("test_domains"), flag("cpus_per_run"), flag("sources")
    ('--test-domain', '--cpus-per-run', '--from')
    """
    if name == "sources":  # of 'data prepare'
        return "--from"
    return described()[name].flag.partition("/")[0] if name in described() else "--" + name.replace("_", "-")


def show(*parts: Any) -> None:
    """Prints tables with names of the user's, which are not to be read as markup."""
    Console(markup=False).print(*parts)


def say(notes: list[str]) -> None:
    """What the user should know beside the result, on standard error."""
    for note in notes:
        print(f"note: {in_words_of(note, flag)}", file=sys.stderr)


def stop(message: str, code: int) -> NoReturn:
    """Ends the program with a line on standard error."""
    print(f"rcalign: {message}", file=sys.stderr)
    sys.exit(code)


def check_data(data: str) -> None:
    """Raises an ``InputError`` for data that are not there, before torch is imported."""
    from rcalign.data import loading, sources

    if not sources.is_name(data) and not Path(sources.table.divided(data)[0]).exists():
        loading.load(data)


def check_run(run: str | Path) -> None:
    """Raises an ``InputError`` for a folder that is no run, before torch is imported; models of the hub come later."""
    if str(run).startswith("hf:/"):
        return
    from rcalign.store.run_folder import read_config

    read_config(run)
