"""Runs a page: its blocks in order, in one folder, as a reader would.

``python``: executed, all blocks of a page in one namespace. ``console``: lines after "$ " are commands, what follows is
their output, where "..." stands for anything. Any block with title="FILE" is written to that file instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcalign import cli

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    title: str | None
    text: str


def blocks(page: Path) -> Iterator[Block]:
    content = page.read_text()
    for match in FENCE.finditer(content):
        title = TITLE.search(match[2])
        line = content.count("\n", 0, match.start(3)) + 1
        yield Block(page, line, match[1], title[1] if title else None, match[3])


def run_page(page: Path, *, shell: bool = False) -> dict[str, Any]:
    """Runs all blocks in the current folder; returns the namespace of the Python blocks.

    shell: every command in a process of its own, as a reader would.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.title is not None:
            Path(block.title).write_text(block.text)
        elif block.language == "python":
            source = "\n" * (block.line - 1) + block.text  # so that a traceback names the line of the page
            exec(compile(source, str(page), "exec"), namespace)
        elif block.language == "console":
            run_console(block, shell=shell)
    return namespace


def run_console(block: Block, *, shell: bool = False) -> None:
    for piece in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, expected = piece.partition("\n")
        while command.endswith("\\"):
            more, _, expected = expected.partition("\n")
            command = command[:-1] + more
        code, found, errors = run_command(command, shell=shell)
        where = f"{block.page.name}, line {block.line}: {command}"
        assert code == 0, f"{where}\nended with {code}:\n{found}{errors}"
        if expected.strip():
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert doctest.OutputChecker().check_output(expected, found, flags), f"{where}\nprinted\n{found}"


def first_command(block: Block) -> Block:
    """A console block with its first command only."""
    commands = re.split(r"^(?=\$ )", block.text, flags=re.MULTILINE)
    return dataclasses.replace(block, text=commands[0] or commands[1])


def run_command(command: str, *, shell: bool = False) -> tuple[int, str, str]:
    """Exit code, output, errors: our own command in this process (torch takes seconds), anything else in a shell."""
    words = shlex.split(command)
    if shell or words[0] != "rcalign":
        with_ours = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        ended = subprocess.run(command, shell=True, capture_output=True, text=True, env=with_ours)
        return ended.returncode, ended.stdout, ended.stderr
    before, sys.argv = sys.argv, words
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()
