"""The command line: one file for each command, each of which calls one function of ``rcalign.api``.

Nothing here imports torch, ray, timm or scikit-learn before a command needs them, so that help, lists, reports and
errors come at once.
"""

from __future__ import annotations

import errno
import io
import sys
from typing import Annotated

import typer

from rcalign import __version__
from rcalign.cli import (
    algorithms,
    data,
    demo,
    diagnose,
    doctor,
    ensemble,
    evaluate,
    export,
    fit,
    predict,
    push,
    report,
    soup,
    sweep,
    train,
)
from rcalign.cli.shared import CommandParser, flag, stop
from rcalign.errors import DivergedError, InputError, in_words_of

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Classifiers for domains they have never seen: train, evaluate, predict.",
)
for _command in (
    fit.fit,
    train.train,
    demo.demo,
    evaluate.evaluate,
    predict.predict,
    algorithms.algorithms,
    sweep.sweep,
    soup.soup,
    ensemble.ensemble,
    report.report,
    diagnose.diagnose,
    export.export,
    push.push,
    doctor.doctor,
):
    app.command(cls=CommandParser)(_command)
app.add_typer(data.app, name="data")


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


def main() -> None:
    """Runs a command. User errors (``InputError``) are printed as one line, with exit code 2; bugs keep their
    traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be no text
    try:
        app(standalone_mode=True)
    except (InputError, DivergedError) as error:
        stop(in_words_of(str(error), flag), 2)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            where = f" while writing {error.filename}" if error.filename else ""
            stop(f"no room is left on the disk{where}: free some, then go on with --resume.", 2)
        if isinstance(error, PermissionError):
            stop(f"'{error.filename}' cannot be written or read: change its permissions, or use another folder.", 2)
        raise
    except KeyboardInterrupt:
        stop("stopped; go on with the same command and --resume.", 130)
    except Exception as error:
        if type(error).__name__ == "Interrupted":  # by name: importing it would import torch
            stop(f"{error}; its state is saved: go on with the same command and --resume.", 130)
        raise
