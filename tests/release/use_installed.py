"""Uses the rcalign that is installed in this environment, from outside the repository: a training, a report, and the
first commands of the guides. Ends with an error where something does not work.

    PYTHON tests/release/use_installed.py [GUIDE ...]      # all guides if none is named

``make dist-check`` runs it with the Python of an environment into which only the wheel was installed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import rcalign

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
NEEDS = {"clip": "open_clip", "logging": "tensorboard"}  # guide -> the module of an extra that it is about


def main(guides: list[str]) -> None:
    place = Path(rcalign.__file__).resolve()
    assert place.is_relative_to(Path(sys.prefix).resolve()), f"{place} is not the one of {sys.prefix}"
    sys.path.insert(0, str(GUIDES.parents[1] / "tests" / "guides"))
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"RCALIGN_CACHE": f"{folder}/cache", "RCALIGN_DATA": f"{folder}/data", "COLUMNS": "110"}
        begin(Path(folder) / "begin")
        train_and_report()
        for guide in guides or sorted(page.stem for page in GUIDES.glob("*.md")):
            if guide in NEEDS and importlib.util.find_spec(NEEDS[guide]) is None:
                print(f"{guide}: left out, it needs {NEEDS[guide]}", flush=True)
                continue
            begin(Path(folder) / guide)
            use_guide(GUIDES / f"{guide}.md")
            print(f"{guide}: works", flush=True)
        os.chdir("/")


def begin(folder: Path) -> None:
    folder.mkdir()
    os.chdir(folder)


def train_and_report() -> None:
    """By the program that the wheel installs, each command in a process of its own."""
    rng = np.random.default_rng(0)
    y, domain = np.arange(120) % 2, np.arange(120) // 2 % 3
    np.savez("rows.npz", x=rng.normal(size=(120, 4)) + y[:, None], y=y, domain=domain)
    for words in (
        ["--version"],
        ["train", "rows.npz", "--algorithm", "ERM", "--test-domain", "2", "--steps", "10", "--out", "run"],
        ["report", "run"],
        ["report", "run", "--out", "run.html"],
        ["algorithms", "rc-align"],
        ["data", "list"],
    ):
        ended = subprocess.run([Path(sys.executable).parent / "rcalign", *words], capture_output=True, text=True)
        assert ended.returncode == 0, f"rcalign {' '.join(words)}\n{ended.stdout}{ended.stderr}"
        if words[0] == "--version":
            assert ended.stdout.strip() == f"rcalign {rcalign.__version__}"
        print(f"rcalign {' '.join(words)}: works", flush=True)
    assert "<script" in Path("run.html").read_text()


def use_guide(page: Path) -> None:
    """Runs a guide up to the first block that uses rcalign, and of that block, if it is a console's, one command."""
    from running import blocks, first_command, run_console  # main makes it importable

    sys.path.insert(0, os.getcwd())  # for the modules that a guide writes
    namespace = {"__name__": "__main__"}
    for block in blocks(page):
        if block.title is not None:
            Path(block.title).write_text(block.text)
        elif block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)
            if "rcalign" in block.text:
                return
        elif block.language == "console":
            run_console(first_command(block))
            return


if __name__ == "__main__":
    main(sys.argv[1:])
